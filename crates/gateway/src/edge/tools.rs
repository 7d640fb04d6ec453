//! `POST /proliferate/{id}/tools/{tool}`: a tool inside the sandbox asks for its work to be done.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{FromRequest as _, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use ledger::payload_hash;
use proto::SessionId;
use proto::http::{ErrorBody, ToolCallback, ToolCallbackReply};
use serde_json::{Value, json};
use store::SandboxSession;

use super::auth::{Caller, SessionAttempt};
use super::contract::{identity, is_name};
use super::params::Path;
use super::{ApiError, Body};
use crate::app::AppState;
use crate::gate::{self, Attempt, Call, Door, Gate, Outcome};
use crate::sources::{PLATFORM_TOOLS, offered};

/// The longest id of a call.
const LONGEST_ID: usize = 200;

/// Does the work of a tool, once for each `tool_call_id`. A tool that fails answers 200 with `success: false`.
#[utoipa::path(post, path = "/proliferate/{id}/tools/{tool}", tag = "agent", request_body = ToolCallback,
    params(("id" = SessionId, Path), ("tool" = String, Path)),
    responses((status = 200, body = ToolCallbackReply), (status = 400, body = ErrorBody),
        (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn callback(
    app: AppState,
    attempt: SessionAttempt,
    path: Result<Path<(String, String)>, ApiError>,
    request: Request,
) -> Result<Response, ApiError> {
    let SessionAttempt { caller, session } = attempt;
    let asked = path.as_ref().ok().map(|Path((_, tool))| tool.clone()).filter(|tool| is_name(tool));
    let call = match read(&app, session, path, request).await {
        Ok(call) => call,
        Err(refusal) => return Err(record(&app, &caller, asked, refusal).await),
    };
    let answered = Gate::call(&app, call).await;
    match answered.outcome {
        Outcome::Conflict => Err(ApiError::conflict(
            "This tool_call_id was used before with other arguments; nothing was done",
        )),
        Outcome::OverShare { .. } => {
            Err(ApiError::too_many(answered.body["result"].as_str().unwrap_or("Too many refused calls")))
        }
        // Nothing was done and trying again helps: the tool inside does that on its own.
        Outcome::Unavailable => {
            Err(ApiError::unavailable("What this tool needs", "a callback could not be done"))
        }
        _ => Ok((StatusCode::OK, Json(answered.body)).into_response()),
    }
}

/// From a request to a call.
async fn read(
    app: &AppState,
    session: Result<Option<SandboxSession>, ApiError>,
    path: Result<Path<(String, String)>, ApiError>,
    request: Request,
) -> Result<Call, ApiError> {
    let session = session?;
    let Path((_, tool)) = path?;
    let Body(request) = Body::<ToolCallback>::from_request(request, app).await?;
    let id = &request.tool_call_id;
    if id.is_empty() || id.chars().count() > LONGEST_ID || id.chars().any(char::is_control) {
        return Err(ApiError::bad_request("Missing or invalid tool_call_id"));
    }
    let Some(session) = session else {
        return Err(ApiError::forbidden("Tool routes require sandbox authentication"));
    };
    if !PLATFORM_TOOLS.iter().any(|known| known.name == tool) {
        return Err(ApiError::not_found("Unknown tool"));
    }
    to_call(app, &session, &tool, request)
}

/// Every attempt is recorded, also one that is no call. Where that is not possible the caller may try again.
async fn record(app: &AppState, caller: &Caller, tool: Option<String>, refusal: ApiError) -> ApiError {
    let (status, problem) = refusal.told();
    if status.is_server_error() {
        return refusal;
    }
    let denied = status == StatusCode::FORBIDDEN;
    let came_to = if denied { ledger::Outcome::Deny } else { ledger::Outcome::Failure };
    let identity = identity(caller);
    let attempt = Attempt { operation: tool.clone(), tool, ..Attempt::of(&identity) };
    match app.gate.refuse_unreadable(identity.into(), &attempt, came_to, problem).await {
        Ok(()) => refusal,
        Err(error) => error.into(),
    }
}

fn to_call(
    app: &AppState,
    session: &SandboxSession,
    tool: &str,
    request: ToolCallback,
) -> Result<Call, ApiError> {
    let (role, lane) = gate::agent_role(session.session_type, session.automation_id.is_some());
    let payload = json!({"tool": tool, "tool_call_id": request.tool_call_id, "args": request.args});
    let hash = payload_hash(&payload).map_err(|error| ApiError::bad_request(format!("args: {error}")))?;
    let of_this_mode = offered(session.session_type).any(|known| known.name == tool);
    Ok(Call {
        door: Door::Callback,
        org: session.org_id,
        session: Some(session.id),
        sandbox: Some(*session),
        actor: gate::agent(session.id),
        claimed: None,
        agent_name: Some("opencode".to_owned()),
        role,
        lane: lane.to_owned(),
        tool: tool.to_owned(),
        operation: tool.to_owned(),
        case: Some(session.id.to_string()),
        run_id: gate::callback_run(session.id, tool, &request.tool_call_id),
        parent: app.gate.turn_of(session.id),
        above: None,
        retry_of: None,
        correlation: Some(request.tool_call_id.chars().take(120).collect()),
        scope: BTreeSet::from(["case_id".to_owned(), "run_id".to_owned()]),
        ticket: None,
        override_reason: None,
        demanded: None,
        writes: None,
        denial: (!of_this_mode).then(|| format!("{tool} is only available in setup sessions.")),
        input_artifacts: Vec::new(),
        parameters: Value::Object(request.args),
        request_hash: hash,
    })
}
