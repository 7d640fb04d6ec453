//! A process of ours that stands in the network namespace of one sandbox and makes sockets there for the gateway.
//!
//! Nothing of it runs inside and the sandbox has no socket file that it could replace. It never waits for the
//! sandbox: a connection is handed over before it is made. It ends with the gateway, whose end of the socket pair
//! closes, and a restarted gateway starts another.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Gid, Uid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::sockets;
use super::wire::{self, Ask, Request};

/// Owns no files and no processes.
const NOBODY: u32 = 65_534;
const BACKLOG: i32 = 128;

/// The hidden subcommand: serves requests from its standard input, a socket, until the other end closes.
pub(super) fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    let socket = io::stdin().as_fd().try_clone_to_owned()?;
    std::env::set_current_dir("/")?;
    while let Some((bytes, descriptor)) = wire::receive(&socket)? {
        let request = Request::decode(bytes).ok_or(io::ErrorKind::InvalidData)?;
        let done = match (request.ask, &descriptor) {
            (Ask::Enter, Some(namespace)) => enter(namespace).map(|()| None),
            (Ask::Enter, None) => Err(Errno::INVAL),
            (Ask::Listen, _) => listen(request.port).map(Some),
            (Ask::Connect, _) => connect(request.port).map(Some),
            (Ask::Asker, _) => sockets::asker().map(Some),
        };
        let (errno, made) = match done {
            Ok(made) => (0, made),
            Err(error) => (error.raw_os_error(), None),
        };
        let reply = wire::encode_reply(request.number, errno);
        wire::send(&socket, reply, made.as_ref().map(AsFd::as_fd))?;
    }
    Ok(())
}

/// As root directly; as an ordinary user through the user namespace that owns the network namespace, in which we
/// are privileged because we made it. After that no privilege is needed.
fn enter(namespace: &OwnedFd) -> Result<(), Errno> {
    let net = Some(LinkNameSpaceType::Network);
    // Asked before entering: bubblewrap's outer user namespace calls its owner root, whoever that is outside.
    let root = rustix::process::getuid().is_root();
    match move_into_link_name_space(namespace.as_fd(), net) {
        Ok(()) => {}
        Err(Errno::PERM) => {
            let errno = |e: io::Error| Errno::from_io_error(&e).unwrap_or(Errno::PERM);
            let owner = crate::sys::owning_user_namespace(namespace).map_err(errno)?;
            move_into_link_name_space(owner.as_fd(), Some(LinkNameSpaceType::User))?;
            move_into_link_name_space(namespace.as_fd(), net)?;
        }
        Err(error) => return Err(error),
    }
    if root {
        let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        rustix::thread::set_thread_groups(&[])?;
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
    }
    rustix::thread::set_no_new_privs(true)
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)
}

fn listen(port: u16) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn connect(port: u16) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    match rustix::net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}
