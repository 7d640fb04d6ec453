//! Idempotent requests: requests with the same key are executed once, and all get the same answer.

use std::sync::Arc;

use chrono::TimeDelta;
use clock::crash_point;
use futures_util::future::BoxFuture;
use gate::DEAD_AFTER;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use store::{Begin, KeyedRequest, Reservation};
use tracing::Instrument as _;

use super::{RequestContext, SessionError, SessionServices};

/// The status under which an answer is stored: only successes are.
const STORED_STATUS: u16 = 200;

/// Executes `work` once for each key of a requester and `operation`; without a key, every time. The same key with other
/// `payload` is refused. With a key, the work continues if the caller gives up, so that a retry gets the answer and does
/// not find the request in flight for ever.
pub(super) async fn once<T: Serialize + DeserializeOwned + Send + 'static>(
    services: &Arc<SessionServices>,
    context: &RequestContext,
    operation: String,
    payload: &impl Serialize,
    work: BoxFuture<'static, Result<T, SessionError>>,
) -> Result<T, SessionError> {
    let Some(key) = context.idempotency_key.clone() else { return work.await };
    let fingerprint = serde_json::to_vec(payload).map_err(|error| internal(&error))?;
    let request = KeyedRequest {
        org_id: context.org,
        caller: context.requester.identity(),
        route: operation,
        key,
        instance: services.instance.clone(),
        fingerprint: hex::encode(Sha256::digest(fingerprint)),
    };
    let now = services.clock.now();
    let dead_since = now - TimeDelta::from_std(DEAD_AFTER).unwrap_or_default();
    let reservation = match services.store.begin_idempotent(request, dead_since, now).await? {
        Begin::Fresh(reservation) => reservation,
        Begin::InFlight => return Err(SessionError::KeyInFlight),
        Begin::Mismatch => return Err(SessionError::KeyMismatch),
        Begin::Replay { body, .. } => return serde_json::from_value(body).map_err(|error| internal(&error)),
    };
    crash_point("idempotent-reserved");
    let settling = settle(services.clone(), reservation, work).in_current_span();
    tokio::spawn(settling).await.map_err(|error| internal(&error))?
}

/// Executes the work. Stores the answer under the key after a success, and releases the key after a failure.
async fn settle<T: Serialize>(
    services: Arc<SessionServices>,
    reservation: Reservation,
    work: BoxFuture<'static, Result<T, SessionError>>,
) -> Result<T, SessionError> {
    match work.await {
        Ok(done) => {
            let body = serde_json::to_value(&done).map_err(|error| internal(&error))?;
            services.store.finish_idempotent(reservation, STORED_STATUS, body, services.clock.now()).await?;
            Ok(done)
        }
        Err(error) => {
            services.store.forget_idempotent(reservation).await?;
            Err(error)
        }
    }
}

fn internal(error: &impl ToString) -> SessionError {
    SessionError::Internal(error.to_string())
}
