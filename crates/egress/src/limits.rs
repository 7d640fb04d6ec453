//! The numbers that keep one hostile client from costing more than a little.

use std::time::Duration;

/// What one sandbox may use of the proxy. The defaults are for production; tests make them small.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    /// Requests that are let through without waiting when there were none for a while, and in a second after that. Each is
    /// one record; programs that install packages make some hundred.
    pub requests_at_once: u32,
    pub requests_per_second: u32,
    /// From the first byte of a request's head to its end; for the first request, from the accepting.
    pub head: Duration,
    /// Between two requests on one connection.
    pub keep_alive: Duration,
    /// For resolving a name.
    pub lookup: Duration,
    /// For connecting, over all addresses of a name.
    pub connect: Duration,
    /// Without a byte to or from the target, while a plain request is under way.
    pub exchange_idle: Duration,
    /// Without a byte in either direction of a tunnel, also when one direction has ended.
    pub tunnel_idle: Duration,
    /// For writing a refusal, and for waiting until the client has taken it.
    pub farewell: Duration,
    /// Bytes of a head of a request.
    pub request_head: usize,
    /// Bytes of a head of a response.
    pub response_head: usize,
    /// Bytes of a body of a plain request.
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
            farewell: Duration::from_secs(2),
            request_head: 16 * 1024,
            response_head: 64 * 1024,
            request_body: 4 * 1024 * 1024 * 1024,
        }
    }
}
