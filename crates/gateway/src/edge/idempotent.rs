//! Requests that may be sent twice: with an `Idempotency-Key`, what they do happens once and both get one answer.

use axum::Json;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use chrono::TimeDelta;
use proto::OrgId;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use store::{Begin, KeyedRequest, Reservation};
use tracing::Instrument as _;

use super::ApiError;
use crate::app::AppState;
use clock::crash_point;
use gate::DEAD_AFTER;

const HEADER: &str = "idempotency-key";
const LONGEST: usize = 255;

/// Whose key it is: each caller has keys of their own on each route.
pub(super) struct Keyed<'a> {
    pub(super) org: OrgId,
    pub(super) caller: String,
    pub(super) route: &'a str,
}

/// Does `work` once for each key of a caller and route; without a key, each time. `body` is what the request
/// asks for: the same key for something else is refused. With a key the work goes on when the client hangs up, so that
/// its repetition finds the answer and not a request that is in flight for ever.
pub(super) async fn once<T: Serialize + Send + 'static>(
    app: &AppState,
    keyed: Keyed<'_>,
    headers: &HeaderMap,
    body: &impl Serialize,
    success: StatusCode,
    work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<Response, ApiError> {
    let Some(key) = key(headers)? else { return Ok((success, Json(Box::pin(work).await?)).into_response()) };
    let fingerprint = serde_json::to_vec(body).map_err(|error| ApiError::internal(error.to_string()))?;
    let request = KeyedRequest {
        org_id: keyed.org,
        caller: keyed.caller,
        route: keyed.route.to_owned(),
        key,
        instance: app.instance.clone(),
        fingerprint: hex::encode(Sha256::digest(fingerprint)),
    };
    let now = app.clock.now();
    let dead_since = now - TimeDelta::from_std(DEAD_AFTER).unwrap_or_default();
    let reservation = match app.store.begin_idempotent(request, dead_since, now).await? {
        Begin::Fresh(reservation) => reservation,
        Begin::InFlight => return Err(ApiError::idempotency_in_progress()),
        Begin::Mismatch => return Err(ApiError::idempotency_mismatch()),
        Begin::Replay { status, body } => {
            let status = StatusCode::from_u16(status).unwrap_or(success);
            return Ok((status, Json(body)).into_response());
        }
    };
    crash_point("idempotent-reserved");
    let settling = settle(app.clone(), reservation, success, work).in_current_span();
    // Boxed, since what is done for a key may be large.
    let settled = tokio::spawn(Box::pin(settling)).await;
    let body = settled.map_err(|error| ApiError::internal(error.to_string()))??;
    Ok((success, Json(body)).into_response())
}

/// Does the work and settles its key: the answer is kept, or the key is free again.
async fn settle<T: Serialize>(
    app: AppState,
    reservation: Reservation,
    success: StatusCode,
    work: impl Future<Output = Result<T, ApiError>>,
) -> Result<Value, ApiError> {
    match work.await {
        Ok(done) => {
            let body: Value =
                serde_json::to_value(done).map_err(|error| ApiError::internal(error.to_string()))?;
            app.store.finish_idempotent(reservation, success.as_u16(), body.clone(), app.clock.now()).await?;
            Ok(body)
        }
        Err(error) => {
            app.store.forget_idempotent(reservation).await?;
            Err(error)
        }
    }
}

pub(super) fn key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let Some(value) = headers.get(HEADER) else { return Ok(None) };
    let text = value.to_str().ok().filter(|text| (1..=LONGEST).contains(&text.len()));
    let text =
        text.ok_or_else(|| ApiError::bad_request("Idempotency-Key must be 1 to 255 visible characters"))?;
    Ok(Some(text.to_owned()))
}
