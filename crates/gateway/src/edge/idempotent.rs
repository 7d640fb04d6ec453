//! Idempotent requests: requests with the same `Idempotency-Key` are executed once, and all get the same answer.

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

/// The scope of an idempotency key. Each caller has separate keys on each route.
pub(super) struct Keyed<'a> {
    pub(super) org: OrgId,
    pub(super) caller: String,
    pub(super) route: &'a str,
}

/// Executes `work` once for each key of a caller and route; without a key, every time. The same key with another `body`
/// is refused. With a key, the work continues if the client disconnects, so that a retry gets the answer and does not
/// find the request in flight for ever.
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
    // Boxed, because the future of the work may be large.
    let settled = tokio::spawn(Box::pin(settling)).await;
    let body = settled.map_err(|error| ApiError::internal(error.to_string()))??;
    Ok((success, Json(body)).into_response())
}

/// Executes the work. Stores the answer under the key after a success, and releases the key after a failure.
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
