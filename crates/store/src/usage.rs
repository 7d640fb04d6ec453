//! Model usage and cost: counted by session and model, limited by session and organization.

use chrono::{DateTime, Utc};
use proto::{OrgId, SessionId};
use sqlx::FromRow;
use uuid::Uuid;

use crate::db::{read, write};
use crate::gate::administer;
use crate::{Store, StoreError};

/// Usage of one or several models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromRow)]
pub struct Usage {
    pub requests: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cache_read_tokens: i64,
    pub cache_write_tokens: i64,
    /// Millionths of a dollar.
    pub cost_micros: i64,
}

/// The limits of an organization, and what it has spent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromRow)]
pub struct OrgBudget {
    /// `None` has no limit.
    pub budget_micros: Option<i64>,
    pub spent_micros: i64,
    /// The most live sessions; `None` has no limit.
    pub session_limit: Option<i64>,
}

impl OrgBudget {
    pub fn is_exhausted(&self) -> bool {
        self.budget_micros.is_some_and(|budget| self.spent_micros >= budget)
    }
}

/// The dimension that usage is summed by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsageKey {
    /// Newest first.
    Day,
    /// The groups are in alphabetical order.
    Model,
    /// Newest first, because session ids begin with a time.
    Session,
}

/// The usage to sum, and the groups to return.
#[derive(Clone, Debug)]
pub struct UsageFilter {
    /// The first and the last day, as `YYYY-MM-DD` (UTC).
    pub days: (String, String),
    pub session: Option<SessionId>,
    pub model: Option<String>,
    /// The key of the last group of the page before.
    pub after: Option<String>,
    pub limit: i64,
}

/// The usage of one day, model or session.
#[derive(Clone, Debug, PartialEq, Eq, FromRow)]
pub struct UsageGroup {
    pub key: String,
    #[sqlx(flatten)]
    pub usage: Usage,
}

/// The sums of all columns, cast because PostgreSQL would widen their type.
macro_rules! sums {
    ($rest:literal) => {
        concat!(
            "CAST(COALESCE(sum(requests), 0) AS BIGINT) AS requests,
            CAST(COALESCE(sum(input_tokens), 0) AS BIGINT) AS input_tokens,
            CAST(COALESCE(sum(output_tokens), 0) AS BIGINT) AS output_tokens,
            CAST(COALESCE(sum(cache_read_tokens), 0) AS BIGINT) AS cache_read_tokens,
            CAST(COALESCE(sum(cache_write_tokens), 0) AS BIGINT) AS cache_write_tokens,
            CAST(COALESCE(sum(cost_micros), 0) AS BIGINT) AS cost_micros FROM ",
            $rest
        )
    };
}

/// The condition that [`UsageFilter`] stands for, with parameters 1 to 5.
macro_rules! filtered {
    () => {
        sums!(
            "daily_model_usage WHERE org_id = $1 AND day >= $2 AND day <= $3
            AND ($4 IS NULL OR session_id = $4) AND ($5 IS NULL OR model = $5)"
        )
    };
}

/// The sums by one column; the sixth parameter is the key after which the page begins, the seventh its length.
macro_rules! grouped {
    ($key:literal, $beyond:literal, $order:literal) => {
        concat!(
            "SELECT ",
            $key,
            " AS key, ",
            filtered!(),
            " AND ($6 IS NULL OR ",
            $key,
            $beyond,
            "$6) GROUP BY ",
            $key,
            " ORDER BY ",
            $key,
            $order,
            " LIMIT $7"
        )
    };
}

/// The usage of one session as it is read.
#[derive(FromRow)]
struct SessionUsage {
    key: Uuid,
    #[sqlx(flatten)]
    usage: Usage,
}

