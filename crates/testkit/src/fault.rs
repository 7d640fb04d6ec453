//! A TCP proxy that fails on command, so that a test decides when the network is slow, cut or gone.
//!
//! It knows nothing of what it carries: HTTP and a database both go through it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use futures_util::future::try_join;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use crate::pump::pump;

/// How many connections may wait to be accepted.
const BACKLOG: u32 = 1024;

/// Stands between a client and a target on loopback. Faults hold until [`FaultProxy::heal`].
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    /// Bound but not listening, so that nobody else gets the port while connections are refused.
    _port: TcpSocket,
    listening: Mutex<Option<AbortOnDropHandle<()>>>,
    wires: Wires,
    _end: DropGuard,
}

/// Which way bytes travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToTarget,
    ToClient,
}

/// What has passed so far, over all connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections accepted.
    pub connections: u64,
    received: [u64; 2],
    forwarded: [u64; 2],
}

impl Counts {
    /// Bytes that came in from the sender.
    pub fn received(&self, direction: Direction) -> u64 {
        self.received[direction.index()]
    }

    /// Bytes that were handed on; less than received while they are held back, or when they are lost.
    pub fn forwarded(&self, direction: Direction) -> u64 {
        self.forwarded[direction.index()]
    }

    pub(crate) fn add_received(&mut self, direction: Direction, bytes: u64) {
        self.received[direction.index()] += bytes;
    }

    pub(crate) fn add_forwarded(&mut self, direction: Direction, bytes: u64) {
        self.forwarded[direction.index()] += bytes;
    }
}

/// The faults of one direction.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Lane {
    pub(crate) latency: Duration,
    pub(crate) bytes_per_second: Option<NonZeroU32>,
    pub(crate) reset_after: Option<u64>,
    pub(crate) black_hole: bool,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    lanes: [Lane; 2],
    /// Goes up with each order to reset; a connection watches for the change.
    resets: u64,
}

impl Faults {
    pub(crate) fn lane(&self, direction: Direction) -> Lane {
        self.lanes[direction.index()]
    }
}

impl Direction {
    fn index(self) -> usize {
        match self {
            Self::ToTarget => 0,
            Self::ToClient => 1,
        }
    }
}

/// What every connection shares.
#[derive(Debug, Clone)]
pub(crate) struct Wires {
    target: SocketAddr,
    faults: watch::Sender<Faults>,
    pub(crate) counts: watch::Sender<Counts>,
    end: CancellationToken,
}

impl FaultProxy {
    /// Listens on a free port of loopback and forwards to `target`, without faults at first.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let port = TcpSocket::new_v4()?;
        port.set_reuseport(true)?;
        port.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let end = CancellationToken::new();
        let wires = Wires {
            target,
            faults: watch::Sender::new(Faults::default()),
            counts: watch::Sender::new(Counts::default()),
            end: end.clone(),
        };
        let address = port.local_addr()?;
        let proxy = Self { address, _port: port, listening: Mutex::default(), wires, _end: end.drop_guard() };
        proxy.heal().await?;
        Ok(proxy)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn counts(&self) -> Counts {
        *self.wires.counts.borrow()
    }

    /// Waits until the counts are as wanted. Give it a timeout.
    pub async fn wait_for(&self, wanted: impl FnMut(&Counts) -> bool) {
        // The sender lives in `self.wires`, so this wait cannot fail.
        let _ = self.wires.counts.subscribe().wait_for(wanted).await;
    }

    /// Holds every piece of data back for this long.
    pub fn latency(&self, direction: Direction, latency: Duration) {
        self.change(direction, |lane| lane.latency = latency);
    }

    /// Lets no more than this many bytes through in a second, on each connection.
    pub fn throttle(&self, direction: Direction, bytes_per_second: NonZeroU32) {
        self.change(direction, |lane| lane.bytes_per_second = Some(bytes_per_second));
    }

    /// Takes data and loses it. A connection that lost some is reset when the fault is healed, because a
    /// stream with a hole in it is nothing that a real network hands out.
    pub fn black_hole(&self, direction: Direction) {
        self.change(direction, |lane| lane.black_hole = true);
    }

    /// Resets each connection once it has carried exactly this many bytes, counted from its beginning.
    pub fn reset_after(&self, direction: Direction, bytes: u64) {
        self.change(direction, |lane| lane.reset_after = Some(bytes));
    }

    /// Resets all connections that are open now; new ones are welcome.
    pub fn reset_now(&self) {
        self.wires.faults.send_modify(|faults| faults.resets += 1);
    }

    /// Refuses new connections, as if nothing listened; those that are open go on.
    pub async fn refuse(&self) {
        if let Some(listening) = self.listening.lock().await.take() {
            listening.abort();
            // An aborted task ends in an error; what counts is that its listener is closed by then.
            let _ = listening.await;
        }
    }

    /// Ends all faults and accepts connections again.
    pub async fn heal(&self) -> io::Result<()> {
        self.wires.faults.send_modify(|faults| faults.lanes = <[Lane; 2]>::default());
        let mut listening = self.listening.lock().await;
        if listening.is_none() {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseport(true)?;
            socket.bind(self.address)?;
            let listener = socket.listen(BACKLOG)?;
            *listening = Some(AbortOnDropHandle::new(tokio::spawn(accept(listener, self.wires.clone()))));
        }
        Ok(())
    }

    fn change(&self, direction: Direction, change: impl FnOnce(&mut Lane)) {
        self.wires.faults.send_modify(|faults| change(&mut faults.lanes[direction.index()]));
    }
}

async fn accept(listener: TcpListener, wires: Wires) {
    loop {
        if let Ok((client, _)) = listener.accept().await {
            wires.counts.send_modify(|counts| counts.connections += 1);
            let wires = wires.clone();
            // On its own, so that refusing new connections leaves this one alone.
            tokio::spawn(async move { wires.end.clone().run_until_cancelled(carry(client, wires)).await });
        }
    }
}

async fn carry(mut client: TcpStream, wires: Wires) {
    let mut faults = wires.faults.subscribe();
    let resets = faults.borrow().resets;
    let Ok(mut target) = TcpStream::connect(wires.target).await else {
        reset(&client);
        return;
    };
    let broken = {
        let (from_client, to_client) = client.split();
        let (from_target, to_target) = target.split();
        let both = try_join(
            pump(from_client, to_target, Direction::ToTarget, faults.clone(), &wires.counts),
            pump(from_target, to_client, Direction::ToClient, faults.clone(), &wires.counts),
        );
        tokio::select! {
            carried = both => carried.is_err(),
            _ = faults.wait_for(|now| now.resets != resets) => true,
        }
    };
    if broken {
        reset(&client);
        reset(&target);
    }
}

/// Makes the coming close of the socket a reset. Failing is fine: then the peer has closed it already.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}
