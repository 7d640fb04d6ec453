//! Error responses: the status, the body and the headers of every refusal and failure.
//!
//! An error is reported twice: the body tells the client what to do, and the log tells the operator what happened.
//! Internal causes appear only in the log.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use chrono::{DateTime, Utc};
use proto::http::ErrorBody;
use proto::{BillingCode, ErrorCode, iso};
use serde_json::json;
use store::StoreError;

use crate::admission::Refusal;
use crate::hub::HubError;
use crate::llm::ModelUnavailable;
use crate::sessions::SessionError;
use crate::vault::VaultError;
use gate::AttemptError;
use shares::{OverShare, ShareOwner};

/// An error response.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    body: ErrorBody,
    /// The internal cause. This field is only logged.
    cause: Option<String>,
    /// The body of the request was valid JSON of the wrong shape; see [`ApiError::shape_as`].
    wrong_shape: bool,
    /// The number of seconds in the `Retry-After` header.
    retry_after: Option<u64>,
    /// The caller holds its share of slots or memory, which, unlike the gate, counts nobody's attempts.
    uncounted: bool,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: ErrorCode, message: impl Into<String>) -> Self {
        Self {
            status,
            body: ErrorBody::new(code, message),
            cause: None,
            wrong_shape: false,
            retry_after: None,
            uncounted: false,
        }
    }

    /// The request has no credential.
    pub fn missing_authorization() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorCode::Unauthorized, "Missing authorization")
    }

    /// The credential is not valid. The caller does not learn why.
    pub fn invalid_token() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorCode::Unauthorized, "Invalid token")
    }

    /// A webhook's signature is missing, wrong, too old, or of an unknown automation. The sender does not learn which.
    pub fn invalid_signature() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorCode::Unauthorized, "Invalid signature")
    }

    /// The token is signed correctly but has expired. The error text is that of every invalid token, because old
    /// clients look for it; the details name the expiry.
    pub fn expired_token(at: DateTime<Utc>) -> Self {
        let reason = format!("it expired at {}: log in again, or make a new token", iso::text(&at));
        Self::invalid_token().because(reason)
    }

    pub fn forbidden(message: &str) -> Self {
        Self::new(StatusCode::FORBIDDEN, ErrorCode::Forbidden, message)
    }

    /// The session does not exist or belongs to another organization: both give the same answer.
    pub fn session_not_found() -> Self {
        Self::not_found("Session not found")
    }

    pub fn not_found(message: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, ErrorCode::NotFound, message)
    }

    pub fn method_not_allowed() -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, ErrorCode::MethodNotAllowed, "Method not allowed")
    }

    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorCode::BadRequest, message)
    }

    pub fn invalid_json(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, ErrorCode::InvalidJson, message)
    }

    pub fn too_large(limit: usize) -> Self {
        let message = format!("The body is larger than {limit} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, ErrorCode::PayloadTooLarge, message)
    }

    /// The client stopped sending in the middle of its request.
    pub fn body_timeout() -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, ErrorCode::Timeout, "The body did not arrive in time")
    }

    /// The organization has no repositories for a managed configuration. Old clients look for this text.
    pub fn no_repos() -> Self {
        let message = "No repos found for organization";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::NoRepos, message)
    }

    pub fn idempotency_in_progress() -> Self {
        let message = "Idempotent request already in progress";
        Self::new(StatusCode::CONFLICT, ErrorCode::IdempotencyInProgress, message)
    }

    pub fn idempotency_mismatch() -> Self {
        let message = "This Idempotency-Key was used with another body";
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::IdempotencyMismatch, message)
    }

    /// The caller's token is bound to no organization, and the request names none.
    pub fn organization_required() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorCode::Unauthorized, "Organization required")
            .because("name it as organizationId, or use a token that is bound to one organization")
    }

    /// The request needs a user, and the caller's token does not belong to one.
    pub fn user_required() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, ErrorCode::Unauthorized, "User identity required")
            .because("use the token or API key of a member; this one belongs to nobody")
    }

    /// The organization's budget is spent, its session limit is reached, or the price of the model is unknown.
    fn billing(code: BillingCode, message: &str) -> Self {
        let error = Self::new(StatusCode::PAYMENT_REQUIRED, ErrorCode::PaymentRequired, message);
        Self { body: ErrorBody::billing(code, message), ..error }
    }

    /// The artifact does not match its hash: somebody changed it in the database, so it is not served.
    pub fn changed_artifact(id: &str) -> Self {
        let message = "This artifact was changed in the database and is not served: its operator finds the difference \
            with `proliferate audit verify`";
        let error = Self::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, message);
        Self { cause: Some(format!("the artifact {id} does not have its hash")), ..error }
    }

    pub fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, ErrorCode::Conflict, message)
    }

    /// The gateway is shutting down and starts no new work. The client can retry at another instance, or after the
    /// restart.
    pub fn stopping() -> Self {
        let error = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::Unavailable,
            "The gateway is stopping; try again",
        );
        Self { retry_after: Some(1), ..error }
    }

    /// The caller must wait until some of its earlier requests have ended.
    pub fn too_many(message: &str) -> Self {
        Self::over_limit(ErrorCode::RateLimited, message, 1)
    }

    /// The caller has used up a share, and gets more of it after this many seconds.
    pub fn over_limit(code: ErrorCode, message: &str, retry_after: u64) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, code, message);
        Self { retry_after: Some(retry_after), ..error }
    }

    /// The body of the request is valid JSON of the wrong shape.
    pub fn wrong_shape(message: impl Into<String>) -> Self {
        Self { wrong_shape: true, ..Self::invalid_json(message) }
    }

    /// Replaces the text of a `wrong_shape` error with one that old clients know. The original text moves to the details.
    /// Other errors stay as they are.
    #[must_use]
    pub fn shape_as(self, text: &str) -> Self {
        if !self.wrong_shape {
            return self;
        }
        let reason = self.body.error.clone();
        Self { body: ErrorBody::new(ErrorCode::BadRequest, text), ..self }.because(reason)
    }

    /// Adds a reason to the details. The error text stays as it is, because old clients look for it.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.body.details = Some(json!({ "reason": reason.into() }));
        self
    }

    /// The session cannot be opened. Old clients look for the reason in the details.
    pub fn no_session(reason: &str, cause: String) -> Self {
        let error =
            Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable, "Session not available");
        Self { cause: Some(cause), ..error }.because(reason)
    }

    pub fn unavailable(what: &str, cause: impl Into<String>) -> Self {
        let error = Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            ErrorCode::Unavailable,
            format!("{what} is not available"),
        );
        Self { cause: Some(cause.into()), ..error }
    }

    /// The sandbox of a session could not be started. Clients that watch the session get the same reason.
    pub fn no_sandbox(reason: &str) -> Self {
        let message = format!("The sandbox is not available: {reason}");
        let error = Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable, message);
        Self { cause: Some(reason.to_owned()), ..error }
    }

    pub fn internal(cause: impl Into<String>) -> Self {
        let error =
            Self::new(StatusCode::INTERNAL_SERVER_ERROR, ErrorCode::Internal, "Internal server error");
        Self { cause: Some(cause.into()), ..error }
    }
}

