//! `POST /v1/tool-calls`: the entry point of the Tool Gateway Contract. The response body has the same shape for every
//! outcome of a call.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use gate::{
    Attempt, AttemptError, BreakGlass, CALLBACK_RUN, CallOutcome, CallRequest, CallResult, EntryPoint, Retry,
    RunRequest, TURN_RUN, Target,
};
use ledger::Outcome::Failure;
use ledger::{ArtifactRef, Hash, MAX_ARTIFACTS, payload_hash};
use policy::{ActorClass, Claim, Versions};
use proto::http::{ToolCall, ToolCallReply};
use proto::{OrgId, ToolErrorCode};
use serde_json::Value;

use super::auth::Caller;
use super::body::explain;
use super::contract::{Identity, identity, is_name};
use super::{ApiError, body};
use crate::app::AppState;

/// A request body as bytes, or the status of the error if it could not be read. The handler records such a failure, so
/// the extractor does not reject it.
pub(super) struct Raw(Result<axum::body::Bytes, StatusCode>);

impl FromRequest<AppState> for Raw {
    type Rejection = std::convert::Infallible;

    async fn from_request(request: Request, app: &AppState) -> Result<Self, Self::Rejection> {
        let (parts, content) = request.into_parts();
        let read = body::read(app, &parts, content, app.config.max_body_bytes).await;
        Ok(Self(read.map_err(|error| error.log_and_split().0)))
    }
}

#[utoipa::path(post, path = "/v1/tool-calls", tag = "contract", request_body = ToolCall,
    responses((status = 200, body = ToolCallReply), (status = 202, body = ToolCallReply), (status = 400, body = ToolCallReply),
        (status = 403, body = ToolCallReply), (status = 408, body = ToolCallReply),
        (status = 409, body = ToolCallReply), (status = 413, body = ToolCallReply), (status = 429, body = ToolCallReply),
        (status = 502, body = ToolCallReply), (status = 503, body = ToolCallReply),
        (status = 504, body = ToolCallReply)))]
pub(super) async fn call(app: AppState, caller: Caller, Raw(content): Raw) -> Result<Response, ApiError> {
    let mut attempt = identity(&caller).attempt();
    let read = match content {
        Ok(bytes) => {
            read(&app, &caller, &bytes, &mut attempt).await?.map_err(|it| (StatusCode::BAD_REQUEST, it))
        }
        Err(status @ StatusCode::PAYLOAD_TOO_LARGE) => Err((status, "the body is too large".to_owned())),
        Err(status) => Err((status, "the body did not arrive whole".to_owned())),
    };
    match read {
        Ok(call) => Ok(answer(app.gate.call(call).await)),
        Err((status, problem)) => Ok(refuse_unparsed_body(&app, attempt, status, &problem).await),
    }
}

fn answer(result: CallResult) -> Response {
    let status = match result.outcome {
        CallOutcome::Success => StatusCode::OK,
        CallOutcome::Waiting(_) => StatusCode::ACCEPTED,
        CallOutcome::Conflict => StatusCode::CONFLICT,
        CallOutcome::Failed(ToolErrorCode::PolicyDenied) => StatusCode::FORBIDDEN,
        CallOutcome::Failed(ToolErrorCode::InvalidRequest) => StatusCode::BAD_REQUEST,
        CallOutcome::Failed(ToolErrorCode::ToolError) => StatusCode::BAD_GATEWAY,
        CallOutcome::Failed(ToolErrorCode::ToolTimeout) => StatusCode::GATEWAY_TIMEOUT,
        CallOutcome::Failed(ToolErrorCode::DependencyDown) | CallOutcome::Unavailable => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        CallOutcome::OverShare { retry_after, .. } => return too_many(retry_after, result.reply),
    };
    (status, Json(result.reply)).into_response()
}

fn too_many(retry_after: u64, body: impl serde::Serialize) -> Response {
    let headers = [(header::RETRY_AFTER, retry_after.to_string())];
    (StatusCode::TOO_MANY_REQUESTS, headers, Json(body)).into_response()
}

