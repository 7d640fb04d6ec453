//! Saves the files of a live session, for the tool `save_snapshot` that its agent or a member calls.

use gate::Permit;
use proto::socket::SnapshotTarget;
use proto::{SessionId, SessionType};
use sandbox::{Capability, SandboxError};
use store::StoreError;

use super::{HubError, Hubs};
use crate::runtime::{Saved, SnapshotError, keep_files};

impl Hubs {
    /// Copies the files of a running session, so that the session's next sandbox starts from the copy. The copy of a
    /// setup session becomes its configuration's snapshot.
    pub(crate) async fn save_snapshot(
        &self,
        permit: &Permit,
        session: SessionId,
    ) -> Result<Saved, SnapshotError> {
        let services = self.services();
        let runtime = &services.runtime;
        if !runtime.sandboxes.provider.capabilities().durable_snapshot {
            return Err(SandboxError::Unsupported(Capability::DurableSnapshot).into());
        }
        let not_running = |error: HubError| SnapshotError::NotRunning(error.to_string());
        let hub = self.open(session).await.map_err(not_running)?;
        let held = hub.sandbox().await.map_err(not_running)?.map_err(SnapshotError::NotRunning)?;
        let record = services.store.session(held.owner.org(), session).await?;
        let record = record.ok_or(StoreError::Missing("this session"))?;
        let target = match record.session_type {
            SessionType::Setup => SnapshotTarget::Configuration,
            SessionType::Coding | SessionType::Cli => SnapshotTarget::Session,
        };
        let id = keep_files(permit, runtime, &held.owner, &record, &held.sandbox, target).await?;
        Ok(Saved { id, target })
    }
}
