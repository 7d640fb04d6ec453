//! Limits that bound what a hostile client can cost.

use std::time::Duration;

/// The limits of one sandbox at the proxy. The defaults are for production; tests use smaller values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent connections.
    pub connections: usize,
    /// The size of a burst of requests that need not wait, and the sustained rate after it. Each request writes one
    /// record; package managers make a few hundred requests.
    pub requests_at_once: u32,
    pub requests_per_second: u32,
    /// The time from the first byte of a request's head to its end; for the first request, from accepting the
    /// connection.
    pub head: Duration,
    /// The idle time between two requests on one connection.
    pub keep_alive: Duration,
    /// The time to resolve a name.
    pub lookup: Duration,
    /// The time to connect, over all addresses of a name.
    pub connect: Duration,
    /// The time without a byte to or from the target during a plain request.
    pub exchange_idle: Duration,
    /// The time without a byte in either direction of a tunnel, also after one direction has ended.
    pub tunnel_idle: Duration,
    /// The time to write a refusal, and to wait until the client has read it.
    pub close: Duration,
    /// The size of a request's head in bytes.
    pub request_head: usize,
    /// The size of a response's head in bytes.
    pub response_head: usize,
    /// The size of a plain request's body in bytes.
    pub request_body: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            requests_at_once: 2000,
            requests_per_second: 20,
            head: Duration::from_secs(10),
            keep_alive: Duration::from_mins(1),
            lookup: Duration::from_secs(5),
            connect: Duration::from_secs(10),
            exchange_idle: Duration::from_mins(2),
            tunnel_idle: Duration::from_mins(10),
            close: Duration::from_secs(2),
            request_head: 16 * 1024,
            response_head: 64 * 1024,
            request_body: 4 * 1024 * 1024 * 1024,
        }
    }
}