/// Refuses a body that is not a valid call. The refusal is recorded in the ledger with the fields that could be read,
/// and no run is created.
async fn refuse_unparsed_body(
    app: &AppState,
    attempt: Attempt,
    status: StatusCode,
    problem: &str,
) -> Response {
    let refused = app.gate.record_attempt(&attempt, Failure, problem).await;
    let (code, message) = match &refused {
        Ok(()) => (ToolErrorCode::InvalidRequest, problem.to_owned()),
        Err(AttemptError::Store(_)) => (ToolErrorCode::DependencyDown, problem.to_owned()),
        Err(over @ AttemptError::OverShare(_)) => (ToolErrorCode::DependencyDown, over.to_string()),
    };
    let reply = ToolCallReply {
        outcome: "failure".to_owned(),
        tool_name: attempt.tool.unwrap_or_default(),
        operation: attempt.operation.unwrap_or_default(),
        run_id: attempt.run_id,
        correlation_id: attempt.correlation,
        output_artifacts: Vec::new(),
        response_hash_sha256: None,
        error: Some(proto::http::ToolCallError { error_code: code, message, retryable: code.retryable() }),
    };
    match refused {
        Ok(()) => (status, Json(reply)).into_response(),
        Err(AttemptError::Store(_)) => (StatusCode::SERVICE_UNAVAILABLE, Json(reply)).into_response(),
        Err(AttemptError::OverShare(over)) => too_many(over.retry_after_seconds(), reply),
    }
}

/// Parses a call. The inner error is the explanation for the caller. The fields that can be read from any body are
/// added to `attempt`.
async fn read(
    app: &AppState,
    caller: &Caller,
    bytes: &[u8],
    attempt: &mut Attempt,
) -> Result<Result<CallRequest, String>, ApiError> {
    let payload = match ledger::parse(bytes) {
        Ok(payload) => payload,
        Err(error) => return Ok(Err(format!("the body is {error}"))),
    };
    describe(attempt, &payload);
    let Ok(hash) = payload_hash(&payload) else {
        return Ok(Err("the body has no canonical form".to_owned()));
    };
    attempt.request_hash = Some(hash);
    let request: ToolCall = match serde_path_to_error::deserialize(payload) {
        Ok(request) => request,
        Err(error) => {
            let (path, problem) = (error.path().to_string(), error.inner().to_string());
            return Ok(Err(explain(&path, &problem, "the body")));
        }
    };
    if let Err(problem) = check(&request, &hash) {
        return Ok(Err(problem));
    }
    let identity = identity(caller);
    let Some(org) = organization(app, &identity, &request).await? else {
        return Ok(Err("scope.organization_id must name the organization".to_owned()));
    };
    Ok(to_call(identity, org, request, hash))
}

/// Copies the readable fields of a body into `attempt`, also if it is not a valid call. The answer repeats them, so
/// that the caller knows which call it is about.
fn describe(attempt: &mut Attempt, payload: &Value) {
    let field = |name: &str, least: usize, most: usize| {
        let text = payload.get(name).and_then(Value::as_str)?;
        short(text, least, most).then(|| text.to_owned())
    };
    attempt.run_id = field("run_id", 8, 120).filter(|id| !is_ours(id));
    attempt.lane = field("lane_id", 1, 120);
    attempt.tool = field("tool_name", 1, 200);
    attempt.operation = field("operation", 1, 200);
    attempt.correlation = field("correlation_id", 0, 120);
    attempt.case = attempt.case.take().or_else(|| field("case_id", 4, 120));
}

/// Whether a run id has a prefix that is reserved for runs that the gateway itself creates.
fn is_ours(run_id: &str) -> bool {
    run_id.starts_with(CALLBACK_RUN) || run_id.starts_with(TURN_RUN)
}

/// Whether a text has `least` to `most` characters, none of them a control character.
fn short(text: &str, least: usize, most: usize) -> bool {
    (least..=most).contains(&text.chars().count()) && !text.chars().any(char::is_control)
}

