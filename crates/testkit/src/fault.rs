//! A TCP proxy that fails on command, so that tests control when the network is slow, broken or gone.
//!
//! It works for any protocol: HTTP and databases.

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

const LISTEN_BACKLOG: u32 = 1024;

/// A proxy between a client and a target on loopback. Faults last until [`FaultProxy::heal`].
#[derive(Debug)]
pub struct FaultProxy {
    address: SocketAddr,
    /// Bound but not listening, so that nobody else gets the port while connections are refused.
    _port: TcpSocket,
    listening: Mutex<Option<AbortOnDropHandle<()>>>,
    state: ProxyState,
    _end: DropGuard,
}

/// The direction of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    ToTarget,
    ToClient,
}

/// Totals over all connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of accepted connections.
    pub connections: u64,
    received: [u64; 2],
    forwarded: [u64; 2],
}

impl Counts {
    /// Bytes received from the sender.
    pub fn received(&self, direction: Direction) -> u64 {
        self.received[direction.index()]
    }

    /// Bytes forwarded to the receiver; fewer than received while they are delayed or if they are lost.
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
    /// Incremented with each reset; connections watch for the change.
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

/// State that all connections share.
#[derive(Debug, Clone)]
pub(crate) struct ProxyState {
    target: SocketAddr,
    faults: watch::Sender<Faults>,
    pub(crate) counts: watch::Sender<Counts>,
    end: CancellationToken,
}

impl FaultProxy {
    /// Listens on a free port on loopback and forwards to `target`, initially without faults.
    pub async fn start(target: SocketAddr) -> io::Result<Self> {
        let port = TcpSocket::new_v4()?;
        port.set_reuseport(true)?;
        port.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        let end = CancellationToken::new();
        let state = ProxyState {
            target,
            faults: watch::Sender::new(Faults::default()),
            counts: watch::Sender::new(Counts::default()),
            end: end.clone(),
        };
        let address = port.local_addr()?;
        let proxy = Self { address, _port: port, listening: Mutex::default(), state, _end: end.drop_guard() };
        proxy.heal().await?;
        Ok(proxy)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn counts(&self) -> Counts {
        *self.state.counts.borrow()
    }

    /// Waits until `wanted` returns true. Use it with a timeout.
    pub async fn wait_for(&self, wanted: impl FnMut(&Counts) -> bool) {
        // The sender lives in `self.state`, so this wait cannot fail.
        let _ = self.state.counts.subscribe().wait_for(wanted).await;
    }

    /// Delays every piece of data.
    pub fn latency(&self, direction: Direction, latency: Duration) {
        self.change(direction, |lane| lane.latency = latency);
    }

    /// Limits the throughput of each connection.
    pub fn throttle(&self, direction: Direction, bytes_per_second: NonZeroU32) {
        self.change(direction, |lane| lane.bytes_per_second = Some(bytes_per_second));
    }

    /// Discards received data. A connection that lost data is reset when the fault is healed, because a real
    /// network never delivers a stream with a gap.
    pub fn black_hole(&self, direction: Direction) {
        self.change(direction, |lane| lane.black_hole = true);
    }

    /// Resets each connection after exactly this many bytes, counted from its start.
    pub fn reset_after(&self, direction: Direction, bytes: u64) {
        self.change(direction, |lane| lane.reset_after = Some(bytes));
    }

    /// Resets all open connections; new ones are accepted.
    pub fn reset_now(&self) {
        self.state.faults.send_modify(|faults| faults.resets += 1);
    }

    /// Refuses new connections as if nothing were listening; open ones continue.
    pub async fn refuse(&self) {
        if let Some(listening) = self.listening.lock().await.take() {
            listening.abort();
            // An aborted task always ends with an error; what matters is that its listener is closed.
            let _ = listening.await;
        }
    }

    /// Removes all faults and accepts connections again.
    pub async fn heal(&self) -> io::Result<()> {
        self.state.faults.send_modify(|faults| faults.lanes = <[Lane; 2]>::default());
        let mut listening = self.listening.lock().await;
        if listening.is_none() {
            let socket = TcpSocket::new_v4()?;
            socket.set_reuseport(true)?;
            socket.bind(self.address)?;
            let listener = socket.listen(LISTEN_BACKLOG)?;
            *listening = Some(AbortOnDropHandle::new(tokio::spawn(accept(listener, self.state.clone()))));
        }
        Ok(())
    }

    fn change(&self, direction: Direction, change: impl FnOnce(&mut Lane)) {
        self.state.faults.send_modify(|faults| change(&mut faults.lanes[direction.index()]));
    }
}

async fn accept(listener: TcpListener, state: ProxyState) {
    loop {
        if let Ok((client, _)) = listener.accept().await {
            state.counts.send_modify(|counts| counts.connections += 1);
            let state = state.clone();
            // In a task of its own, so that refusing new connections does not affect this one.
            tokio::spawn(async move { state.end.clone().run_until_cancelled(forward(client, state)).await });
        }
    }
}

async fn forward(mut client: TcpStream, state: ProxyState) {
    let mut faults = state.faults.subscribe();
    let resets = faults.borrow().resets;
    let Ok(mut target) = TcpStream::connect(state.target).await else {
        reset(&client);
        return;
    };
    let broken = {
        let (from_client, to_client) = client.split();
        let (from_target, to_target) = target.split();
        let both = try_join(
            pump(from_client, to_target, Direction::ToTarget, faults.clone(), &state.counts),
            pump(from_target, to_client, Direction::ToClient, faults.clone(), &state.counts),
        );
        tokio::select! {
            finished = both => finished.is_err(),
            _ = faults.wait_for(|now| now.resets != resets) => true,
        }
    };
    if broken {
        reset(&client);
        reset(&target);
    }
}

/// Makes the following close a reset. It fails only if the peer has already closed the connection.
fn reset(stream: &TcpStream) {
    let _ = stream.set_zero_linger();
}
