//! Repositories of an organization.

use chrono::{DateTime, Utc};
use proto::{OrgId, RepoId, RepoSource, SessionId, UserId};
use sqlx::types::{Json, JsonValue};
use uuid::Uuid;

use crate::db::{read, write};
use crate::gate::administer;
use crate::row::{from_row, storable, storable_json, word};
use crate::{Store, StoreError};

/// A new repository with a URL. A directory of a user's own machine is created together with its
/// configuration.
#[derive(Clone, Debug)]
pub struct NewRepo {
    pub id: RepoId,
    pub org_id: OrgId,
    pub name: String,
    pub from: RemoteSource,
    pub url: String,
    /// Absent: the forge's default branch, once it is known.
    pub default_branch: Option<String>,
    pub is_private: bool,
    pub added_by: Option<UserId>,
    pub at: DateTime<Utc>,
}

/// The default branch until the forge was asked.
const ASSUMED_BRANCH: &str = "main";

/// The kind of server that has a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoteSource {
    Github,
    Git,
}

/// A repository.
#[derive(Clone, Debug, PartialEq)]
pub struct Repo {
    pub id: RepoId,
    pub org_id: OrgId,
    pub name: String,
    pub source: RepoSource,
    /// Absent for a local directory.
    pub url: Option<String>,
    pub local_path_hash: Option<String>,
    /// `main` until the forge has answered.
    pub default_branch: String,
    /// Whether somebody chose the default branch. Otherwise it follows the forge.
    pub branch_given: bool,
    pub is_private: bool,
    pub service_commands: Option<JsonValue>,
    /// The environment files of the repository, with paths relative to its directory.
    pub env_files: Option<JsonValue>,
    pub added_by: Option<UserId>,
    pub created_at: DateTime<Utc>,
}

/// A repository and its place in the workspace.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedRepo {
    pub repo: Repo,
    pub workspace_path: String,
}

from_row!(Repo, row => Repo {
    id: row.try_get::<Uuid, _>("id")?.into(),
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    name: row.try_get("name")?,
    source: word(row.try_get("source")?)?,
    url: row.try_get("url")?,
    local_path_hash: row.try_get("local_path_hash")?,
    default_branch: row.try_get("default_branch")?,
    branch_given: row.try_get("branch_given")?,
    is_private: row.try_get("is_private")?,
    service_commands: row.try_get::<Option<Json<JsonValue>>, _>("service_commands")?.map(|json| json.0),
    env_files: row.try_get::<Option<Json<JsonValue>>, _>("env_files")?.map(|json| json.0),
    added_by: row.try_get::<Option<Uuid>, _>("added_by")?.map(Into::into),
    created_at: row.try_get("created_at")?,
});

from_row!(PlacedRepo, row => PlacedRepo {
    repo: sqlx::FromRow::from_row(row)?,
    workspace_path: row.try_get("workspace_path")?,
});

/// The columns of a repository.
macro_rules! repos {
    ($more:literal, $rest:literal) => {
        concat!(
            "SELECT r.id, r.org_id, r.name, r.source, r.url, r.local_path_hash, r.default_branch, r.branch_given,
            r.is_private, r.service_commands, r.env_files, r.added_by, r.created_at",
            $more,
            " FROM repos r ",
            $rest
        )
    };
}
pub(crate) use repos;

impl Store {
    pub async fn create_repo(&self, new: NewRepo) -> Result<(), StoreError> {
        const SQL: &str =
            "INSERT INTO repos (id, org_id, name, source, url, default_branch, branch_given, is_private, added_by,
            created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
        let given = new.default_branch.is_some();
        let branch = new.default_branch.unwrap_or_else(|| ASSUMED_BRANCH.to_owned());
        let source = match new.from {
            RemoteSource::Github => RepoSource::Github,
            RemoteSource::Git => RepoSource::Git,
        };
        administer!(self, tx => {
            sqlx::query(SQL)
                .bind(new.id.uuid()).bind(new.org_id.uuid()).bind(new.name).bind(source.as_str()).bind(new.url)
                .bind(branch).bind(given).bind(new.is_private).bind(new.added_by.map(UserId::uuid)).bind(new.at)
                .execute(&mut *tx).await?;
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this repository", "this organization or user"))
    }

    /// The repositories of an organization, oldest first.
    pub async fn repos(&self, org: OrgId) -> Result<Vec<Repo>, StoreError> {
        const SQL: &str = repos!("", "WHERE r.org_id = $1 ORDER BY r.created_at, r.id");
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).fetch_all(pool).await)?)
    }

    pub async fn repo(&self, org: OrgId, id: RepoId) -> Result<Option<Repo>, StoreError> {
        const SQL: &str = repos!("", "WHERE r.org_id = $1 AND r.id = $2");
        let (org, id) = (org.uuid(), id.uuid());
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(id).fetch_optional(pool).await)?)
    }

    /// Stores the forge's default branch, unless somebody chose one.
    pub async fn found_branch(&self, org: OrgId, id: RepoId, branch: &str) -> Result<(), StoreError> {
        const SQL: &str =
            "UPDATE repos SET default_branch = $3 WHERE org_id = $1 AND id = $2 AND NOT branch_given";
        let (org, id, branch) = (org.uuid(), id.uuid(), storable(branch.to_owned()));
        write!(self, Disk, tx => {
            sqlx::query(SQL).bind(org).bind(id).bind(branch).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// Changes the service commands and environment files of a repository. `None` keeps a value.
    pub async fn update_repo(
        &self,
        org: OrgId,
        id: RepoId,
        service_commands: Option<JsonValue>,
        env_files: Option<JsonValue>,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE repos SET service_commands = COALESCE($3, service_commands),
            env_files = COALESCE($4, env_files),
            env_files_updated_at = CASE WHEN $4 IS NULL THEN env_files_updated_at ELSE $5 END WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        let json = |value: Option<JsonValue>| value.map(|value| Json(storable_json(value)));
        let (commands, files) = (json(service_commands), json(env_files));
        administer!(self, tx => {
            let done = sqlx::query(SQL).bind(org).bind(id).bind(commands).bind(files).bind(at)
                .execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this repository")) } else { Ok(()) }
        })
    }

    /// Deletes a repository with its secrets, and removes it from configurations.
    pub async fn delete_repo(&self, org: OrgId, id: RepoId) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM repos WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        administer!(self, tx => {
            let done = sqlx::query(SQL).bind(org).bind(id).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this repository")) } else { Ok(()) }
        })
    }

    /// The repositories of a session's configuration.
    pub async fn session_repos(&self, session: SessionId) -> Result<Vec<PlacedRepo>, StoreError> {
        const SQL: &str = repos!(
            ", cr.workspace_path",
            "JOIN configuration_repos cr ON cr.repo_id = r.id
            JOIN sessions s ON s.configuration_id = cr.configuration_id AND s.org_id = r.org_id
            WHERE s.id = $1 ORDER BY cr.workspace_path"
        );
        let session = session.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(session).fetch_all(pool).await)?)
    }
}
