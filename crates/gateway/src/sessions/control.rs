//! Cancels, renames, starts, stops and deletes a session.

use gate::{AdminChange, Subject};
use proto::socket::WireStatus;
use proto::{OrgId, SessionId};

use super::{Requester, SessionError, SessionServices, Title};
use crate::hub::{Hub, HubError};

/// Cancels the running turn. Later prompts are not affected.
pub async fn cancel(services: &SessionServices, session: SessionId) -> Result<(), SessionError> {
    // A session that is not loaded has no running turn. But after a restart it may still have queued prompts that no
    // instance has resumed yet.
    if services.hubs.is_alive(session) || !services.store.queued_prompts(session).await?.is_empty() {
        services.hubs.open(session).await?.cancel().await?;
    }
    Ok(())
}

/// Changes the title of a session, and tells its watchers.
pub async fn rename(
    services: &SessionServices,
    org: OrgId,
    session: SessionId,
    title: Title,
) -> Result<(), SessionError> {
    let title = title.into_text();
    services.store.rename_session(org, session, &title).await?;
    if let Some(hub) = services.hubs.get(session) {
        hub.set_title(title).await?;
    }
    Ok(())
}

/// Saves the session's files, stops its sandbox and sets the outcome `completed`. If saving fails, the session continues,
/// unless `discard` is set: then the unsaved changes are lost.
pub async fn stop(services: &SessionServices, session: SessionId, discard: bool) -> Result<(), SessionError> {
    services.hubs.open(session).await?.stop(discard).await?.map_err(SessionError::NotSaved)
}

/// Deletes a session, its sandbox and its conversation. Its entries in the ledger remain, and the ledger records who
/// deleted it.
pub async fn delete(
    services: &SessionServices,
    org: OrgId,
    session: SessionId,
    requester: &Requester,
) -> Result<(), SessionError> {
    let change = AdminChange::new(Subject::Session, "delete", session.to_string());
    let event = services.gate.admin_event(org, &requester.actor(), &change);
    Ok(services.hubs.open(session).await?.delete(event).await?)
}

/// Starts the agent of a session that has not ended, and waits until it is running. The inner error is the reason why it
/// does not start, which clients that watch the session also get.
pub(super) async fn running(hub: &Hub) -> Result<Result<(), String>, HubError> {
    hub.wake().await?;
    let mut frames = hub.feed.listen();
    loop {
        match hub.state().await? {
            (WireStatus::Running, _) => return Ok(Ok(())),
            (WireStatus::Stopped, reason) if !reason.is_empty() => return Ok(Err(reason)),
            // Somebody stopped or paused the session before its sandbox was running, and it does not start by itself
            // again.
            (WireStatus::Stopped, _) => return Ok(Err("the session was stopped meanwhile".to_owned())),
            (WireStatus::Paused, _) => return Ok(Err("the session was paused meanwhile".to_owned())),
            _ => frames.changed().await.map_err(|_| HubError::Gone)?,
        }
    }
}
