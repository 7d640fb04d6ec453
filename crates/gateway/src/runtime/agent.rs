//! The connection from a session to its agent, wherever the agent runs.

use std::io;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use opencode::api::{Client, Dial, Events};
use sandbox::{ByteStream, Provider, SandboxId};

use super::room::Room;

/// Dials the agent's port.
#[derive(Clone)]
pub struct Door {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) id: SandboxId,
    pub(super) port: u16,
}

impl Dial for Door {
    type Stream = Box<dyn ByteStream>;

    async fn dial(&self) -> io::Result<Self::Stream> {
        self.provider.dial(&self.id, self.port).await.map_err(io::Error::other)
    }
}

/// A running agent, with the agent's own session for one of ours.
pub struct Agent {
    pub client: Client<Door>,
    /// The agent's id for the session.
    pub session: String,
    pub events: Events,
    /// The agent already knew the session, and may be in the middle of a turn.
    pub remembers: bool,
    /// The name of its sandbox.
    pub sandbox: SandboxId,
    /// Its sandbox, if this gateway runs it. `None` for an attached agent.
    pub room: Option<Room>,
    /// When its sandbox's lifetime ends.
    pub expires_at: Option<DateTime<Utc>>,
}
