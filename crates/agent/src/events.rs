//! The event stream of an agent, before it is translated.

use async_trait::async_trait;
use bytes::Bytes;

use crate::AgentError;

/// The maximum number and size of the events of a batch. A batch usually is what one read returned.
pub const MAX_BATCH_EVENTS: usize = 512;
pub const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// Events that are translated and broadcast together.
#[derive(Debug, Default)]
pub struct EventBatch {
    /// The events as the agent sent them. Only the agent's [`Translator`](crate::Translator) understands them.
    pub events: Vec<Bytes>,
    /// Why events were skipped, for example because they were too long. The stream continues after them.
    pub skipped: Vec<AgentError>,
}

/// An open event stream. Dropping it closes it.
#[async_trait]
pub trait EventStream: Send + Sync {
    /// Waits for the next events, at most [`MAX_BATCH_EVENTS`] of them and, beyond the first, [`MAX_BATCH_BYTES`].
    /// Returns `None` if the agent closed the stream, and an error if it broke. The gateway drops this future whenever
    /// something else happens to the session, so no event may be lost with it.
    async fn next(&mut self) -> Result<Option<EventBatch>, AgentError>;
}
