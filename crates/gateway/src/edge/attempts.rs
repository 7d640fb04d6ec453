//! Requests that are refused before they become calls of the gate. The ledger has an event for each of them whose caller
//! is known, within the caller's share; what is beyond is counted.

use axum::http::StatusCode;
use gate::Attempt;
use ledger::Outcome;

use super::ApiError;
use super::auth::Caller;
use super::contract::identity;
use crate::access::Act;
use crate::app::AppState;

/// The attempt of a caller to do what the ledger knows by this name, as far as it is known before the request is parsed.
pub(super) fn attempt_of(caller: &Caller, name: &str) -> Attempt {
    let tool = Some(name.to_owned());
    Attempt { operation: tool.clone(), tool, ..identity(caller).attempt() }
}

/// Records that a caller may not do the act of a route, if the ledger has such attempts, and returns the refusal.
pub(super) async fn record_refused_act(
    app: &AppState,
    caller: &Caller,
    act: Act,
    refusal: ApiError,
) -> ApiError {
    match act.recorded_name() {
        Some(name) => record_refusal(app, &attempt_of(caller, name), refusal).await,
        None => refusal,
    }
}

/// Records a refused request in the ledger, and returns the refusal. If it cannot be recorded, returns that error instead,
/// so that the caller retries.
pub(super) async fn record_refusal(app: &AppState, attempt: &Attempt, refusal: ApiError) -> ApiError {
    let (status, problem) = refusal.status_and_text();
    if status == StatusCode::TOO_MANY_REQUESTS {
        if let Some(org) = attempt.org.filter(|_| refusal.is_uncounted()) {
            app.gate.count_unrecorded(org, attempt.actor.clone());
        }
        return refusal;
    }
    let outcome = if status == StatusCode::FORBIDDEN { Outcome::Deny } else { Outcome::Failure };
    match app.gate.record_attempt(attempt, outcome, problem).await {
        Ok(()) => refusal,
        // The refusal says already that the gateway lacks something, such as its database.
        Err(_) if status.is_server_error() => refusal,
        Err(error) => error.into(),
    }
}
