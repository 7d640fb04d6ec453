//! Retires a sandbox whose lifetime is over: saves its files, gives the session the name of another sandbox, and ends
//! this one.
//!
//! The next sandbox has a new name, so no session ever continues with the remains of a sandbox whose end failed or was
//! interrupted. A crash at any point loses nothing: before the name changes the session has its sandbox, and
//! afterwards it has the copy.

use std::sync::Arc;
use std::time::Duration;

use proto::SessionId;
use sandbox::{SandboxError, SandboxId, SandboxInfo, SandboxState};
use store::{Owner, SessionRecord, StoreError};
use tokio::time::timeout;

use super::Runtime;
use super::launch::sandbox_of;
use super::prepare::AGENT_SERVICE;
use super::snapshot::{SnapshotError, drop_orphans};
use super::system::save_files;
use clock::crash_point;

/// How long the agent may take to stop. The sandbox is untrusted and may never answer.
const AGENT_STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the end of a sandbox is awaited. Its removal goes on in the background.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// Retires the sandbox of a session that has no work in it any more. Returns the name of the sandbox to start next.
pub(crate) async fn retire_sandbox(runtime: Arc<Runtime>, owner: Owner) -> Result<SandboxId, SnapshotError> {
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
    // Many sandboxes may be retired at once, above all after a start of the gateway. Limit the concurrent copies,
    // because the disk is the bottleneck.
    let _turn = runtime.sandboxes.retiring.acquire().await;
    if timeout(AGENT_STOP_TIMEOUT, end_agent(&runtime, &old)).await.is_err() {
        tracing::warn!(sandbox = %old, "a supervisor does not answer; its files are copied as they are");
    }
    save_files(&runtime, owner, record, old.clone()).await?;
    crash_point("sandbox-saved");
    runtime.store.new_sandbox_generation(&owner, Some(next.as_str())).await?;
    crash_point("sandbox-retired");
    if let Err(error) = runtime.sandboxes.provider.terminate(&old).await {
        tracing::error!(%session, sandbox = %old, %error, "cannot end a retired sandbox; the next start ends it");
    }
    Ok(next)
}

/// Stops the agent before its files are copied, so that the copy has no half-written files. If the supervisor cannot
/// be reached, the agent is dead or the files are copied as they are.
async fn end_agent(runtime: &Runtime, sandbox: &SandboxId) {
    match runtime.sandboxes.reach(sandbox).await {
        Ok(inside) => {
            if let Err(error) = inside.service_stop(AGENT_SERVICE).await {
                tracing::warn!(%sandbox, %error, "the agent could not be ended before its files are copied");
            }
        }
        Err(error) => tracing::debug!(%sandbox, %error, "no supervisor, so no agent"),
    }
}

/// The name of the session's next sandbox. Generations only increase, so no sandbox of the session has ever had this
/// name.
fn successor(record: &SessionRecord) -> Result<SandboxId, SandboxError> {
    SandboxId::new(format!("{}-{}", record.id, record.sandbox_generation + 1))
}

/// Ends retired sandboxes whose end failed earlier, and removes the snapshots of deleted sessions.
pub(crate) async fn end_retired_sandboxes(runtime: &Runtime) -> Result<(), SnapshotError> {
    drop_orphans(runtime).await?;
    for listed in runtime.sandboxes.provider.list().await? {
        if runtime.closing.is_cancelled() {
            return Ok(());
        }
        let Some((session, number)) = parse_name(listed.id.as_str()) else { continue };
        let record = runtime.store.session_any(session).await?;
        let now = record.and_then(|record| parse_name(record.sandbox_id?.as_str()));
        // Sandboxes of a newer generation stay: the database may have been restored from an older backup.
        if now.is_some_and(|(_, now)| number < now) {
            runtime.sandboxes.provider.terminate(&listed.id).await?;
            tracing::info!(%session, sandbox = %listed.id, "ended a retired sandbox");
        }
    }
    Ok(())
}

/// Ends a sandbox, and gives up when that takes too long: nobody may wait for ever for it.
pub(crate) async fn end_sandbox(runtime: &Runtime, id: &SandboxId) -> Result<(), SandboxError> {
    let ended = timeout(END_TIMEOUT, runtime.sandboxes.provider.terminate(id)).await;
    ended.unwrap_or(Err(SandboxError::Timeout("its end")))
}

/// Ends all sandboxes of a session: those with its name and the one that it took from the pool.
pub(crate) async fn end_sandboxes_of(runtime: &Runtime, record: &SessionRecord) -> Result<(), SandboxError> {
    for listed in runtime.sandboxes.provider.list().await? {
        let name = listed.id.as_str();
        let is_named_after = parse_name(name).is_some_and(|(of, _)| of == record.id);
        if is_named_after || record.sandbox_id.as_deref() == Some(name) {
            end_sandbox(runtime, &listed.id).await?;
        }
    }
    Ok(())
}

/// The session and the generation in a sandbox's name. The first sandbox's name has no number, which counts as 0.
fn parse_name(name: &str) -> Option<(SessionId, u64)> {
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
    fn names_of_sandboxes_contain_their_session_and_number() {
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        let session = id.parse().unwrap();
        assert_eq!(parse_name(id), Some((session, 0)));
        assert_eq!(parse_name(&format!("{id}-12")), Some((session, 12)));
        for other in [
            "pool-01890a5dac96774bbcceb302099a8057",
            "",
            "x",
            &id[1..],
            &format!("{id}-"),
            &format!("{id}x1"),
        ] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
