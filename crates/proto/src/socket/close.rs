//! The close codes with which the server closes a WebSocket.

/// A close code and its reason text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloseCode {
    pub code: u16,
    pub reason: &'static str,
}

impl CloseCode {
    /// Another instance owns the session now; the client must reconnect.
    pub const OWNERSHIP_TRANSFERRED: Self = Self { code: 1001, reason: "Session ownership transferred" };
    /// The WebSocket was accepted, but the session could not be loaded.
    pub const SETUP_FAILED: Self = Self { code: 1011, reason: "Failed to setup connection" };
    /// The gateway cannot write to its database. A client may reconnect and gets the details then.
    pub const DISK_FULL: Self = Self { code: 1013, reason: "The gateway's disk is full" };
    /// The membership, API key or login with which the WebSocket was opened is no longer valid.
    pub const CREDENTIAL_ENDED: Self = Self { code: 4401, reason: "credential ended" };
    /// The client reads too slowly. It can reconnect with its cursor and does not miss anything.
    pub const SLOW_CONSUMER: Self = Self { code: 1013, reason: "slow consumer" };
}
