//! Leaving a sandbox whose time is over: its files are kept, the session gets another one, and this one ends.
//!
//! The next sandbox has a name of its own. So nobody ever goes on with what a failed or unfinished end has left of the
//! old one, and nothing is lost wherever this is cut: before the name changes the session has its sandbox, and after
//! it the copy.

use std::sync::Arc;
use std::time::Duration;

use proto::SessionId;
use proto::socket::SnapshotTarget;
use sandbox::{SandboxError, SandboxId, SandboxInfo, SandboxState};
use store::{Owner, SessionRecord, StoreError};
use tokio::time::timeout;

use super::Runtime;
use super::launch::sandbox_of;
use super::prepare::SERVICE;
use super::snapshot::{SnapshotError, drop_orphans, keep_files};
use clock::crash_point;

/// How long the agent may take to end. Who answers is hostile.
const ENDING: Duration = Duration::from_secs(30);

/// Leaves the sandbox of a session in which nothing is to be done any more. The name of the one to start next.
pub(crate) async fn leave(runtime: Arc<Runtime>, owner: Owner) -> Result<SandboxId, SnapshotError> {
    let session = owner.session();
    let record =
        runtime.store.session(owner.org(), session).await?.ok_or(StoreError::Missing("this session"))?;
    let (old, next) = (sandbox_of(&record)?, successor(&record)?);
    let has_files = |listed: &SandboxInfo| listed.id == old && listed.state != SandboxState::Incomplete;
    if !runtime.sandboxes.provider.list().await?.iter().any(has_files) {
        tracing::warn!(%session, sandbox = %old, "a sandbox was gone before its time was over");
        runtime.store.set_sandbox_expiry(&owner, None).await?;
        return Ok(old);
    }
    // Many may be left at once, after a start above all, and a disk is not faster for that.
    let _turn = runtime.sandboxes.leaving.acquire().await;
    if timeout(ENDING, end_agent(&runtime, &old)).await.is_err() {
        tracing::warn!(sandbox = %old, "a supervisor does not answer; its files are copied as they are");
    }
    keep_files(&runtime, &owner, &record, &old, SnapshotTarget::Session).await?;
    crash_point("sandbox-saved");
    runtime.store.new_sandbox_generation(&owner, Some(next.as_str())).await?;
    crash_point("sandbox-left");
    if let Err(error) = runtime.sandboxes.provider.terminate(&old).await {
        tracing::error!(%session, sandbox = %old, %error, "a sandbox is left behind; the next start ends it");
    }
    Ok(next)
}

/// An agent that writes while its files are copied would find them half written. One that cannot be asked is dead, or
/// its files are copied as they are.
async fn end_agent(runtime: &Runtime, sandbox: &SandboxId) {
    match runtime.sandboxes.reach(sandbox).await {
        Ok(inside) => {
            if let Err(error) = inside.service_stop(SERVICE).await {
                tracing::warn!(%sandbox, %error, "the agent could not be ended before its files are copied");
            }
        }
        Err(error) => tracing::debug!(%sandbox, %error, "no supervisor, so no agent"),
    }
}

/// Generations rise, so no sandbox of the session was ever called this.
fn successor(record: &SessionRecord) -> Result<SandboxId, SandboxError> {
    SandboxId::new(format!("{}-{}", record.id, record.sandbox_generation + 1))
}

/// Ends the sandboxes that sessions have left and that did not end then, and removes what deleted ones have left.
pub(crate) async fn end_left_behind(runtime: &Runtime) -> Result<(), SnapshotError> {
    drop_orphans(runtime).await?;
    for listed in runtime.sandboxes.provider.list().await? {
        if runtime.closing.is_cancelled() {
            return Ok(());
        }
        let Some((session, number)) = numbered(listed.id.as_str()) else { continue };
        let record = runtime.store.session_any(session).await?;
        let now = record.and_then(|record| numbered(record.sandbox_id?.as_str()));
        // Not what is newer: the database may be an older one, put back.
        if now.is_some_and(|(_, now)| number < now) {
            runtime.sandboxes.provider.terminate(&listed.id).await?;
            tracing::info!(%session, sandbox = %listed.id, "a sandbox that its session had left was ended");
        }
    }
    Ok(())
}

/// Whose sandbox this is by its name, and in which generation it was named: the first one has no number.
fn numbered(name: &str) -> Option<(SessionId, u64)> {
    let (session, rest) = name.split_at_checked(SESSION_ID)?;
    let number = match rest {
        "" => 0,
        rest => rest.strip_prefix('-')?.parse().ok()?,
    };
    Some((session.parse().ok()?, number))
}

/// The length of a session's id as text.
const SESSION_ID: usize = 36;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_whose_they_are_and_which_came_first() {
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        let session = id.parse().unwrap();
        assert_eq!(numbered(id), Some((session, 0)));
        assert_eq!(numbered(&format!("{id}-12")), Some((session, 12)));
        for other in [
            "pool-01890a5dac96774bbcceb302099a8057",
            "",
            "x",
            &id[1..],
            &format!("{id}-"),
            &format!("{id}x1"),
        ] {
            assert_eq!(numbered(other), None, "{other}");
        }
    }
}
