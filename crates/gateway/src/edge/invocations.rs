//! Invocations of actions: an agent invokes, people approve and deny, both look up what became of it.

use axum::Json;
use axum::extract::{FromRequest as _, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use gate::{Approval, ApprovalError, Attempt, CallOutcome, CallResult};
use proto::http::{
    ApproveInvocation, ErrorBody, InvocationDenied, InvocationList, InvocationPending, InvocationReply,
    InvokeAction, InvokeReply,
};
use proto::{ErrorCode, InvocationId, InvocationStatus, SessionId, UserId};
use store::{Invocation, UserCredential};

use super::auth::{Caller, SessionAccess, SessionAttempt, User};
use super::contract::identity;
use super::params::Path;
use super::{ApiError, Body, OptionalBody};
use crate::actions::{ActionCaller, ActionError, is_invalid, shown_invocation};
use crate::app::AppState;

/// The maximum number of invocations in one list.
const MAX_LISTED: i64 = 500;
const MISSING: &str = "Missing integration or action";

/// Invokes an action. What needs approval waits: the answer is 202, and the invocation can be looked up.
#[utoipa::path(post, path = "/proliferate/{id}/actions/invoke", tag = "actions", params(("id" = SessionId, Path)),
    request_body = InvokeAction,
    responses((status = 200, body = InvokeReply), (status = 202, body = InvocationPending),
        (status = 400, body = ErrorBody), (status = 403, body = InvocationDenied), (status = 404, body = ErrorBody),
        (status = 502, body = ErrorBody)))]
pub(super) async fn invoke(
    app: AppState,
    attempt: SessionAttempt,
    request: Request,
) -> Result<Response, ApiError> {
    let SessionAttempt { caller, session } = attempt;
    match perform(&app, session, request).await {
        Ok((result, invocation)) => Ok(render(&app, &result, invocation)),
        Err(refusal) => Err(record(&app, &caller, refusal).await),
    }
}

async fn perform(
    app: &AppState,
    session: Result<Option<store::SandboxSession>, ApiError>,
    request: Request,
) -> Result<(CallResult, Option<Invocation>), ApiError> {
    let session = session?.ok_or_else(|| ApiError::forbidden("Only sandbox agents can invoke actions"))?;
    let caller = ActionCaller::Session(session);
    app.actions.take(&caller)?;
    let read = Body::<InvokeAction>::from_request(request, app).await;
    let Body(request) = read.map_err(|error| error.shape_as(MISSING))?;
    if request.integration.is_empty() || request.action.is_empty() {
        return Err(ApiError::bad_request(MISSING));
    }
    app.actions.invoke(&caller, request).await.map_err(|error| match error {
        ActionError::Unknown(message) => ApiError::not_found(&message),
        ActionError::Disabled(_) => ApiError::forbidden(&error.to_string()),
        ActionError::Source(error) => ApiError::unavailable("The integration", error.to_string()),
        ActionError::Store(error) => error.into(),
    })
}

/// Records a refused request in the ledger, and returns the refusal.
async fn record(app: &AppState, caller: &Caller, refusal: ApiError) -> ApiError {
    let (status, problem) = refusal.status_and_text();
    if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
        return refusal;
    }
    let denied = status == StatusCode::FORBIDDEN;
    let outcome = if denied { ledger::Outcome::Deny } else { ledger::Outcome::Failure };
    let tool = Some("actions.invoke".to_owned());
    let attempt = Attempt { operation: tool.clone(), tool, ..identity(caller).attempt() };
    match app.gate.record_attempt(&attempt, outcome, problem).await {
        Ok(()) => refusal,
        Err(error) => error.into(),
    }
}

fn render(app: &AppState, result: &CallResult, invocation: Option<Invocation>) -> Response {
    let Some(invocation) = invocation else { return unrecorded(result).into_response() };
    let invocation = shown_invocation(&invocation, app.clock.now());
    let text = gate::shown_text(result.text());
    match invocation.status {
        InvocationStatus::Completed => {
            Json(InvokeReply { result: invocation.result.clone(), invocation }).into_response()
        }
        InvocationStatus::Pending => {
            let message = "Action requires approval".to_owned();
            (StatusCode::ACCEPTED, Json(InvocationPending { invocation, message })).into_response()
        }
        InvocationStatus::Approved => Json(InvocationReply { invocation }).into_response(),
        InvocationStatus::Denied => {
            let error = format!("Action denied: {text}");
            let body = InvocationDenied { invocation, error, code: ErrorCode::ActionDenied };
            (StatusCode::FORBIDDEN, Json(body)).into_response()
        }
        _ if is_invalid(result) => ApiError::bad_request(text).into_response(),
        _ => failed(&text).into_response(),
    }
}

