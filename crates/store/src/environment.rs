//! What a session's sandbox was given besides its repositories: the places of files with secrets, which no snapshot may
//! copy, and the port of its app.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use proto::{OrgId, SessionId};
use uuid::Uuid;

use crate::db::{read, write};
use crate::{Store, StoreError};

/// Changes whenever something changes that sandboxes of an organization get: for secrets and each kind of specification,
/// how many there are and when one was changed last.
pub type EnvironmentMark = Vec<(i64, Option<DateTime<Utc>>)>;

impl Store {
    /// A mark for each organization, which changes when its secrets or its environment files do.
    pub async fn environment_marks(&self) -> Result<HashMap<OrgId, EnvironmentMark>, StoreError> {
        const SQL: &str = "SELECT org_id, count(*), max(updated_at) FROM secrets
            WHERE purpose <> 'platform' AND scope <> 'session' GROUP BY org_id
            UNION ALL SELECT org_id, count(*), max(env_files_updated_at) FROM configurations
            WHERE env_files IS NOT NULL GROUP BY org_id
            UNION ALL SELECT org_id, count(*), max(env_files_updated_at) FROM repos
            WHERE env_files IS NOT NULL GROUP BY org_id";
        let rows: Vec<(Uuid, i64, Option<DateTime<Utc>>)> =
            read!(self, pool => sqlx::query_as(SQL).fetch_all(pool).await)?;
        let mut marks: HashMap<OrgId, EnvironmentMark> = HashMap::new();
        for (org, entries, at) in rows {
            marks.entry(org.into()).or_default().push((entries, at));
        }
        // The order of the rows is not defined.
        for mark in marks.values_mut() {
            mark.sort();
        }
        Ok(marks)
    }

    /// The sessions of all organizations that have a sandbox of this provider that runs or starts.
    pub async fn running_sessions(&self, provider: &str) -> Result<Vec<(OrgId, SessionId)>, StoreError> {
        const SQL: &str = "SELECT org_id, id FROM sessions
            WHERE status IN ('starting', 'running') AND sandbox_provider = $1";
        let found: Vec<(Uuid, Uuid)> =
            read!(self, pool => sqlx::query_as(SQL).bind(provider).fetch_all(pool).await)?;
        Ok(found.into_iter().map(|(org, session)| (org.into(), session.into())).collect())
    }

    /// Remembers that the session's sandbox has files with secrets at these paths of its workspace. They stay known after
    /// their specification was changed, because the files may still be there.
    pub async fn add_secret_paths(
        &self,
        org: OrgId,
        session: SessionId,
        paths: Vec<String>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO session_secret_paths (session_id, org_id, path) VALUES ($1, $2, $3)
            ON CONFLICT (session_id, path) DO NOTHING";
        let (org, session) = (org.uuid(), session.uuid());
        write!(self, Disk, tx => {
            for path in paths {
                sqlx::query(SQL).bind(session).bind(org).bind(path).execute(&mut *tx).await?;
            }
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this path", "this session"))
    }

    /// Every path of a session's workspace that ever had a file with secrets.
    pub async fn secret_paths(&self, session: SessionId) -> Result<Vec<String>, StoreError> {
        const SQL: &str = "SELECT path FROM session_secret_paths WHERE session_id = $1 ORDER BY path";
        let session: Uuid = session.uuid();
        Ok(read!(self, pool => sqlx::query_scalar(SQL).bind(session).fetch_all(pool).await)?)
    }

    /// Sets the port of the session's app that people are shown.
    pub async fn expose_port(&self, org: OrgId, session: SessionId, port: u16) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE sessions SET exposed_port = $3 WHERE org_id = $1 AND id = $2";
        let (org, session) = (org.uuid(), session.uuid());
        write!(self, Disk, tx => {
            let done = sqlx::query(SQL).bind(org).bind(session).bind(i64::from(port)).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this session")) } else { Ok(()) }
        })
    }

    /// The port of the session's app that people are shown.
    pub async fn exposed_port(&self, org: OrgId, session: SessionId) -> Result<Option<u16>, StoreError> {
        const SQL: &str = "SELECT exposed_port FROM sessions WHERE org_id = $1 AND id = $2";
        let (org, session) = (org.uuid(), session.uuid());
        let found: Option<Option<i64>> =
            read!(self, pool => sqlx::query_scalar(SQL).bind(org).bind(session).fetch_optional(pool).await)?;
        Ok(found.flatten().and_then(|port| u16::try_from(port).ok()))
    }
}
