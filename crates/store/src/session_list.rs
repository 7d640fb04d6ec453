//! Lists sessions page by page: live ones first, then by last activity.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Datelike as _, Utc};
use proto::{OrgId, RepoId, SessionId, SessionStatus, UserId};

use crate::db::read;
use crate::session_record::records;
use crate::{SessionRecord, Store, StoreError};

/// Selects sessions. The default selects all.
#[derive(Clone, Debug, Default)]
pub struct SessionFilter {
    pub repo: Option<RepoId>,
    pub status: Option<SessionStatus>,
    pub created_by: Option<UserId>,
    pub parent: Option<SessionId>,
    pub exclude_setup: bool,
    pub exclude_cli: bool,
    pub exclude_automation: bool,
}

/// The last session of a page; the next page begins after it. Clients send its text back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionCursor {
    is_live: bool,
    last_activity_at: DateTime<Utc>,
    id: SessionId,
}

/// The text is not a cursor of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of a list of sessions: use the one that the page before gave")]
pub struct InvalidCursor;

impl SessionCursor {
    pub fn after(last: &SessionRecord) -> Self {
        let is_live =
            matches!(last.status, SessionStatus::Starting | SessionStatus::Running | SessionStatus::Paused);
        Self { is_live, last_activity_at: last.last_activity_at, id: last.id }
    }
}

impl fmt::Display for SessionCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = self.last_activity_at.timestamp_subsec_nanos();
        write!(f, "{}.{}.{nanos}.{}", u8::from(self.is_live), self.last_activity_at.timestamp(), self.id)
    }
}

impl FromStr for SessionCursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let parts: Vec<&str> = text.split('.').collect();
        let [is_live @ ("0" | "1"), seconds, nanos, id] = parts[..] else { return Err(InvalidCursor) };
        let (seconds, nanos) = (seconds.parse(), nanos.parse());
        let (Ok(seconds), Ok(nanos), Ok(id)) = (seconds, nanos, id.parse()) else {
            return Err(InvalidCursor);
        };
        let at = DateTime::from_timestamp(seconds, nanos).filter(|at| (1970..10_000).contains(&at.year()));
        Ok(Self { is_live: is_live == "1", last_activity_at: at.ok_or(InvalidCursor)?, id })
    }
}

impl Store {
    /// Sessions of an organization: starting, running and paused ones first, then by last activity,
    /// latest first. Without deleted ones that are not removed yet.
    pub async fn sessions(
        &self,
        org: OrgId,
        filter: SessionFilter,
        limit: u32,
        before: Option<SessionCursor>,
    ) -> Result<Vec<SessionRecord>, StoreError> {
        const SQL: &str = records!(
            "WHERE s.org_id = $1 AND s.deleted_at IS NULL
            AND ($2 IS NULL OR EXISTS (SELECT 1 FROM configuration_repos r
                WHERE r.configuration_id = s.configuration_id AND r.repo_id = $2))
            AND ($3 IS NULL OR s.status = $3) AND ($4 IS NULL OR s.created_by = $4)
            AND ($5 IS NULL OR s.parent_session_id = $5)
            AND (NOT $6 OR s.session_type <> 'setup') AND (NOT $7 OR s.session_type <> 'cli')
            AND (NOT $8 OR (s.automation_id IS NULL AND COALESCE(s.client_type, '') <> 'automation'))
            AND ($9 IS NULL OR (CASE WHEN s.status IN ('starting', 'running', 'paused') THEN 1 ELSE 0 END) < $9
                OR ((CASE WHEN s.status IN ('starting', 'running', 'paused') THEN 1 ELSE 0 END) = $9
                    AND (s.last_activity_at < $10 OR (s.last_activity_at = $10 AND s.id < $11))))
            ORDER BY (CASE WHEN s.status IN ('starting', 'running', 'paused') THEN 1 ELSE 0 END) DESC,
                s.last_activity_at DESC, s.id DESC LIMIT $12"
        );
        let org = org.uuid();
        let (repo, status) = (filter.repo.map(RepoId::uuid), filter.status.map(SessionStatus::as_str));
        let (by, parent) = (filter.created_by.map(UserId::uuid), filter.parent.map(SessionId::uuid));
        let rank = before.as_ref().map(|cursor| i64::from(cursor.is_live));
        let at = before.as_ref().map(|cursor| cursor.last_activity_at);
        let id = before.as_ref().map(|cursor| cursor.id.uuid());
        let limit = i64::from(limit);
        Ok(read!(self, pool => {
            sqlx::query_as(SQL)
                .bind(org).bind(repo).bind(status).bind(by).bind(parent)
                .bind(filter.exclude_setup).bind(filter.exclude_cli).bind(filter.exclude_automation)
                .bind(rank).bind(at).bind(id).bind(limit)
                .fetch_all(pool).await
        })?)
    }
}
