//! The agent as the session speaks to it, wherever it runs.

use std::io;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use opencode::api::{Client, Dial, Events};
use sandbox::{ByteStream, Provider, SandboxId};

use super::room::Room;

/// Opens connections to the agent's port.
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

/// A running agent with one session of its own for one of ours.
pub struct Agent {
    pub client: Client<Door>,
    /// What the agent calls the session.
    pub session: String,
    pub events: Events,
    /// The agent knew the session already and may be in the middle of a turn.
    pub remembers: bool,
    /// What its sandbox is called.
    pub sandbox: SandboxId,
    /// Its sandbox, where it is ours to hold.
    pub room: Option<Room>,
    /// When the time of its sandbox is over.
    pub expires_at: Option<DateTime<Utc>>,
}
