//! Invocations of actions: an agent invokes, people approve and deny, both look up what became of it.

use axum::Json;
use axum::extract::{FromRequest as _, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use gate::{Approval, ApprovalError, Attempt, CallOutcome, CallResult, CallShare, Denial};
use proto::http::{
    ApproveInvocation, DenyInvocation, ErrorBody, InvocationDenied, InvocationList, InvocationPending,
    InvocationReply, InvokeAction, InvokeReply, OrgQuery,
};
use proto::{ErrorCode, InvocationId, InvocationStatus, JsonObject, OrgId, SessionId, UserId};
use serde::Deserialize;
use serde::de::IgnoredAny;
use store::{Invocation, UserCredential};

use super::attempts::{attempt_of, record_refusal};
use super::auth::{Attempted, Caller, SessionAccess, SessionAttempt, User};
use super::contract::identity_and_organization;
use super::params::{Path, Query};
use super::{ApiError, Body, OptionalBody};
use crate::actions::{ActionCaller, ActionError, is_invalid, shown_invocation};
use crate::app::AppState;

/// The maximum number of invocations in one list.
const MAX_LISTED: i64 = 500;
const MISSING_FIELDS: &str = "Missing integration or action";

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
    let invoked = perform(&app, session, request).await;
    recorded(&app, &attempt_of(&caller, "actions.invoke"), invoked).await
}

async fn perform(
    app: &AppState,
    session: Result<Option<store::SandboxSession>, ApiError>,
    request: Request,
) -> Result<Response, ApiError> {
    let session = session?.ok_or_else(|| ApiError::forbidden("Only sandbox agents can invoke actions"))?;
    let caller = ActionCaller::Session(session);
    app.actions.take(&caller).map_err(|over| {
        ApiError::over_limit(
            ErrorCode::RateLimited,
            "Too many action invocations. Try again later.",
            over.retry_after_seconds(),
        )
        .because(over.to_string())
    })?;
    let read = Body::<InvokeAction>::from_request(request, app).await;
    let Body(request) = read.map_err(|error| error.shape_as(MISSING_FIELDS))?;
    if request.integration.is_empty() || request.action.is_empty() {
        return Err(ApiError::bad_request(MISSING_FIELDS));
    }
    let invoked = app.actions.invoke(&caller, request).await.map_err(|error| match error {
        ActionError::Unknown(message) => ApiError::not_found(&message),
        ActionError::Disabled(_) => ApiError::forbidden(&error.to_string()),
        ActionError::Source(error) => ApiError::unavailable("The integration", error.to_string()),
        ActionError::Store(error) => error.into(),
    });
    let (result, invocation) = invoked?;
    let invocation = invocation.ok_or_else(|| unrecorded_error(&result))?;
    Ok(render(app, &result, &invocation))
}

/// The attempt to decide about the invocation with this id.
fn attempt_to_decide(act: &str, caller: &Caller, id: &Result<String, ApiError>) -> Attempt {
    let id = id.as_ref().ok().and_then(|id| id.parse::<InvocationId>().ok());
    Attempt { correlation: id.map(|id| id.to_string()), ..attempt_of(caller, &format!("actions.{act}")) }
}

/// The answer to a request. Its refusal is recorded in the ledger.
async fn recorded(
    app: &AppState,
    attempt: &Attempt,
    answer: Result<Response, ApiError>,
) -> Result<Response, ApiError> {
    match answer {
        Ok(response) => Ok(response),
        Err(refusal) => Err(record_refusal(app, attempt, refusal).await),
    }
}

fn render(app: &AppState, result: &CallResult, invocation: &Invocation) -> Response {
    let invocation = shown_invocation(invocation, app.clock.now());
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
        _ => failure_error(&text).into_response(),
    }
}

fn failure_error(text: &str) -> ApiError {
    ApiError::new(StatusCode::BAD_GATEWAY, ErrorCode::ActionFailed, format!("Action failed: {text}"))
}

/// The answer to a call that could not be recorded, so that nothing was done.
fn unrecorded_error(result: &CallResult) -> ApiError {
    match result.outcome {
        CallOutcome::OverShare { share, retry_after } => {
            let code = match share {
                CallShare::Calls => ErrorCode::RateLimited,
                CallShare::WaitingCalls => ErrorCode::TooManyPending,
            };
            ApiError::over_limit(code, result.text(), retry_after)
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

/// An approval over the route of a session, where older web clients also send `mode` and `grant`. They are ignored: each
/// approval is for one call. As in [`ApproveInvocation`], nothing else is.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct SessionApproval {
    params: Option<JsonObject>,
    request_hash: Option<String>,
    #[serde(rename = "mode")]
    _mode: IgnoredAny,
    #[serde(rename = "grant")]
    _grant: IgnoredAny,
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
    Attempted { caller, access }: Attempted<SessionAccess>,
    path: Result<Path<(String, String)>, ApiError>,
    request: Request,
) -> Result<Response, ApiError> {
    let id = path.map(|Path((_, id))| id);
    let attempt = attempt_to_decide("approve", &caller, &id);
    let approved = async {
        let access = access?;
        let OptionalBody(approval) = OptionalBody::<SessionApproval>::from_request(request, &app).await?;
        let approval = ApproveInvocation { params: approval.params, request_hash: approval.request_hash };
        let found = of_session(&app, &access, &id?).await?;
        approve_found(&app, &caller, &found, approval).await
    };
    recorded(&app, &attempt, approved.await).await
}

/// Denies an invocation, which is then never executed. The agent is told the reason, if the body has one.
#[utoipa::path(post, path = "/proliferate/{id}/actions/invocations/{invocationId}/deny", tag = "actions",
    params(("id" = SessionId, Path), ("invocationId" = InvocationId, Path)), request_body = Option<DenyInvocation>,
    responses((status = 200, body = InvocationReply), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 410, body = ErrorBody)))]
