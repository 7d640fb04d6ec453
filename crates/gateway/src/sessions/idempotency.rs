//! Idempotent requests: requests with the same key are executed once, and all get the same answer.

use std::sync::{Arc, Weak};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use clock::crash_point;
use futures_util::future::BoxFuture;
use gate::DEAD_AFTER;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use store::{Begin, KeyedRequest, Reservation, StoreError};
use tracing::Instrument as _;
use uuid::Uuid;

use super::{RequestContext, SessionError, SessionServices};

/// The status under which an answer is stored: only successes are.
const STORED_STATUS: u16 = 200;

/// How often it is tried to record an end that could not be recorded, and the delay before each attempt: as long as a
/// reservation lasts.
const RECORD_ATTEMPTS: u32 = 600;
const RECORD_DELAY: Duration = Duration::from_secs(1);

/// What the key of a request determines about its work. A retry of a request that was cut off has the same, also after the
/// database or the gateway died between the work and its record: so it finds what the first attempt has made.
#[derive(Clone, Copy)]
pub(super) struct KeyedWork {
    pub(super) id: Uuid,
    /// When the first attempt began.
    pub(super) begun_at: DateTime<Utc>,
}

/// Executes `work` once for each key of a requester and `operation`; without a key, every time. The same key with other
/// `payload` is refused. With a key, the work continues if the caller gives up, so that a retry gets the answer and does
/// not find the request in flight for ever.
///
/// The work may be executed again if its end was not recorded. It must then find what it has made, by [`KeyedWork::id`] or
/// by an id of its own.
pub(super) async fn once<T: Serialize + DeserializeOwned + Send + 'static>(
    services: &Arc<SessionServices>,
    context: &RequestContext,
    operation: String,
    payload: &impl Serialize,
    work: impl FnOnce(Option<KeyedWork>) -> BoxFuture<'static, Result<T, SessionError>>,
) -> Result<T, SessionError> {
    let Some(key) = context.idempotency_key.clone() else { return work(None).await };
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
    let work = work(Some(KeyedWork { id: reservation.work_id(), begun_at: reservation.begun_at() }));
    let settling = settle(services.clone(), reservation, work).in_current_span();
    tokio::spawn(settling).await.map_err(|error| internal(&error))?
}

/// Executes the work. Stores the answer under the key after a success, and releases the key after a failure.
async fn settle<T: Serialize>(
    services: Arc<SessionServices>,
    reservation: Reservation,
    work: BoxFuture<'static, Result<T, SessionError>>,
) -> Result<T, SessionError> {
    let done = work.await;
    crash_point("idempotent-done");
    let answer = match &done {
        Ok(done) => Some(serde_json::to_value(done).map_err(|error| internal(&error))?),
        Err(_) => None,
    };
    // The work is done, so its caller learns that also if the database fails now. Until the end is recorded, retries are told
    // that the request is in flight.
    if let Err(error) = record_end(&services, &reservation, answer.as_ref()).await {
        tracing::warn!(%error, "the end of a request with a key is not recorded yet");
        let services = Arc::downgrade(&services);
        tokio::spawn(async move { record_later(&services, &reservation, answer.as_ref()).await });
    }
    done
}

async fn record_end(
    services: &SessionServices,
    reservation: &Reservation,
    answer: Option<&Value>,
) -> Result<(), StoreError> {
    let (store, reservation) = (&services.store, reservation.clone());
    match answer {
        Some(body) => {
            store.finish_idempotent(reservation, STORED_STATUS, body.clone(), services.clock.now()).await
        }
        None => store.forget_idempotent(reservation).await,
    }
}

/// Tries again until the end is recorded. If it never is, the key is free when its reservation expires.
async fn record_later(services: &Weak<SessionServices>, reservation: &Reservation, answer: Option<&Value>) {
    for _ in 0..RECORD_ATTEMPTS {
        tokio::time::sleep(RECORD_DELAY).await;
        // The gateway stops: its key is free for the next one.
        let Some(services) = services.upgrade() else { return };
        match record_end(&services, reservation, answer).await {
            Ok(()) => return,
            Err(error) => tracing::debug!(%error, "the end of a request with a key is not recorded yet"),
        }
    }
}

fn internal(error: &impl ToString) -> SessionError {
    SessionError::Internal(error.to_string())
}
