//! Idempotency keys: a repeated request is executed once, and both get the same response.

use chrono::{DateTime, TimeDelta, Utc};
use ledger::sha256;
use proto::OrgId;
use sqlx::types::{Json, JsonValue};
use uuid::Uuid;

use crate::db::{long_before, write};
use crate::row::storable_json;
use crate::{Store, StoreError};

/// A request that carries a key.
#[derive(Clone, Debug)]
pub struct KeyedRequest {
    pub org_id: OrgId,
    /// The caller; two callers may use the same key.
    pub caller: String,
    /// The instance that executes it. The key is free again once that instance has died.
    pub instance: String,
    /// The method and path, so that one key may be used on two routes.
    pub route: String,
    pub key: String,
    /// SHA-256 of the body in hex, which distinguishes a repetition from another request.
    pub fingerprint: String,
}

/// The right to execute the request of a key. Ends with [`Store::finish_idempotent`] or [`Store::forget_idempotent`].
#[derive(Clone, Debug)]
pub struct Reservation {
    request: KeyedRequest,
    /// When the request was first begun. One that continues a request which was cut off keeps that time.
    begun_at: DateTime<Utc>,
    /// When this reservation expires, which tells it from other ones of the same key.
    expires_at: DateTime<Utc>,
}

impl Reservation {
    /// The id for what the request makes. A request that continues one which was cut off has the same, so it finds what
    /// that one has made already.
    pub fn work_id(&self) -> Uuid {
        let KeyedRequest { org_id, caller, route, key, fingerprint, .. } = &self.request;
        let parts = (org_id.uuid(), caller, route, key, fingerprint, self.begun_at.timestamp_micros());
        let hash = sha256(format!("{parts:?}").as_bytes());
        let mut random = [0; 10];
        random.copy_from_slice(&hash.as_bytes()[..10]);
        let millis = u64::try_from(self.begun_at.timestamp_millis()).unwrap_or_default();
        uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid()
    }

    pub fn begun_at(&self) -> DateTime<Utc> {
        self.begun_at
    }
}

/// The decision about a request with an idempotency key.
#[derive(Clone, Debug)]
pub enum Begin {
    /// Execute it: nobody has, or whoever did was cut off and may have made [`Reservation::work_id`].
    Fresh(Reservation),
    /// It is in flight.
    InFlight,
    /// It was executed; this was the response.
    Replay { status: u16, body: JsonValue },
    /// The key was used for another request.
    Mismatch,
}

/// How long a response is kept.
const KEY_LIFETIME: TimeDelta = TimeDelta::hours(24);
/// How long a request may take. Longer than any honest one (a cold boot with its clone takes minutes), or a slow request and
/// its repetition would both run. Short enough that a client that keeps retrying after a crash of ours still
/// succeeds.
const IN_FLIGHT: TimeDelta = TimeDelta::minutes(10);

impl Store {
    /// Reserves a key. Of several concurrent callers, one gets the reservation. Instances that were not seen since
    /// `dead_since` have died and hold no key. The same request then continues what was cut off.
    pub async fn begin_idempotent(
        &self,
        request: KeyedRequest,
        dead_since: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<Begin, StoreError> {
        const DELETE_EXPIRED: &str = "DELETE FROM idempotency_keys WHERE org_id = $1 AND expires_at < $2";
        const INSERT_KEY: &str = "INSERT INTO idempotency_keys
            (org_id, caller, route, key, fingerprint, state, created_at, expires_at, instance)
            VALUES ($1, $2, $3, $4, $5, 'in_flight', $6, $7, $8)
            ON CONFLICT (org_id, caller, route, key) DO UPDATE SET fingerprint = excluded.fingerprint, state = 'in_flight',
            response_status = NULL, response = NULL,
            created_at = CASE WHEN idempotency_keys.state = 'in_flight'
                AND idempotency_keys.fingerprint = excluded.fingerprint
                THEN idempotency_keys.created_at ELSE excluded.created_at END,
            expires_at = excluded.expires_at, instance = excluded.instance
            WHERE idempotency_keys.expires_at <= $6
            OR (idempotency_keys.state = 'in_flight' AND idempotency_keys.instance <> $8
                AND idempotency_keys.instance NOT IN (SELECT id FROM instances WHERE seen_at >= $9))
            RETURNING created_at, expires_at";
        const SELECT_KEY: &str = "SELECT fingerprint, response_status, response FROM idempotency_keys
            WHERE org_id = $1 AND caller = $2 AND route = $3 AND key = $4";
        type Found = (String, Option<i64>, Option<Json<JsonValue>>);
        write!(self, Disk, tx => {
            let org = request.org_id.uuid();
            sqlx::query(DELETE_EXPIRED).bind(org).bind(long_before(now)).execute(&mut *tx).await?;
            let reserved: Option<(DateTime<Utc>, DateTime<Utc>)> = sqlx::query_as(INSERT_KEY)
                .bind(org).bind(&request.caller).bind(&request.route).bind(&request.key)
                .bind(&request.fingerprint).bind(now).bind(now + IN_FLIGHT).bind(&request.instance)
                .bind(dead_since)
                .fetch_optional(&mut *tx).await?;
            if let Some((begun_at, expires_at)) = reserved {
                return Ok(Begin::Fresh(Reservation { request, begun_at, expires_at }));
            }
            let found: Option<Found> = sqlx::query_as(SELECT_KEY)
                .bind(org).bind(&request.caller).bind(&request.route).bind(&request.key)
                .fetch_optional(&mut *tx).await?;
            Ok(match found {
                Some((fingerprint, ..)) if fingerprint != request.fingerprint => Begin::Mismatch,
                Some((_, Some(status), body)) => Begin::Replay {
                    status: u16::try_from(status).unwrap_or(500),
                    body: body.map_or(JsonValue::Null, |body| body.0),
                },
                // Or the key was just released: the client retries in both cases.
                Some(_) | None => Begin::InFlight,
            })
        })
        .map_err(|error: StoreError| error.on_constraint("this key", "this organization"))
    }

    /// Stores the response of an executed request, unless its reservation has expired.
    pub async fn finish_idempotent(
        &self,
        reservation: Reservation,
        status: u16,
        body: JsonValue,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE idempotency_keys SET state = 'done', response_status = $6, response = $7,
            expires_at = $8
            WHERE org_id = $1 AND caller = $2 AND route = $3 AND key = $4 AND expires_at = $5 AND state = 'in_flight'";
        let Reservation { request, expires_at, .. } = reservation;
        write!(self, Disk, tx => {
            sqlx::query(SQL)
                .bind(request.org_id.uuid()).bind(request.caller).bind(request.route).bind(request.key).bind(expires_at)
                .bind(i64::from(status)).bind(Json(storable_json(body))).bind(now + KEY_LIFETIME)
                .execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// Releases the key of a request that had no effect, so that a retry starts anew, with another id.
    pub async fn forget_idempotent(&self, reservation: Reservation) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM idempotency_keys
            WHERE org_id = $1 AND caller = $2 AND route = $3 AND key = $4 AND expires_at = $5 AND state = 'in_flight'";
        let Reservation { request, expires_at, .. } = reservation;
        write!(self, Disk, tx => {
            sqlx::query(SQL)
                .bind(request.org_id.uuid()).bind(request.caller).bind(request.route).bind(request.key).bind(expires_at)
                .execute(&mut *tx).await?;
            Ok(())
        })
    }
}
