//! What a member does in the sandbox of a session: save its files, and start its services. Both are calls of the gate, like
//! the same act of the session's agent.

use gate::{CallOutcome, CallRequest, CallResult, RunRequest};
use proto::socket::{AutoStartCommand, AutoStartEntry, AutoStartMode, SnapshotTarget};
use proto::{OrgId, SessionId, UserId};
use serde_json::{Value, json};
use store::StoreError;

use super::{SessionError, SessionServices};
use crate::runtime::auto_start::{self, StartServices};

const LANE: &str = "session.change";

/// Saves the files of a running session. Returns the id of the snapshot, and what starts from it.
pub async fn save_snapshot(
    services: &SessionServices,
    (org, session): (OrgId, SessionId),
    user: UserId,
) -> Result<(String, SnapshotTarget), SessionError> {
    let call = call(services, (org, session), user, "save_snapshot", json!({})).await?;
    let result = services.gate.call(call).await;
    let saved = done(&result)?.get("snapshotId").and_then(Value::as_str).map(str::to_owned);
    let target = done(&result)?.get("target").and_then(Value::as_str).and_then(|text| text.parse().ok());
    saved.zip(target).ok_or_else(|| SessionError::Internal("a snapshot has no id".to_owned()))
}

/// Runs the commands that start the services of a running session: those in the request, or else the configured ones.
pub async fn start_services(
    services: &SessionServices,
    (org, session): (OrgId, SessionId),
    user: UserId,
    sent: Vec<AutoStartCommand>,
    mode: AutoStartMode,
) -> Result<Vec<AutoStartEntry>, SessionError> {
    let inside = services.hubs.open(session).await?.inside().await?.map_err(SessionError::CallFailed)?;
    let record = services.store.session(org, session).await?.ok_or(StoreError::Missing("this session"))?;
    let commands = auto_start::commands(&services.runtime, &record, sent).await;
    let commands = commands.map_err(|error| SessionError::CallFailed(error.to_string()))?;
    // The commands may contain secrets, which must not be in the ledger.
    let parameters = json!({"mode": mode.as_str(), "commands": commands.len()});
    let call = call(services, (org, session), user, "start_services", parameters).await?;
    let (effect, entries) = StartServices::new(inside.supervisor, commands, mode);
    let result = services.gate.call_with(call, Box::new(effect)).await;
    done(&result)?;
    let entries = entries.lock().take();
    entries.ok_or_else(|| SessionError::Internal("services were started without a report".to_owned()))
}

async fn call(
    services: &SessionServices,
    (org, session): (OrgId, SessionId),
    user: UserId,
    tool: &str,
    parameters: Value,
) -> Result<CallRequest, SessionError> {
    let caller = services.gate.member_caller(org, session, user).await?;
    let run = RunRequest::new_call(services.rng.uuid(services.clock.now()), None);
    Ok(CallRequest::of_session(caller, session, (LANE, tool), parameters, run))
}

/// The data of a successful call.
fn done(result: &CallResult) -> Result<proto::JsonObject, SessionError> {
    if result.outcome != CallOutcome::Success {
        return Err(SessionError::CallFailed(result.text().to_owned()));
    }
    Ok(result.output.as_ref().and_then(|output| output.data.clone()).unwrap_or_default())
}
