//! The reasons for which the server itself closes a socket.

/// A close code and the text that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCode {
    pub code: u16,
    pub reason: &'static str,
}

impl CloseCode {
    /// Another instance owns the session now; the client is to connect again.
    pub const OWNERSHIP_TRANSFERRED: Self = Self { code: 1001, reason: "Session ownership transferred" };
    /// The socket was accepted and the session could then not be had.
    pub const SETUP_FAILED: Self = Self { code: 1011, reason: "Failed to setup connection" };
    /// What a proxy socket leads to is gone.
    pub const UPSTREAM_ERROR: Self = Self { code: 1011, reason: "Upstream error" };
    /// The gateway cannot write. A client that comes back is told more, and may stay.
    pub const DISK_FULL: Self = Self { code: 1013, reason: "The gateway's disk is full" };
    /// The membership, the key or the login that the socket was opened with has ended.
    pub const CREDENTIAL_ENDED: Self = Self { code: 4401, reason: "credential ended" };
    /// The client reads too slowly; it may come back with its cursor and misses nothing.
    pub const SLOW_CONSUMER: Self = Self { code: 1013, reason: "slow consumer" };
}
