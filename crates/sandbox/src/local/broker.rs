//! A helper process that enters the network namespace of one sandbox and creates sockets there for the gateway.
//!
//! It runs nothing inside the sandbox, and the sandbox has no socket file that it could replace. It never waits for
//! the sandbox: it hands a socket over before the connection is established. It exits when the gateway closes its
//! end of the socket pair, and a restarted gateway starts another one.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Gid, Uid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::sockets;
use super::wire::{self, Operation, Request};

/// The user `nobody`, which owns no files and no processes.
const NOBODY_UID: u32 = 65_534;
const LISTEN_BACKLOG: i32 = 128;

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
        let done = match (request.operation, &descriptor) {
            (Operation::Enter, Some(namespace)) => enter(namespace).map(|()| None),
            (Operation::Enter, None) => Err(Errno::INVAL),
            (Operation::Listen, _) => listen(request.port).map(Some),
            (Operation::Connect, _) => connect(request.port).map(Some),
            (Operation::OpenDiagSocket, _) => sockets::diag_socket().map(Some),
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

/// Enters the namespace directly as root. An unprivileged user must first enter the user namespace that owns it, in
/// which we have privileges because we created it. Afterwards no privilege is needed.
fn enter(namespace: &OwnedFd) -> Result<(), Errno> {
    let net = Some(LinkNameSpaceType::Network);
    // Checked before entering: bubblewrap's outer user namespace maps its owner to root.
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
        let (uid, gid) = (Uid::from_raw(NOBODY_UID), Gid::from_raw(NOBODY_UID));
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
    rustix::net::listen(&socket, LISTEN_BACKLOG)?;
    Ok(socket)
}

fn connect(port: u16) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    match rustix::net::connect(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}