fn failed(text: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_GATEWAY, ErrorCode::ActionFailed, format!("Action failed: {text}"))
}

/// The answer to a call that could not be recorded, so that nothing was done.
fn unrecorded(result: &CallResult) -> ApiError {
    match result.outcome {
        CallOutcome::OverShare { .. } => {
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, ErrorCode::TooManyPending, result.text())
        }
        _ => ApiError::unavailable("The gate", result.text()),
    }
}

/// Lists the invocations of a session, newest first. At most 500.
#[utoipa::path(get, path = "/proliferate/{id}/actions/invocations", tag = "actions", params(("id" = SessionId, Path)),
    responses((status = 200, body = InvocationList), (status = 404, body = ErrorBody)))]
pub(super) async fn list(app: AppState, access: SessionAccess) -> Result<Json<InvocationList>, ApiError> {
    let (org, session) = (access.session.org_id, access.session.id);
    let found = app.store.session_invocations(org, session, MAX_LISTED).await?;
    let now = app.clock.now();
    let invocations = found.iter().map(|invocation| shown_invocation(invocation, now)).collect();
    Ok(Json(InvocationList { invocations }))
}

/// Returns one invocation of a session.
#[utoipa::path(get, path = "/proliferate/{id}/actions/invocations/{invocationId}", tag = "actions",
    params(("id" = SessionId, Path), ("invocationId" = InvocationId, Path)),
    responses((status = 200, body = InvocationReply), (status = 404, body = ErrorBody)))]
pub(super) async fn get(
    app: AppState,
    access: SessionAccess,
    Path((_, id)): Path<(String, String)>,
) -> Result<Json<InvocationReply>, ApiError> {
    let found = of_session(&app, &access, &id).await?;
    Ok(Json(InvocationReply { invocation: shown_invocation(&found, app.clock.now()) }))
}

/// Approves an invocation and executes it, with other parameters if the body has some. It is decided again first: what is
/// stricter by now is 409. The first of two people who must approve gets 202.
#[utoipa::path(post, path = "/proliferate/{id}/actions/invocations/{invocationId}/approve", tag = "actions",
    params(("id" = SessionId, Path), ("invocationId" = InvocationId, Path)), request_body = Option<ApproveInvocation>,
    responses((status = 200, body = InvokeReply), (status = 202, body = InvocationPending),
        (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 410, body = ErrorBody), (status = 502, body = ErrorBody)))]
pub(super) async fn approve(
    app: AppState,
    access: SessionAccess,
    Path((_, id)): Path<(String, String)>,
    OptionalBody(approval): OptionalBody<ApproveInvocation>,
) -> Result<Response, ApiError> {
    let found = of_session(&app, &access, &id).await?;
    approve_found(&app, &access.caller, &found, approval).await
}

/// Denies an invocation, which is then never executed.
#[utoipa::path(post, path = "/proliferate/{id}/actions/invocations/{invocationId}/deny", tag = "actions",
    params(("id" = SessionId, Path), ("invocationId" = InvocationId, Path)),
    responses((status = 200, body = InvocationReply), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 410, body = ErrorBody)))]
pub(super) async fn deny(
    app: AppState,
    access: SessionAccess,
    Path((_, id)): Path<(String, String)>,
) -> Result<Response, ApiError> {
    let found = of_session(&app, &access, &id).await?;
    deny_found(&app, &access.caller, &found).await
}

/// Returns one invocation of the organization.
#[utoipa::path(get, path = "/v1/invocations/{invocationId}", tag = "actions",
    params(("invocationId" = InvocationId, Path)),
    responses((status = 200, body = InvocationReply), (status = 404, body = ErrorBody)))]
pub(super) async fn get_any(
    app: AppState,
    user: User,
    Path(id): Path<String>,
) -> Result<Json<InvocationReply>, ApiError> {
    let found = of_org(&app, &user, &id).await?;
    Ok(Json(InvocationReply { invocation: shown_invocation(&found, app.clock.now()) }))
}

/// Approves an invocation of the organization and executes it, with other parameters if the body has some. The first of
/// two people who must approve gets 202.
#[utoipa::path(post, path = "/v1/invocations/{invocationId}/approve", tag = "actions",
    params(("invocationId" = InvocationId, Path)), request_body = Option<ApproveInvocation>,
    responses((status = 200, body = InvokeReply), (status = 202, body = InvocationPending),
        (status = 400, body = ErrorBody), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 410, body = ErrorBody), (status = 502, body = ErrorBody)))]
