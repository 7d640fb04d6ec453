//! The connection from a session to its agent, wherever the agent runs.

use std::io;
use std::sync::Arc;

use agent::{AgentClient, AgentSession, ByteStream, Dial, EventStream};
use async_trait::async_trait;
use chrono::{DateTime, Utc};
use sandbox::{Provider, SandboxId};

use super::sandbox_handle::SandboxHandle;

/// Dials the agent's port.
pub(super) struct Dialer {
    pub(super) provider: Arc<dyn Provider>,
    pub(super) id: SandboxId,
    pub(super) port: u16,
}

#[async_trait]
impl Dial for Dialer {
    async fn dial(&self) -> io::Result<Box<dyn ByteStream>> {
        let stream = self.provider.dial(&self.id, self.port).await.map_err(io::Error::other)?;
        Ok(Box::new(stream))
    }
}

/// A running agent, with the agent's own session for one of ours.
pub struct Agent {
    pub client: Arc<dyn AgentClient>,
    pub session: AgentSession,
    pub events: Box<dyn EventStream>,
    /// The name of its sandbox.
    pub sandbox: SandboxId,
    /// Its sandbox, if this gateway runs it. `None` for an attached agent.
    pub handle: Option<SandboxHandle>,
    /// The time at which the lifetime of its sandbox ends.
    pub expires_at: Option<DateTime<Utc>>,
}
