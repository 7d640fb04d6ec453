//! Egress: which hosts the sandboxes of an organization may reach, and which they tried to reach.

use chrono::{DateTime, Utc};
use proto::{EgressKind, EgressMode, EgressOutcome, OrgId, SessionId};
use sqlx::FromRow;
use sqlx::types::Json;
use uuid::Uuid;

use crate::db::{read, write};
use crate::gate::administer;
use crate::{Store, StoreError};

/// The egress rules of one organization.
#[derive(Clone, Debug, FromRow)]
pub struct EgressPolicy {
    #[sqlx(try_from = "Uuid")]
    pub org_id: OrgId,
    #[sqlx(try_from = "String")]
    pub mode: EgressMode,
    pub allow: Json<Vec<String>>,
    pub deny: Json<Vec<String>>,
}

/// A connection attempt to record. All texts are normalised and truncated; none comes from a sandbox unchanged.
#[derive(Clone, Debug)]
pub struct NewEgressRecord {
    pub id: Uuid,
    pub org_id: OrgId,
    pub session_id: Option<SessionId>,
    pub sandbox_id: String,
    pub kind: EgressKind,
    pub host: Option<String>,
    pub port: Option<u16>,
    pub address: Option<String>,
    pub outcome: EgressOutcome,
    pub reason: Option<String>,
    pub bytes_up: i64,
    pub bytes_down: i64,
    pub started_at: DateTime<Utc>,
    pub duration_ms: i64,
}

/// A recorded attempt.
#[derive(Clone, Debug, FromRow)]
pub struct EgressRecord {
    pub session_id: Option<Uuid>,
    pub sandbox_id: String,
    #[sqlx(try_from = "String")]
    pub kind: EgressKind,
    pub host: Option<String>,
    pub port: Option<i64>,
    /// What the host resolved to. For operators only: to members it would reveal the network around the gateway.
    pub address: Option<String>,
    #[sqlx(try_from = "String")]
    pub outcome: EgressOutcome,
    pub reason: Option<String>,
    pub bytes_up: i64,
    pub bytes_down: i64,
    pub started_at: DateTime<Utc>,
    pub duration_ms: i64,
}

impl Store {
    /// The rules of an organization. Without rules its sandboxes may reach all public hosts.
    pub async fn egress_policy(&self, org: OrgId) -> Result<EgressPolicy, StoreError> {
        const SQL: &str = "SELECT org_id, mode, allow, deny FROM egress_policies WHERE org_id = $1";
        let id = org.uuid();
        let found: Option<EgressPolicy> =
            read!(self, pool => sqlx::query_as(SQL).bind(id).fetch_optional(pool).await)?;
        Ok(found.unwrap_or(EgressPolicy {
            org_id: org,
            mode: EgressMode::Open,
            allow: Json(Vec::new()),
            deny: Json(Vec::new()),
        }))
    }

    /// Rules that changed at or after a time.
    pub async fn egress_policies_since(&self, since: DateTime<Utc>) -> Result<Vec<EgressPolicy>, StoreError> {
        const SQL: &str = "SELECT org_id, mode, allow, deny FROM egress_policies WHERE updated_at >= $1";
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(since).fetch_all(pool).await)?)
    }

    /// Replaces all rules of an organization.
    pub async fn put_egress_policy(&self, policy: EgressPolicy, at: DateTime<Utc>) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO egress_policies (org_id, mode, allow, deny, updated_at)
            VALUES ($1, $2, $3, $4, $5) ON CONFLICT (org_id) DO UPDATE SET mode = excluded.mode,
            allow = excluded.allow, deny = excluded.deny,
            updated_at = excluded.updated_at";
        administer!(self, tx => {
            sqlx::query(SQL)
                .bind(policy.org_id.uuid()).bind(policy.mode.as_str()).bind(policy.allow).bind(policy.deny)
                .bind(at).execute(&mut *tx).await?;
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("these rules", "this organization"))
    }

    /// Records attempts in one transaction. It can be retried: attempts that are recorded already stay as they are.
    pub async fn add_egress_records(&self, records: Vec<NewEgressRecord>) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO egress_records (id, org_id, session_id, sandbox_id, kind, host, port,
            address, outcome, reason, bytes_up, bytes_down, started_at, duration_ms)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) ON CONFLICT (id) DO NOTHING";
        write!(self, Process, tx => {
            for record in records {
                sqlx::query(SQL)
                    .bind(record.id).bind(record.org_id.uuid()).bind(record.session_id.map(SessionId::uuid))
                    .bind(record.sandbox_id).bind(record.kind.as_str()).bind(record.host)
                    .bind(record.port.map(i64::from)).bind(record.address).bind(record.outcome.as_str())
                    .bind(record.reason).bind(record.bytes_up).bind(record.bytes_down)
                    .bind(record.started_at).bind(record.duration_ms).execute(&mut *tx).await?;
            }
            Ok(())
        })
    }

    /// Deletes up to `limit` attempts that were recorded before a time; returns how many.
    pub async fn forget_egress_records(&self, before: DateTime<Utc>, most: u32) -> Result<u64, StoreError> {
        const SQL: &str = "DELETE FROM egress_records WHERE id IN
            (SELECT id FROM egress_records WHERE id < $1 ORDER BY id LIMIT $2)";
        // Ids start with the time (`clock::Rng::uuid`), so the primary key finds the oldest.
        let millis = u64::try_from(before.timestamp_millis()).unwrap_or_default();
        let first_kept = uuid::Builder::from_unix_timestamp_millis(millis, &[0; 10]).into_uuid();
        write!(self, Process, tx => {
            let forgotten = sqlx::query(SQL).bind(first_kept).bind(i64::from(most)).execute(&mut *tx).await?;
            Ok(forgotten.rows_affected())
        })
    }

    /// Attempts of an organization, or of one of its sessions, newest first.
    pub async fn egress_records(
        &self,
        org: OrgId,
        session: Option<SessionId>,
        limit: u32,
    ) -> Result<Vec<EgressRecord>, StoreError> {
        const SQL: &str =
            "SELECT session_id, sandbox_id, kind, host, port, address, outcome, reason, bytes_up,
            bytes_down, started_at, duration_ms FROM egress_records WHERE org_id = $1 AND ($2 IS NULL OR session_id = $2)
            ORDER BY started_at DESC, id LIMIT $3";
        let (org, session, limit) = (org.uuid(), session.map(SessionId::uuid), i64::from(limit));
        Ok(
            read!(self, pool => sqlx::query_as(SQL).bind(org).bind(session).bind(limit).fetch_all(pool).await)?,
        )
    }
}