/// 429 if the caller has used up its own share, 503 if all callers together have used up the pool.
impl From<OverShare> for ApiError {
    fn from(over: OverShare) -> Self {
        let (status, code) = match over.whose {
            ShareOwner::Everyone => (StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable),
            _ => (StatusCode::TOO_MANY_REQUESTS, ErrorCode::RateLimited),
        };
        let retry_after = Some(over.retry_after_seconds());
        Self { retry_after, uncounted: true, ..Self::new(status, code, over.to_string()) }
    }
}

impl From<AttemptError> for ApiError {
    fn from(error: AttemptError) -> Self {
        match error {
            AttemptError::Store(error) => error.into(),
            AttemptError::OverShare(over) => over.into(),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::SessionLimit { limit } => Refusal::SessionLimit { limit }.into(),
            StoreError::Fenced => {
                Self::no_session("another instance has it now: try again", error.to_string())
            }
            StoreError::Taken(_) | StoreError::Refused(_) => Self::conflict(capitalised(&error.to_string())),
            StoreError::Missing(what) => Self::not_found(&capitalised(&format!("{what} does not exist"))),
            StoreError::DiskFull => {
                let full =
                    "The gateway's disk is full: nothing new is accepted until its operator frees some space";
                let told = Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable, full);
                Self { cause: Some(error.to_string()), ..told }
            }
            other if other.is_unavailable() => Self::unavailable("The database", other.to_string()),
            other => Self::internal(other.to_string()),
        }
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let code = match refusal {
            Refusal::SessionLimit { .. } => BillingCode::ConcurrentLimit,
            Refusal::Budget(_) => BillingCode::NoCredits,
            Refusal::NoPrice(_) => BillingCode::BillingNotConfigured,
        };
        Self::billing(code, &refusal.to_string())
    }
}

