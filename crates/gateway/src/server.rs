//! Accepts connections and hands them to the router, within limits that hold against malicious clients.
//!
//! `axum::serve` has no connection limit, and waits forever for a client that never finishes its headers. So we have
//! our own accept loop.

mod inbound;
mod write_timeout;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::ServiceExt as _;

use crate::lifecycle::Lifecycle;
pub(crate) use inbound::Inbound;
use write_timeout::WriteTimeout;

/// The connection limits and timeouts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub connections: usize,
    pub per_address: usize,
    pub client_timeout: Duration,
}

/// The maximum size of a request head. An unfinished head is buffered before its sender is known, and hyper would
/// buffer 400 KiB.
const MAX_HEAD: usize = 32 * 1024;

/// The write timeout as a multiple of the client timeout: a client that reads nothing for this long is disconnected.
const TIMEOUTS_PER_WRITE: u32 = 3;

/// One counted connection, stored in the extensions of each of its requests. A WebSocket outlives the request that
/// opened it: its handler keeps a clone, so that the socket still counts.
#[derive(Clone)]
pub struct ConnectionHeld {
    _counted: Arc<(OwnedSemaphorePermit, Guard)>,
    /// Tracks the bytes of an incomplete message from the client.
    pub(crate) inbound: Inbound,
}

/// Serves `router` on `listener` until the lifecycle says stop, and then waits for requests in flight within its
/// deadlines.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, life: &Lifecycle) {
    let slots = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let addresses = Addresses::default();
    loop {
        let Some((stream, peer, slot)) = next(&listener, &slots, life).await else { break };
        let Some(guard) = addresses.admit(peer.ip(), limits.per_address) else {
            metrics::counter!("proliferate_connections_refused_total").increment(1);
            continue;
        };
        let inbound = Inbound::default();
        let held = ConnectionHeld { _counted: Arc::new((slot, guard)), inbound: inbound.clone() };
        let of_requests = held.clone();
        let service =
            router.clone().map_request(move |mut request: axum::http::Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(ConnectInfo(peer));
                request.extensions_mut().insert(of_requests.clone());
                request.map(axum::body::Body::new)
            });
        let patience = limits.client_timeout.saturating_mul(TIMEOUTS_PER_WRITE);
        let stream = WriteTimeout::new(stream, patience, inbound);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.client_timeout)
            .max_buf_size(MAX_HEAD)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service))
            .with_upgrades();
        let (soft, hard) = (life.soft.clone(), life.hard.clone());
        life.tasks.spawn(async move {
            let _held = held;
            let mut connection = std::pin::pin!(connection);
            // Connection errors are ignored: they concern only the client, and the request itself was logged.
            tokio::select! {
                _ended = connection.as_mut() => return,
                () = soft.cancelled() => connection.as_mut().graceful_shutdown(),
            }
            tokio::select! {
                _ended = connection => {},
                () = hard.cancelled() => {},
            }
        });
    }
}

/// Serves one connection from a sandbox, with the timeouts for hostile clients.
pub(crate) async fn serve_stream(
    stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    router: Router,
) {
    let service = router.map_request(|request: axum::http::Request<hyper::body::Incoming>| {
        request.map(axum::body::Body::new)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(INSIDE_PATIENCE)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
    let _how_it_ended = connection.await;
}

/// How long a program inside a sandbox may take to send a request head. Also the keep-alive timeout.
const INSIDE_PATIENCE: Duration = Duration::from_mins(1);

/// Accepts the next connection once a slot is free. Returns `None` when it is time to stop.
async fn next(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
    life: &Lifecycle,
) -> Option<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    loop {
        let accepted = tokio::select! {
            () = life.soft.cancelled() => return None,
            accepted = accept(listener, slots) => accepted,
        };
        match accepted {
            Ok((stream, peer, slot)) => {
                // Events are small and users wait for each of them, so disable Nagle's algorithm.
                let _ = stream.set_nodelay(true);
                return Some((stream, peer, slot));
            }
            Err(error) => {
                // Usually the process is out of file descriptors. They become free when a connection ends.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let slot = slots.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, slot))
}

/// The number of open connections by address.
#[derive(Clone, Default)]
struct Addresses(Arc<Mutex<HashMap<IpAddr, usize>>>);

impl Addresses {
    /// Counts one more connection, unless the address has reached its limit.
    fn admit(&self, address: IpAddr, most: usize) -> Option<Guard> {
        let mut open = self.0.lock();
        let count = open.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        metrics::gauge!("proliferate_connections").increment(1.0);
        Some(Guard { addresses: self.clone(), address })
    }
}

/// One counted connection. Dropping it decrements the count.
struct Guard {
    addresses: Addresses,
    address: IpAddr,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut open = self.addresses.0.lock();
        if let Some(count) = open.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.address);
            }
        }
        metrics::gauge!("proliferate_connections").decrement(1.0);
    }
}