pub(super) async fn deny(
    app: AppState,
    Attempted { caller, access }: Attempted<SessionAccess>,
    path: Result<Path<(String, String)>, ApiError>,
    request: Request,
) -> Result<Response, ApiError> {
    let id = path.map(|Path((_, id))| id);
    let attempt = attempt_to_decide("deny", &caller, &id);
    let denied = async {
        let access = access?;
        let OptionalBody(denial) = OptionalBody::from_request(request, &app).await?;
        let found = of_session(&app, &access, &id?).await?;
        deny_found(&app, &caller, &found, denial).await
    };
    recorded(&app, &attempt, denied.await).await
}

/// Returns one invocation of the organization; to a sandbox, one of its own session.
#[utoipa::path(get, path = "/v1/invocations/{invocationId}", tag = "actions",
    params(("invocationId" = InvocationId, Path), OrgQuery),
    responses((status = 200, body = InvocationReply), (status = 404, body = ErrorBody)))]
pub(super) async fn get_any(
    app: AppState,
    caller: Caller,
    Path(id): Path<String>,
    Query(query): Query<OrgQuery>,
) -> Result<Json<InvocationReply>, ApiError> {
    let (identity, org) = identity_and_organization(&app, &caller, query.organization_id.as_deref()).await?;
    let found = of_org(&app, org, &id).await?;
    if identity.session.is_some() && found.session_id != identity.session {
        return Err(not_found());
    }
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
    Attempted { caller, access }: Attempted<User>,
    path: Result<Path<String>, ApiError>,
    request: Request,
) -> Result<Response, ApiError> {
    let id = path.map(|Path(id)| id);
    let attempt = attempt_to_decide("approve", &caller, &id);
    let approved = async {
        let user = access?;
        let OptionalBody(approval) = OptionalBody::from_request(request, &app).await?;
        let found = of_org(&app, user.org, &id?).await?;
        approve_found(&app, &caller, &found, approval).await
    };
    recorded(&app, &attempt, approved.await).await
}

/// Denies an invocation of the organization. The agent is told the reason, if the body has one.
#[utoipa::path(post, path = "/v1/invocations/{invocationId}/deny", tag = "actions",
    params(("invocationId" = InvocationId, Path)), request_body = Option<DenyInvocation>,
    responses((status = 200, body = InvocationReply), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 410, body = ErrorBody)))]
pub(super) async fn deny_any(
    app: AppState,
    Attempted { caller, access }: Attempted<User>,
    path: Result<Path<String>, ApiError>,
    request: Request,
) -> Result<Response, ApiError> {
    let id = path.map(|Path(id)| id);
    let attempt = attempt_to_decide("deny", &caller, &id);
    let denied = async {
        let user = access?;
        let OptionalBody(denial) = OptionalBody::from_request(request, &app).await?;
        let found = of_org(&app, user.org, &id?).await?;
        deny_found(&app, &caller, &found, denial).await
    };
    recorded(&app, &attempt, denied.await).await
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

async fn of_org(app: &AppState, org: OrgId, id: &str) -> Result<Invocation, ApiError> {
    let id = id.parse().map_err(|_| not_found())?;
    app.store.invocation(org, id).await?.ok_or_else(not_found)
}

async fn approve_found(
    app: &AppState,
    caller: &Caller,
    found: &Invocation,
    ApproveInvocation { params, request_hash }: ApproveInvocation,
) -> Result<Response, ApiError> {
    let approval = Approval { by: approver(caller, found.key_id.is_some())?, params, request_hash };
    let approved = app.actions.approve(found.org_id, found.id, approval).await;
    let (result, invocation) = approved.map_err(|error| approval_error(error, "approve"))?;
    let invocation = invocation.ok_or_else(|| unrecorded_error(&result))?;
    let now = app.clock.now();
    if invocation.status(now) == InvocationStatus::Pending {
        let message = "Approved by one person; another owner or admin must approve it too".to_owned();
        let body = InvocationPending { invocation: shown_invocation(&invocation, now), message };
        return Ok((StatusCode::ACCEPTED, Json(body)).into_response());
    }
    Ok(render(app, &result, &invocation))
}

async fn deny_found(
    app: &AppState,
    caller: &Caller,
    found: &Invocation,
    DenyInvocation { reason }: DenyInvocation,
) -> Result<Response, ApiError> {
    let reason = reason.as_deref().map(str::parse).transpose();
    let reason =
        reason.map_err(|error: gate::InvalidDenialReason| ApiError::bad_request(error.to_string()))?;
    let denial = Denial { by: approver(caller, found.key_id.is_some())?, reason };
    let denied = app.actions.deny(found.org_id, found.id, denial).await;
    let denied = denied.map_err(|error| approval_error(error, "deny"))?.ok_or_else(not_found)?;
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

fn approval_error(error: ApprovalError, act: &str) -> ApiError {
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