pub(super) async fn approve_any(
    app: AppState,
    user: User,
    Path(id): Path<String>,
    OptionalBody(approval): OptionalBody<ApproveInvocation>,
) -> Result<Response, ApiError> {
    let found = of_org(&app, &user, &id).await?;
    approve_found(&app, &Caller::User(user), &found, approval).await
}

/// Denies an invocation of the organization.
#[utoipa::path(post, path = "/v1/invocations/{invocationId}/deny", tag = "actions",
    params(("invocationId" = InvocationId, Path)),
    responses((status = 200, body = InvocationReply), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 410, body = ErrorBody)))]
pub(super) async fn deny_any(
    app: AppState,
    user: User,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let found = of_org(&app, &user, &id).await?;
    deny_found(&app, &Caller::User(user), &found).await
}

fn not_found() -> ApiError {
    ApiError::not_found("Invocation not found")
}

/// An invocation of the session in the path, and of no other.
async fn of_session(app: &AppState, access: &SessionAccess, id: &str) -> Result<Invocation, ApiError> {
    let id = id.parse().map_err(|_| not_found())?;
    let found = app.store.invocation(access.session.org_id, id).await?;
    found.filter(|found| found.session_id == Some(access.session.id)).ok_or_else(not_found)
}

async fn of_org(app: &AppState, user: &User, id: &str) -> Result<Invocation, ApiError> {
    let id = id.parse().map_err(|_| not_found())?;
    app.store.invocation(user.org, id).await?.ok_or_else(not_found)
}

async fn approve_found(
    app: &AppState,
    caller: &Caller,
    found: &Invocation,
    ApproveInvocation { params, request_hash }: ApproveInvocation,
) -> Result<Response, ApiError> {
    let approval = Approval { by: approver(caller, found.key_id.is_some())?, params, request_hash };
    let approved = app.actions.approve(found.org_id, found.id, approval).await;
    let (result, invocation) = approved.map_err(|error| refused(error, "approve"))?;
    let now = app.clock.now();
    let waits = invocation.as_ref().filter(|found| found.status(now) == InvocationStatus::Pending);
    if let Some(waiting) = waits {
        let message = "Approved by one person; another owner or admin must approve it too".to_owned();
        let body = InvocationPending { invocation: shown_invocation(waiting, now), message };
        return Ok((StatusCode::ACCEPTED, Json(body)).into_response());
    }
    Ok(render(app, &result, invocation))
}

async fn deny_found(app: &AppState, caller: &Caller, found: &Invocation) -> Result<Response, ApiError> {
    let by = approver(caller, found.key_id.is_some())?;
    let denied = app.actions.deny(found.org_id, found.id, by).await;
    let denied = denied.map_err(|error| refused(error, "deny"))?.ok_or_else(not_found)?;
    let invocation = shown_invocation(&denied, app.clock.now());
    Ok(Json(InvocationReply { invocation }).into_response())
}

/// The person who decides about an invocation, which may have been requested with an API key.
pub(super) fn approver(caller: &Caller, by_key: bool) -> Result<UserId, ApiError> {
    let Caller::User(user) = caller else {
        return Err(ApiError::forbidden("Only people approve and deny invocations"));
    };
    if by_key && matches!(user.credential, UserCredential::ApiKey(_)) {
        return Err(ApiError::forbidden(
            "A request that was made with an API key needs a person's own login",
        ));
    }
    Ok(user.id)
}

fn refused(error: ApprovalError, act: &str) -> ApiError {
    match error {
        ApprovalError::NotFound => not_found(),
        ApprovalError::Decided(status) => {
            ApiError::conflict(format!("Cannot {act} invocation in status: {}", status.as_str()))
        }
        ApprovalError::Expired => {
            ApiError::new(StatusCode::GONE, ErrorCode::Expired, "Invocation has expired")
        }
        ApprovalError::OwnRequest => ApiError::forbidden(&error.to_string()),
        ApprovalError::ApprovedBefore => ApiError::conflict(error.to_string()),
        ApprovalError::Invalid(problem) => ApiError::bad_request(problem),
        ApprovalError::Changed(reason) => ApiError::conflict(reason),
        ApprovalError::Unavailable(cause) => ApiError::unavailable("The integration", cause),
        ApprovalError::Store(error) => error.into(),
    }
}
