//! Requests that are refused before they become calls of the gate. The ledger has an event for each of them whose caller
//! is known, within the caller's share; what is beyond is counted.

use axum::http::StatusCode;
use gate::Attempt;
use ledger::Outcome;

use super::ApiError;
use crate::app::AppState;

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