fn check(request: &ToolCall, hash: &Hash) -> Result<(), String> {
    let optional =
        |text: &Option<String>, least, most| text.as_deref().is_none_or(|text| short(text, least, most));
    let scoped = |field: &str, least, most| match request.scope.get(field) {
        None | Some(Value::Null) => true,
        Some(value) => value.as_str().is_some_and(|text| short(text, least, most)),
    };
    let rules = [
        (short(&request.tool_name, 1, 200), "tool_name has 1 to 200 characters"),
        (short(&request.operation, 1, 200), "operation has 1 to 200 characters"),
        (short(&request.lane_id, 1, 120), "lane_id has 1 to 120 characters"),
        (short(&request.run_id, 8, 120), "run_id has 8 to 120 characters"),
        (!is_ours(&request.run_id), "run_id begins with a word that is ours"),
        (short(&request.actor.actor_id, 3, 120), "actor.actor_id has 3 to 120 characters"),
        (optional(&request.actor.agent_name, 0, 120), "actor.agent_name has at most 120 characters"),
        (optional(&request.case_id, 4, 120), "case_id has 4 to 120 characters"),
        (optional(&request.parent_run_id, 8, 120), "parent_run_id has 8 to 120 characters"),
        (optional(&request.retry_of, 8, 120), "retry_of has 8 to 120 characters"),
        (optional(&request.retry_reason, 0, 200), "retry_reason has at most 200 characters"),
        (optional(&request.correlation_id, 0, 120), "correlation_id has at most 120 characters"),
        (
            request.retry_of.is_none() || request.parent_run_id.is_none(),
            "a retry belongs to the run that it tries again",
        ),
        (
            request.scope.len() <= 64 && request.scope.keys().all(|name| short(name, 1, 80)),
            "scope has at most 64 fields with names of 1 to 80 characters",
        ),
        (scoped("case_id", 4, 120), "scope.case_id is a text of 4 to 120 characters"),
        (scoped("override_ticket_id", 1, 120), "scope.override_ticket_id is a text of 1 to 120 characters"),
        (scoped("override_reason", 1, 400), "scope.override_reason is a text of 1 to 400 characters"),
        (request.input_artifacts.len() <= MAX_ARTIFACTS, "at most 64 input_artifacts"),
        (
            request.contract_version.as_deref().is_none_or(|version| version == "v1"),
            "contract_version must be v1",
        ),
        (
            request.request_hash_sha256.as_ref().is_none_or(|given| *given == hash.to_string()),
            "request_hash_sha256 is not the hash of this request",
        ),
    ];
    match rules.iter().find(|(holds, _)| !holds) {
        None => Ok(()),
        Some((_, rule)) => Err((*rule).to_owned()),
    }
}

async fn organization(
    app: &AppState,
    identity: &Identity,
    request: &ToolCall,
) -> Result<Option<OrgId>, ApiError> {
    let named = request.scope.get("organization_id").and_then(Value::as_str);
    super::contract::organization(app, identity, named).await
}

/// Reads the id and the hash of an artifact reference. Its other fields are the caller's claims and are dropped; the
/// gate looks them up.
fn parse_artifact_reference(given: Value) -> Option<ArtifactRef> {
    let given: ArtifactRef = serde_json::from_value(given).ok()?;
    is_name(given.artifact_id.as_str()).then(|| gate::unknown_reference(given.artifact_id, given.hash_sha256))
}

fn to_call(identity: Identity, org: OrgId, request: ToolCall, hash: Hash) -> Result<CallRequest, String> {
    let class = match request.actor.actor_type.as_str() {
        "agent" => ActorClass::Agent,
        "human" => ActorClass::Human,
        "system" => ActorClass::System,
        _ => return Err("actor.actor_type is agent, human or system".to_owned()),
    };
    let artifacts: Option<Vec<ArtifactRef>> =
        request.input_artifacts.into_iter().map(parse_artifact_reference).collect();
    let artifacts = artifacts.ok_or("input_artifacts holds something that is no artifact_ref")?;
    let said = |field: &str| request.scope.get(field).and_then(Value::as_str).map(str::to_owned);
    let case = match (request.case_id, said("case_id")) {
        (Some(case), Some(other)) if case != other => {
            return Err("case_id and scope.case_id are two cases".to_owned());
        }
        // The case of a sandbox is its session, even if the request does not name it.
        (case, other) => case.or(other).or_else(|| identity.session.map(|session| session.to_string())),
    };
    // A scope field that a lane requires must be a text with content. Booleans and blank texts do not count.
    let given = |value: &Value| value.as_str().is_some_and(|text| !text.trim().is_empty());
    let mut scope: BTreeSet<String> =
        request.scope.iter().filter(|(_, value)| given(value)).map(|(name, _)| name.clone()).collect();
    scope.insert("run_id".to_owned());
    if case.is_some() {
        scope.insert("case_id".to_owned());
    }
    let break_glass = BreakGlass { ticket: said("override_ticket_id"), reason: said("override_reason") };
    Ok(CallRequest {
        entry_point: EntryPoint::ToolCalls,
        caller: identity.caller(org),
        claimed: Some(Claim { actor_type: class, actor_id: request.actor.actor_id }),
        agent_name: request.actor.agent_name,
        target: Target {
            lane: request.lane_id,
            tool: request.tool_name,
            operation: request.operation,
            parameters: Value::Object(request.parameters),
            input_artifacts: artifacts,
        },
        run: RunRequest {
            id: request.run_id,
            parent: request.parent_run_id,
            retry_of: request
                .retry_of
                .map(|run_id| Retry { run_id, reason: request.retry_reason.unwrap_or_default() }),
            correlation: request.correlation_id,
        },
        case,
        scope,
        break_glass,
        demanded: request.policy_versions.map(|pins| Versions { lanes: pins.lanes, roles: pins.roles }),
        request_hash: hash,
        action: None,
    })
}
