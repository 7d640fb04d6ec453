//! What a member does in the sandbox of a session: save its files, start its services, run a command, and write a file.
//! Each is a call of the gate, like the same act of the session's agent.

use gate::{CallOutcome, CallRequest, CallResult, RunRequest};
use proto::socket::{AutoStartCommand, AutoStartEntry, AutoStartMode, SnapshotTarget};
use proto::{OrgId, SessionId, UserId};
use sandboxd::Sandboxd;
use sandboxd::protocol::Stat;
use serde_json::{Value, json};
use store::StoreError;

use super::{SessionError, SessionServices};
use crate::runtime::auto_start::{self, StartServices};
use crate::runtime::{Command, CommandEnd, FileWrite, RunCommand, RunningCommand, WriteFile};

const CHANGE_LANE: &str = "session.change";

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

/// Starts a command in the running sandbox of a session. It is killed when the result is dropped.
pub(crate) async fn run_command(
    services: &SessionServices,
    (org, session): (OrgId, SessionId),
    user: UserId,
    command: Command,
) -> Result<RunningCommand, SessionError> {
    let supervisor = supervisor(services, session).await?;
    // The command line may contain secrets, which must not be in the ledger.
    let hash = ledger::sha256(json!(command.exec.argv).to_string().as_bytes());
    let parameters = json!({"commandSha256": hash.to_string()});
    let call = call(services, (org, session), user, "run_command", parameters).await?;
    let (effect, reader) = RunCommand::new(supervisor, command);
    let gate = services.gate.clone();
    let call = tokio::spawn(async move { gate.call_with(call, Box::new(effect)).await });
    match reader.started(call).await {
        Ok(running) => Ok(running),
        Err((Some(CommandEnd::Failed(error)), _)) => Err(SessionError::Supervisor(error)),
        Err((_, Some(result))) => Err(session_error(&result)),
        Err((_, None)) => Err(SessionError::Internal("the call of a command panicked".to_owned())),
    }
}

/// Writes a file into the running sandbox of a session.
pub(crate) async fn write_file(
    services: &SessionServices,
    (org, session): (OrgId, SessionId),
    user: UserId,
    write: FileWrite,
) -> Result<Stat, SessionError> {
    let supervisor = supervisor(services, session).await?;
    let hash = ledger::sha256(&write.content);
    let parameters = json!({"bytes": write.content.len(), "contentSha256": hash.to_string()});
    let call = call(services, (org, session), user, "write_file", parameters).await?;
    let (effect, answer) = WriteFile::new(supervisor, write);
    let result = services.gate.call_with(call, Box::new(effect)).await;
    let answer = answer.lock().take();
    answer.ok_or_else(|| session_error(&result))?.map_err(SessionError::Supervisor)
}

async fn supervisor(services: &SessionServices, session: SessionId) -> Result<Sandboxd, SessionError> {
    let inside = services.hubs.open(session).await?.inside().await?;
    let stopped = |reason| SessionError::CallFailed(format!("The sandbox is not running: {reason}"));
    Ok(inside.map_err(stopped)?.supervisor)
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
    Ok(CallRequest::of_session(caller, session, (CHANGE_LANE, tool), parameters, run))
}

/// The data of a successful call.
fn done(result: &CallResult) -> Result<proto::JsonObject, SessionError> {
    if result.outcome != CallOutcome::Success {
        return Err(session_error(result));
    }
    Ok(result.output.as_ref().and_then(|output| output.data.clone()).unwrap_or_default())
}

/// Why a call did not succeed.
fn session_error(result: &CallResult) -> SessionError {
    let reason = result.text().to_owned();
    match result.outcome {
        CallOutcome::OverShare { .. } => SessionError::TooManyCalls(reason),
        CallOutcome::Unavailable => SessionError::GateUnavailable(reason),
        CallOutcome::Success | CallOutcome::Conflict | CallOutcome::Failed(_) | CallOutcome::Waiting(_) => {
            SessionError::CallFailed(reason)
        }
    }
}
