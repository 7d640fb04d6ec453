//! `POST /proliferate/{id}/tools/{tool}`: a tool inside a sandbox calls the gateway, which does the tool's work.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{FromRequest as _, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use gate::{Attempt, BreakGlass, CallOutcome, CallRequest, CallResult, EntryPoint, RunRequest, Target};
use ledger::payload_hash;
use proto::http::{ErrorBody, ToolCallback, ToolCallbackReply};
use proto::{ErrorCode, SessionId, ToolErrorCode};
use serde_json::{Value, json};
use store::SandboxSession;
use utoipa::openapi::{OpenApi, RefOr, Schema};

use super::attempts::record_refusal;
use super::auth::SessionAttempt;
use super::contract::{identity, is_name};
use super::params::Path;
use super::{ApiError, Body};
use crate::app::AppState;
use crate::sources::{PLATFORM_TOOLS, PlatformTool, agent_tools, mode_refusal};

/// The most characters of a `tool_call_id`.
const LONGEST_ID: usize = 200;

/// Executes a platform tool, once for each `tool_call_id`. If the tool fails, the answer is 200 with `success: false`.
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
    let Callback { call, tool, session, version } = match read(&app, session, path, request).await {
        Ok(callback) => callback,
        Err(refusal) => {
            let attempt = Attempt { operation: asked.clone(), tool: asked, ..identity(&caller).attempt() };
            return Err(record_refusal(&app, &attempt, refusal).await);
        }
    };
    if let Some(refused) = not_offered(&app, &session, tool, version, &call.run.id).await? {
        let attempt = Attempt { operation: asked.clone(), tool: asked, ..identity(&caller).attempt() };
        app.gate.record_attempt(&attempt, ledger::Outcome::Deny, &refused).await?;
        return Ok(answer(ToolCallbackReply { success: false, result: refused, data: None }));
    }
    let result = app.gate.call(call).await;
    match result.outcome {
        CallOutcome::Conflict => Err(ApiError::conflict(
            "This tool_call_id was used before with other arguments; nothing was done",
        )),
        CallOutcome::OverShare { retry_after, .. } => {
            Err(ApiError::over_limit(ErrorCode::RateLimited, result.text(), retry_after))
        }
        // Nothing was done. The tool inside the sandbox retries on its own.
        CallOutcome::Unavailable => {
            Err(ApiError::unavailable("What this tool needs", "a callback could not be done"))
        }
        CallOutcome::Success | CallOutcome::Failed(_) | CallOutcome::Waiting(_) => {
            Ok(answer(reply(result, mode_refusal(session.mode(), tool))))
        }
    }
}

/// A callback that is well-formed. Its tool may still not be one of its session's.
struct Callback {
    call: CallRequest,
    tool: &'static PlatformTool,
    session: SandboxSession,
    /// The version of the tool's file in the sandbox.
    version: Option<u32>,
}

/// The reason why this session's agent must not call this tool of its mode, for the agent. A call that was executed
/// before the tool changed still gets its result.
async fn not_offered(
    app: &AppState,
    session: &SandboxSession,
    tool: &PlatformTool,
    version: Option<u32>,
    run: &str,
) -> Result<Option<String>, ApiError> {
    let outdated = version.filter(|version| *version != tool.version);
    if let Some(version) = outdated
        && app.store.run(session.org_id, run).await?.is_none()
    {
        return Ok(Some(format!(
            "Nothing was done: this sandbox has version {version} of {}, and the gateway has version {}. Go on without \
            the tool; it works again once the sandbox has been restarted.",
            tool.name, tool.version
        )));
    }
    let record = app.store.session_any(session.id).await?.ok_or_else(ApiError::session_not_found)?;
    let offered = agent_tools(session.mode(), record.agent_config.as_ref());
    let left_out =
        !offered.iter().any(|known| known.name == tool.name) && mode_refusal(session.mode(), tool).is_none();
    Ok(left_out.then(|| format!("{} is not one of the tools that this session was created with.", tool.name)))
}

fn answer(reply: ToolCallbackReply) -> Response {
    (StatusCode::OK, Json(reply)).into_response()
}

/// The reply for the tool inside the sandbox. If policy denied the call, `denial` replaces policy's text.
fn reply(result: CallResult, denial: Option<String>) -> ToolCallbackReply {
    let denied = result.outcome == CallOutcome::Failed(ToolErrorCode::PolicyDenied);
    let text = denial.filter(|_| denied).unwrap_or_else(|| result.text().to_owned());
    let data = result.output.and_then(|output| output.data);
    ToolCallbackReply { success: result.outcome == CallOutcome::Success, result: text, data }
}

/// Turns an HTTP request into a call.
async fn read(
    app: &AppState,
    session: Result<Option<SandboxSession>, ApiError>,
    path: Result<Path<(String, String)>, ApiError>,
    request: Request,
) -> Result<Callback, ApiError> {
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
    let tool = PlatformTool::find(&tool).ok_or_else(|| ApiError::not_found("Unknown tool"))?;
    let version = request.version;
    Ok(Callback { call: to_call(app, &session, tool, request)?, tool, session, version })
}

fn to_call(
    app: &AppState,
    session: &SandboxSession,
    tool: &PlatformTool,
    mut request: ToolCallback,
) -> Result<CallRequest, ApiError> {
    tool.rename_arguments(&mut request.args);
    let tool = tool.name;
    let (role, lane) = gate::agent_role(session.mode());
    let payload = json!({"tool": tool, "tool_call_id": request.tool_call_id, "args": request.args});
    let request_hash =
        payload_hash(&payload).map_err(|error| ApiError::bad_request(format!("args: {error}")))?;
    let caller = gate::Caller {
        org: session.org_id,
        session: Some(session.id),
        actor: gate::agent(session.id),
        role: role.to_owned(),
    };
    Ok(CallRequest {
        entry_point: EntryPoint::Callback,
        caller,
        claimed: None,
        agent_name: None,
        target: Target {
            lane: lane.to_owned(),
            tool: tool.to_owned(),
            operation: tool.to_owned(),
            parameters: Value::Object(request.args),
            input_artifacts: Vec::new(),
        },
        run: RunRequest {
            id: gate::callback_run(session.id, tool, &request.tool_call_id),
            parent: app.gate.turn_of(session.id),
            retry_of: None,
            correlation: Some(request.tool_call_id.chars().take(120).collect()),
        },
        case: Some(session.id.to_string()),
        scope: BTreeSet::from(["case_id".to_owned(), "run_id".to_owned()]),
        break_glass: BreakGlass::default(),
        demanded: None,
        request_hash,
        action: None,
    })
}

/// Adds the schemas of the platform tools' arguments to the API description.
pub(super) fn describe(document: &mut OpenApi) {
    let components = document.components.get_or_insert_default();
    for tool in PLATFORM_TOOLS {
        let mut schema = (tool.schema)();
        schema["description"] =
            json!(format!("The `args` of the tool `{}`. {}", tool.name, tool.description));
        if let Ok(schema) = serde_json::from_value::<Schema>(schema) {
            components.schemas.insert(format!("{}_args", tool.name), RefOr::T(schema));
        }
    }
}