impl Store {
    /// Adds the usage of requests. Not fenced: the money is spent whoever owns the session now, and even if the
    /// session is gone.
    pub async fn add_usage(
        &self,
        org: OrgId,
        session: SessionId,
        model: &str,
        used: Usage,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO model_usage (org_id, session_id, model, requests, input_tokens,
            output_tokens, cache_read_tokens, cache_write_tokens, cost_micros, updated_at)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
            ON CONFLICT (org_id, session_id, model) DO UPDATE SET
            requests = model_usage.requests + excluded.requests,
            input_tokens = model_usage.input_tokens + excluded.input_tokens,
            output_tokens = model_usage.output_tokens + excluded.output_tokens,
            cache_read_tokens = model_usage.cache_read_tokens + excluded.cache_read_tokens,
            cache_write_tokens = model_usage.cache_write_tokens + excluded.cache_write_tokens,
            cost_micros = model_usage.cost_micros + excluded.cost_micros, updated_at = excluded.updated_at";
        const BY_DAY: &str =
            "INSERT INTO daily_model_usage AS u (org_id, session_id, model, requests, input_tokens,
            output_tokens, cache_read_tokens, cache_write_tokens, cost_micros, day)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
            ON CONFLICT (org_id, day, session_id, model) DO UPDATE SET
            requests = u.requests + excluded.requests,
            input_tokens = u.input_tokens + excluded.input_tokens,
            output_tokens = u.output_tokens + excluded.output_tokens,
            cache_read_tokens = u.cache_read_tokens + excluded.cache_read_tokens,
            cache_write_tokens = u.cache_write_tokens + excluded.cache_write_tokens,
            cost_micros = u.cost_micros + excluded.cost_micros";
        let (org, session, model) = (org.uuid(), session.uuid(), model.to_owned());
        let day = at.format("%Y-%m-%d").to_string();
        write!(self, Disk, tx => {
            sqlx::query(SQL)
                .bind(org).bind(session).bind(&model).bind(used.requests).bind(used.input_tokens)
                .bind(used.output_tokens).bind(used.cache_read_tokens).bind(used.cache_write_tokens)
                .bind(used.cost_micros).bind(at).execute(&mut *tx).await?;
            sqlx::query(BY_DAY)
                .bind(org).bind(session).bind(&model).bind(used.requests).bind(used.input_tokens)
                .bind(used.output_tokens).bind(used.cache_read_tokens).bind(used.cache_write_tokens)
                .bind(used.cost_micros).bind(day).execute(&mut *tx).await?;
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this usage", "this organization"))
    }

    /// The usage of a session, for all models together.
    pub async fn session_usage(&self, org: OrgId, session: SessionId) -> Result<Usage, StoreError> {
        const SQL: &str = concat!("SELECT ", sums!("model_usage WHERE org_id = $1 AND session_id = $2"));
        let (org, session) = (org.uuid(), session.uuid());
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(session).fetch_one(pool).await)?)
    }

    /// One page of the organization's usage, by day, model or session.
    pub async fn usage_by(
        &self,
        org: OrgId,
        key: UsageKey,
        filter: &UsageFilter,
    ) -> Result<Vec<UsageGroup>, StoreError> {
        const BY_DAY: &str = grouped!("day", " < ", " DESC");
        const BY_MODEL: &str = grouped!("model", " > ", "");
        const BY_SESSION: &str = grouped!("session_id", " < ", " DESC");
        let UsageFilter { days: (first, last), session, model, after, limit } = filter;
        let (org, session) = (org.uuid(), session.map(SessionId::uuid));
        if key == UsageKey::Session {
            let after = after
                .as_deref()
                .map(Uuid::parse_str)
                .transpose()
                .map_err(|_| StoreError::Missing("this page"))?;
            let found: Vec<SessionUsage> = read!(self, pool => sqlx::query_as(BY_SESSION)
                .bind(org).bind(first).bind(last).bind(session).bind(model).bind(after).bind(limit)
                .fetch_all(pool).await)?;
            let group = |one: SessionUsage| UsageGroup { key: one.key.to_string(), usage: one.usage };
            return Ok(found.into_iter().map(group).collect());
        }
        let sql = if key == UsageKey::Day { BY_DAY } else { BY_MODEL };
        Ok(read!(self, pool => sqlx::query_as(sql)
            .bind(org).bind(first).bind(last).bind(session).bind(model).bind(after).bind(limit)
            .fetch_all(pool).await)?)
    }

    /// The sum of all usage that a filter selects, over all pages.
    pub async fn total_usage(&self, org: OrgId, filter: &UsageFilter) -> Result<Usage, StoreError> {
        const SQL: &str = concat!("SELECT ", filtered!());
        let UsageFilter { days: (first, last), session, model, .. } = filter;
        let (org, session) = (org.uuid(), session.map(SessionId::uuid));
        Ok(read!(self, pool => sqlx::query_as(SQL)
            .bind(org).bind(first).bind(last).bind(session).bind(model).fetch_one(pool).await)?)
    }

    /// The budget of an organization.
    pub async fn org_budget(&self, org: OrgId) -> Result<OrgBudget, StoreError> {
        const SQL: &str = "SELECT budget_micros, session_limit, CAST(COALESCE((SELECT sum(cost_micros)
            FROM model_usage WHERE org_id = $1), 0) AS BIGINT) AS spent_micros FROM organizations WHERE id = $1";
        let org = org.uuid();
        let found = read!(self, pool => sqlx::query_as(SQL).bind(org).fetch_optional(pool).await)?;
        found.ok_or(StoreError::Missing("this organization"))
    }

    /// Sets the limits of an organization; `None` removes one.
    pub async fn set_org_limits(
        &self,
        org: OrgId,
        budget_micros: Option<i64>,
        session_limit: Option<i64>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE organizations SET budget_micros = $2, session_limit = $3 WHERE id = $1";
        let org = org.uuid();
        administer!(self, tx => {
            let done = sqlx::query(SQL).bind(org).bind(budget_micros).bind(session_limit).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this organization")) } else { Ok(()) }
        })
    }
}
