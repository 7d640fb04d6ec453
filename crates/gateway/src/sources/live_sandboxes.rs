//! What tools need of live sessions. The implementation is in a layer above this one.

use futures_util::future::BoxFuture;
use gate::Permit;
use proto::SessionId;
use store::OpenTranscript;

use crate::runtime::{ConnectedSandbox, Saved, SnapshotError};

/// The running sandboxes of sessions. Only an executing call has a permit.
pub(crate) trait LiveSandboxes: Send + Sync {
    /// Saves the files of a session's sandbox.
    fn save_snapshot<'a>(
        &'a self,
        permit: &'a Permit,
        session: SessionId,
    ) -> BoxFuture<'a, Result<Saved, SnapshotError>>;

    /// What the agent of a session has said so far in messages that it has not finished. The error is a sentence for the
    /// agent.
    fn open_transcript(&self, session: SessionId) -> BoxFuture<'_, Result<OpenTranscript, String>>;

    /// Connects to the supervisor of a session's sandbox. The error is a sentence for the agent.
    fn enter<'a>(
        &'a self,
        permit: &'a Permit,
        session: SessionId,
    ) -> BoxFuture<'a, Result<ConnectedSandbox, String>>;
}
