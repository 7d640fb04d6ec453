//! The gateway's client of the broker: sockets in a sandbox's network as tokio streams and listeners.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::Interest;
use tokio::net::{TcpListener, TcpStream, UnixDatagram};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::hidden::BROKER;
use super::identity::Identity;
use super::wire::{self, Operation, Request};
use crate::error::SandboxError;

/// The broker never waits for the sandbox, so this is long even on a loaded host.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a program inside may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The loopback interface comes up shortly after its namespace; until then binding fails.
const LOOPBACK_TRIES: u32 = 2_000;

pub(crate) struct Broker {
    /// A seqpacket socket: it keeps message boundaries like a datagram socket, and reports when the other end
    /// closes.
    socket: UnixDatagram,
    next: u32,
    /// Killed on drop; it would also exit when our end of the socket closes.
    _process: Child,
}

impl Broker {
    /// Starts a broker; it must [enter](Self::enter_network_of) a namespace before it can be used.
    pub(crate) fn start(helper: &Path) -> Result<Self, SandboxError> {
        let host = SandboxError::host("start the socket broker");
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
            .map_err(|e| host(e.into()))?;
        rustix::io::ioctl_fionbio(&ours, true).map_err(|e| host(e.into()))?;
        let process = Command::new(helper)
            .arg(BROKER)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .map_err(&host)?;
        let socket = UnixDatagram::from_std(ours.into()).map_err(&host)?;
        Ok(Self { socket, next: 0, _process: process })
    }

    /// Makes the broker enter a network namespace, permanently.
    async fn enter(&mut self, namespace: BorrowedFd<'_>) -> Result<(), SandboxError> {
        let host = SandboxError::host("send the socket broker into the sandbox's network");
        self.request(Operation::Enter, 0, Some(namespace)).await?.map(drop).map_err(host)
    }

    /// The outer error means that the broker died, the inner one is the kernel's errno.
    async fn request(
        &mut self,
        operation: Operation,
        port: u16,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<io::Result<Option<OwnedFd>>, SandboxError> {
        self.next = self.next.wrapping_add(1);
        let request = Request { operation, port, number: self.next };
        let exchange = async {
            wire::send(&self.socket, request.encode(), descriptor)?;
            loop {
                let receive = || wire::receive(&self.socket);
                let got = self.socket.async_io(Interest::READABLE, receive).await?;
                let (bytes, made) = got.ok_or(io::ErrorKind::UnexpectedEof)?;
                let (number, errno) = wire::decode_reply(bytes);
                // A reply with an older number belongs to a caller that timed out; its socket is closed here.
                if number == request.number {
                    return io::Result::Ok((errno, made));
                }
            }
        };
        match timeout(REPLY_TIMEOUT, exchange).await {
            Ok(Ok((0, made))) => Ok(Ok(made)),
            Ok(Ok((errno, _))) => Ok(Err(io::Error::from_raw_os_error(errno))),
            Ok(Err(_)) | Err(_) => Err(SandboxError::BrokerDied),
        }
    }

    pub(crate) async fn listen(&mut self, port: u16) -> Result<TcpListener, SandboxError> {
        for _ in 0..LOOPBACK_TRIES {
            match self.request(Operation::Listen, port, None).await? {
                Ok(Some(socket)) => {
                    let host = SandboxError::host("take over an injected port");
                    return TcpListener::from_std(socket.into()).map_err(host);
                }
                Ok(None) => return Err(SandboxError::BrokerDied),
                Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    return Err(SandboxError::PortTaken(port));
                }
                Err(error) => return Err(SandboxError::host("listen inside the sandbox")(error)),
            }
        }
        Err(SandboxError::Timeout("its network"))
    }

    /// Makes the broker enter the network of a PID 1.
    pub(crate) async fn enter_network_of(&mut self, identity: &Identity) -> Result<(), SandboxError> {
        let host = SandboxError::host("open the sandbox's network namespace");
        let file = std::fs::File::open(identity.net_path()).map_err(&host)?;
        // The process may have exited and its pid may have been reused; the inode of the namespace shows that.
        if file.metadata().map_err(&host)?.ino() != identity.net_namespace {
            return Err(SandboxError::InitExited);
        }
        self.enter(file.as_fd()).await
    }

    /// Opens a netlink socket for [`sockets::memory`](super::sockets::memory).
    pub(crate) async fn diag_socket(&mut self) -> Result<OwnedFd, SandboxError> {
        let made = self.request(Operation::OpenDiagSocket, 0, None).await?;
        made.map_err(SandboxError::host("ask about sockets"))?.ok_or(SandboxError::BrokerDied)
    }

    /// A socket whose connection is in progress; see [`connected`].
    pub(crate) async fn connect(&mut self, port: u16) -> Result<OwnedFd, SandboxError> {
        let refused = |kind| SandboxError::Refused { port, kind };
        let made = self.request(Operation::Connect, port, None).await?;
        made.map_err(|e| refused(e.kind()))?.ok_or(SandboxError::BrokerDied)
    }
}

/// Waits until the connection is established. This does not use the broker, so a slow program delays no other
/// caller.
pub(crate) async fn connected(socket: OwnedFd, port: u16) -> Result<TcpStream, SandboxError> {
    let refused = |kind| SandboxError::Refused { port, kind };
    let stream = TcpStream::from_std(socket.into()).map_err(|e| refused(e.kind()))?;
    // Without TCP_NODELAY, a small request would wait for the response to the previous one.
    stream.set_nodelay(true).map_err(|e| refused(e.kind()))?;
    match timeout(CONNECT_TIMEOUT, stream.writable()).await {
        Err(_) => return Err(refused(io::ErrorKind::TimedOut)),
        Ok(ready) => ready.map_err(|e| refused(e.kind()))?,
    }
    match stream.take_error() {
        Ok(None) => {
            // A socket on loopback can connect to itself; then nobody has accepted.
            match (stream.local_addr(), stream.peer_addr()) {
                (Ok(own), Ok(peer)) if own != peer => Ok(stream),
                _ => Err(refused(io::ErrorKind::ConnectionRefused)),
            }
        }
        Ok(Some(error)) | Err(error) => Err(refused(error.kind())),
    }
}
