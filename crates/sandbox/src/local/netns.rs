//! The gateway's side of the broker: sockets of a sandbox's network as tokio streams and listeners.

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
use super::wire::{self, Ask, Request};
use crate::error::SandboxError;

/// The broker answers without waiting for anybody, so this is long even on a loaded host.
const ANSWER: Duration = Duration::from_secs(10);
/// How long a program inside may take to accept.
const CONNECT: Duration = Duration::from_secs(10);
/// The sandbox's loopback comes up shortly after its namespace; until then it has no address.
const LOOPBACK_TRIES: u32 = 2_000;

pub(crate) struct Broker {
    /// It keeps messages apart like a datagram socket, and also tells when the other end closes.
    socket: UnixDatagram,
    next: u32,
    /// Killed when this is dropped; it would also end by itself when our end of the socket closes.
    _process: Child,
}

impl Broker {
    /// Starts a broker; it has to [enter](Self::enter_network_of) a namespace before it is of use.
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

    /// Sends the broker into a network namespace, for good.
    async fn enter(&mut self, namespace: BorrowedFd<'_>) -> Result<(), SandboxError> {
        let host = SandboxError::host("send the socket broker into the sandbox's network");
        self.ask(Ask::Enter, 0, Some(namespace)).await?.map(drop).map_err(host)
    }

    /// The outer error is the broker's death, the inner one the kernel's answer.
    async fn ask(
        &mut self,
        ask: Ask,
        port: u16,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<io::Result<Option<OwnedFd>>, SandboxError> {
        self.next = self.next.wrapping_add(1);
        let request = Request { ask, port, number: self.next };
        let exchange = async {
            wire::send(&self.socket, request.encode(), descriptor)?;
            loop {
                let receive = || wire::receive(&self.socket);
                let got = self.socket.async_io(Interest::READABLE, receive).await?;
                let (bytes, made) = got.ok_or(io::ErrorKind::UnexpectedEof)?;
                let (number, errno) = wire::decode_reply(bytes);
                // An older number answers somebody who gave up waiting; its socket is closed here.
                if number == request.number {
                    return io::Result::Ok((errno, made));
                }
            }
        };
        match timeout(ANSWER, exchange).await {
            Ok(Ok((0, made))) => Ok(Ok(made)),
            Ok(Ok((errno, _))) => Ok(Err(io::Error::from_raw_os_error(errno))),
            Ok(Err(_)) | Err(_) => Err(SandboxError::BrokerDied),
        }
    }

    pub(crate) async fn listen(&mut self, port: u16) -> Result<TcpListener, SandboxError> {
        for _ in 0..LOOPBACK_TRIES {
            match self.ask(Ask::Listen, port, None).await? {
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

    /// Sends the broker into the network of a PID 1.
    pub(crate) async fn enter_network_of(&mut self, identity: &Identity) -> Result<(), SandboxError> {
        let host = SandboxError::host("open the sandbox's network namespace");
        let file = std::fs::File::open(identity.net_path()).map_err(&host)?;
        // The process may have ended and its pid may be another's by now; the namespace tells.
        if file.metadata().map_err(&host)?.ino() != identity.net_namespace {
            return Err(SandboxError::InitExited);
        }
        self.enter(file.as_fd()).await
    }

    /// See [`sockets::memory`](super::sockets::memory).
    pub(crate) async fn asker(&mut self) -> Result<OwnedFd, SandboxError> {
        let made = self.ask(Ask::Asker, 0, None).await?;
        made.map_err(SandboxError::host("ask about sockets"))?.ok_or(SandboxError::BrokerDied)
    }

    /// A socket that is about to be connected; see [`connected`].
    pub(crate) async fn connect(&mut self, port: u16) -> Result<OwnedFd, SandboxError> {
        let refused = |kind| SandboxError::Refused { port, kind };
        let made = self.ask(Ask::Connect, port, None).await?;
        made.map_err(|e| refused(e.kind()))?.ok_or(SandboxError::BrokerDied)
    }
}

/// Waits until a program inside has the connection. Does not need the broker, so a slow one holds up nobody else.
pub(crate) async fn connected(socket: OwnedFd, port: u16) -> Result<TcpStream, SandboxError> {
    let refused = |kind| SandboxError::Refused { port, kind };
    let stream = TcpStream::from_std(socket.into()).map_err(|e| refused(e.kind()))?;
    // A small request must not wait for the answer to the one before.
    stream.set_nodelay(true).map_err(|e| refused(e.kind()))?;
    match timeout(CONNECT, stream.writable()).await {
        Err(_) => return Err(refused(io::ErrorKind::TimedOut)),
        Ok(ready) => ready.map_err(|e| refused(e.kind()))?,
    }
    match stream.take_error() {
        Ok(None) => {
            // A port on the loopback range can connect to itself; that is nobody accepting.
            match (stream.local_addr(), stream.peer_addr()) {
                (Ok(own), Ok(peer)) if own != peer => Ok(stream),
                _ => Err(refused(io::ErrorKind::ConnectionRefused)),
            }
        }
        Ok(Some(error)) | Err(error) => Err(refused(error.kind())),
    }
}