impl From<SessionError> for ApiError {
    fn from(error: SessionError) -> Self {
        match error {
            SessionError::Invalid(problem) => Self::bad_request(problem),
            SessionError::Forbidden(act) => Self::forbidden(&act.refusal()),
            SessionError::Refused(refusal) => refusal.into(),
            SessionError::UnknownQuestion => Self::not_found(&error.to_string()),
            SessionError::QuestionSettled => Self::conflict(error.to_string()),
            SessionError::InvalidAnswer(reason) => Self::bad_request(reason),
            SessionError::Model(_, ModelUnavailable::ListUnreadable(reason)) => {
                Self::unavailable("The list of models at OPENAI_BASE_URL", reason)
            }
            SessionError::Model(..) => Self::bad_request(error.to_string()),
            SessionError::NoRepositories => Self::no_repos(),
            SessionError::QueueFull => Self::too_many(&error.to_string()),
            SessionError::NoSandbox(reason) => Self::no_sandbox(&reason),
            SessionError::SandboxUnavailable(error) => Self::unavailable("The sandbox", error.to_string()),
            SessionError::NotSaved(reason) => Self::conflict(format!(
                "The session was not stopped, because its files could not be saved: {reason}. `?discard=true` \
                 (`session stop --discard`) gives up what was not saved"
            )),
            SessionError::CallFailed(reason) => Self::conflict(reason),
            SessionError::TooManyCalls(reason) => Self::too_many(&reason),
            SessionError::GateUnavailable(reason) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable, reason)
            }
            SessionError::Supervisor(error) => super::sandbox::supervisor_error(&error),
            SessionError::Environment(error) => error.into(),
            SessionError::KeyInFlight => Self::idempotency_in_progress(),
            SessionError::KeyMismatch => Self::idempotency_mismatch(),
            SessionError::Hub(error) => error.into(),
            SessionError::Store(error) => error.into(),
            SessionError::Internal(cause) => Self::internal(cause),
        }
    }
}

impl From<HubError> for ApiError {
    fn from(error: HubError) -> Self {
        let cause = error.to_string();
        match error {
            HubError::Gone | HubError::Refused => Self::no_session(&cause, cause.clone()),
            HubError::Deleted | HubError::Store(StoreError::Missing(_)) => Self::session_not_found(),
            HubError::Store(StoreError::Fenced) => StoreError::Fenced.into(),
            HubError::Store(error) => Self::no_session(&Self::from(error).body.error, cause),
        }
    }
}

impl From<VaultError> for ApiError {
    fn from(error: VaultError) -> Self {
        match error {
            VaultError::BadName | VaultError::BadValue | VaultError::EmptyValue(_) => {
                Self::bad_request(capitalised(&error.to_string()))
            }
            VaultError::Store(error) => error.into(),
            other => Self::internal(other.to_string()),
        }
    }
}

impl ApiError {
    /// The status and text that the client would get.
    pub(super) fn status_and_text(&self) -> (StatusCode, &str) {
        (self.status, &self.body.error)
    }

    /// Whether this is a refusal by a share that counts nobody's attempts.
    pub(super) fn is_uncounted(&self) -> bool {
        self.uncounted
    }

    /// The value of the `Retry-After` header, if the response has one.
    pub(super) fn retry_after(&self) -> Option<HeaderValue> {
        self.retry_after.map(HeaderValue::from)
    }

    /// Logs the cause, and returns the status and body for the client.
    pub(super) fn log_and_split(self) -> (StatusCode, ErrorBody) {
        if let Some(cause) = &self.cause {
            tracing::error!(status = self.status.as_u16(), cause, "{}", self.body.error);
        }
        (self.status, self.body)
    }
}

/// The error text and its reason, which `observe` adds to the log line of the request.
#[derive(Clone, Debug)]
pub(super) struct Reason(pub(super) String);

impl Reason {
    pub(super) fn of(body: &ErrorBody) -> Self {
        let more = body.details.as_ref().and_then(|details| details["reason"].as_str());
        Self(more.map_or_else(|| body.error.clone(), |more| format!("{}: {more}", body.error)))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let retry_after = self.retry_after();
        let (status, body) = self.log_and_split();
        let mut response = (status, Extension(Reason::of(&body)), Json(body)).into_response();
        if let Some(seconds) = retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

/// An error response for git, which prints a body only if it is plain text, and otherwise only the status.
pub(super) struct PlainText(pub(super) ApiError);

impl IntoResponse for PlainText {
    fn into_response(self) -> Response {
        let (status, body) = self.0.log_and_split();
        let reason = Reason::of(&body);
        let text = format!("{}\n", reason.0);
        (status, Extension(reason), text).into_response()
    }
}

fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_cannot_be_opened_has_its_reason_in_the_field_of_old_clients() {
        for (error, reason) in [
            (HubError::Gone, "the session was given up: try again"),
            (StoreError::Fenced.into(), "another instance has it now: try again"),
        ] {
            let (status, body) = ApiError::from(error).log_and_split();
            assert_eq!((status.as_u16(), body.error.as_str()), (503, "Session not available"));
            assert_eq!(body.details, Some(json!({ "reason": reason })));
        }
        for error in [HubError::Deleted, StoreError::Missing("this session").into()] {
            assert_eq!(ApiError::from(error).log_and_split().0.as_u16(), 404);
        }
    }
}
