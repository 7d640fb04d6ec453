//! Cancels, renames, stops and deletes a session.

use gate::{AdminChange, Subject};
use proto::{OrgId, SessionId};

use super::{Requester, SessionError, SessionServices, Title};

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
