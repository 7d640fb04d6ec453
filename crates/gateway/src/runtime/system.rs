//! Work that the gateway does in a sandbox on its own account. It runs under the role `SYSTEM`: the gate decides
//! about it and records it, like the same act of an agent or a person.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallOutcome, CallRequest, Failure, Output, Outside, Permit, RunRequest, system_caller};
use parking_lot::Mutex;
use proto::socket::{AutoStartCommand, AutoStartMode, SnapshotTarget};
use sandbox::{SandboxId, SnapshotId};
use sandboxd::Sandboxd;
use serde_json::json;
use store::{Owner, SessionRecord};

use super::Runtime;
use super::auto_start::StartServices;
use super::snapshot::{SnapshotError, keep_files};

const SYSTEM_LANE: &str = "platform.system";
/// The limit for a copy. It is longer than for a snapshot that an agent waits for: nobody waits for this one, and a large
/// workspace on a slow disk must not be lost.
const SAVE_TIMEOUT: Duration = Duration::from_hours(1);
/// How many times a save is attempted while the gate is not available, and the pause between attempts.
const MAX_ATTEMPTS: u32 = 10;
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Saves the files of a session before its sandbox ends.
pub(super) async fn save_files(
    runtime: &Arc<Runtime>,
    owner: Owner,
    session: SessionRecord,
    sandbox: SandboxId,
) -> Result<SnapshotId, SnapshotError> {
    for _ in 1..MAX_ATTEMPTS {
        match try_save(runtime, owner, session.clone(), sandbox.clone()).await {
            Some(saved) => return saved,
            None => tokio::time::sleep(RETRY_DELAY).await,
        }
    }
    let unavailable = || Err(SnapshotError::Refused("the gate is not available".to_owned()));
    try_save(runtime, owner, session, sandbox).await.unwrap_or_else(unavailable)
}

/// `None` if the gate cannot decide now, for example because the safety lock has not been read in time.
async fn try_save(
    runtime: &Arc<Runtime>,
    owner: Owner,
    session: SessionRecord,
    sandbox: SandboxId,
) -> Option<Result<SnapshotId, SnapshotError>> {
    let run = RunRequest::new_call(runtime.rng.uuid(runtime.clock.now()), Some(sandbox.to_string()));
    let caller = system_caller(session.org_id, session.id);
    let call = CallRequest::of_session(caller, session.id, (SYSTEM_LANE, "save_snapshot"), json!({}), run);
    let outcome = Arc::new(Mutex::new(None));
    let effect = SaveFiles { runtime: runtime.clone(), owner, session, sandbox, outcome: outcome.clone() };
    let result = runtime.gate.call_with(call, Box::new(effect)).await;
    let saved = outcome.lock().take();
    let refused = || Err(SnapshotError::Refused(result.text().to_owned()));
    saved.or_else(|| (result.outcome != CallOutcome::Unavailable).then(refused))
}

/// Starts the services of a session whose sandbox has their dependencies. The error is the reason why the gate refused.
pub(super) async fn start_services(
    runtime: &Arc<Runtime>,
    session: &SessionRecord,
    supervisor: Sandboxd,
    commands: Vec<AutoStartCommand>,
) -> Result<(), String> {
    let run = RunRequest::new_call(runtime.rng.uuid(runtime.clock.now()), None);
    let caller = system_caller(session.org_id, session.id);
    let mode = AutoStartMode::Start;
    // The commands may contain secrets, which must not be in the ledger.
    let parameters = json!({"mode": mode.as_str(), "commands": commands.len()});
    let call = CallRequest::of_session(caller, session.id, (SYSTEM_LANE, "start_services"), parameters, run);
    let (effect, entries) = StartServices::new(supervisor, commands, mode);
    let result = runtime.gate.call_with(call, Box::new(effect)).await;
    let Some(entries) = entries.lock().take() else { return Err(result.text().to_owned()) };
    for entry in entries.iter().filter(|entry| entry.exit_code.is_some()) {
        tracing::warn!(session = %session.id, service = entry.name, "a service was not started");
    }
    Ok(())
}

struct SaveFiles {
    runtime: Arc<Runtime>,
    owner: Owner,
    session: SessionRecord,
    sandbox: SandboxId,
    /// The typed outcome; the gate's result has only a text.
    outcome: Arc<Mutex<Option<Result<SnapshotId, SnapshotError>>>>,
}

impl Outside for SaveFiles {
    fn replay_safe(&self) -> bool {
        false
    }

    fn timeout(&self) -> Option<Duration> {
        Some(SAVE_TIMEOUT)
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        _: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        async move {
            let Self { runtime, owner, session, sandbox, outcome } = self;
            let saved = keep_files(permit, runtime, owner, session, sandbox, SnapshotTarget::Session).await;
            let result = match &saved {
                Ok(id) => Ok(Output { text: format!("Snapshot saved to session: {id}"), data: None }),
                Err(error) => Err(Failure::Refused(format!("Snapshot failed: {error}"))),
            };
            *outcome.lock() = Some(saved);
            result
        }
        .boxed()
    }
}
