//! Configurations: repositories with their places, service commands and a snapshot, from which sessions start.

use chrono::{DateTime, Utc};
use proto::{ConfigurationId, ConfigurationKind, ConfigurationStatus, OrgId, RepoId, UserId};
use sqlx::types::{Json, JsonValue};
use uuid::Uuid;

use crate::db::read;
use crate::gate::administer;
use crate::repo::repos;
use crate::row::{from_row, storable, storable_json, word};
use crate::{PlacedRepo, Store, StoreError};

/// A new configuration that people maintain.
#[derive(Clone, Debug)]
pub struct NewConfiguration {
    pub id: ConfigurationId,
    pub org_id: OrgId,
    pub name: String,
    pub sandbox_provider: String,
    pub repos: Vec<Placement>,
    pub created_by: Option<UserId>,
    pub at: DateTime<Utc>,
}

/// A repository, and its directory in the workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    pub repo_id: RepoId,
    pub workspace_path: String,
}

/// A configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Configuration {
    pub id: ConfigurationId,
    pub org_id: OrgId,
    pub name: String,
    pub kind: ConfigurationKind,
    pub status: ConfigurationStatus,
    pub error: Option<String>,
    pub snapshot_id: Option<String>,
    pub sandbox_provider: String,
    /// The user whose directory it is, for the kind `cli`.
    pub user_id: Option<UserId>,
    pub local_path_hash: Option<String>,
    pub service_commands: Option<JsonValue>,
    pub env_files: Option<JsonValue>,
    /// Replaces the first part of the instructions of its sessions' agents.
    pub system_prompt: Option<String>,
    pub created_by: Option<UserId>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// A change of a configuration. `None` keeps a value.
#[derive(Clone, Debug, Default)]
pub struct ConfigurationChange {
    pub name: Option<String>,
    pub status: Option<ConfigurationStatus>,
    /// Why its snapshot failed. A change of status clears it.
    pub error: Option<String>,
    pub snapshot_id: Option<String>,
    pub service_commands: Option<JsonValue>,
    pub env_files: Option<JsonValue>,
    /// An empty text removes it.
    pub system_prompt: Option<String>,
    /// Replaces all repositories.
    pub repos: Option<Vec<Placement>>,
    /// The user or agent who changes it.
    pub by: Option<String>,
}

from_row!(Configuration, row => Configuration {
    id: row.try_get::<Uuid, _>("id")?.into(),
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    name: row.try_get("name")?,
    kind: word(row.try_get("kind")?)?,
    status: word(row.try_get("status")?)?,
    error: row.try_get("error")?,
    snapshot_id: row.try_get("snapshot_id")?,
    sandbox_provider: row.try_get("sandbox_provider")?,
    user_id: row.try_get::<Option<Uuid>, _>("user_id")?.map(Into::into),
    local_path_hash: row.try_get("local_path_hash")?,
    service_commands: row.try_get::<Option<Json<JsonValue>>, _>("service_commands")?.map(|json| json.0),
    env_files: row.try_get::<Option<Json<JsonValue>>, _>("env_files")?.map(|json| json.0),
    system_prompt: row.try_get("system_prompt")?,
    created_by: row.try_get::<Option<Uuid>, _>("created_by")?.map(Into::into),
    created_at: row.try_get("created_at")?,
    updated_at: row.try_get("updated_at")?,
});

/// The SELECT of configurations, followed by the rest of a query.
macro_rules! configurations {
    ($rest:literal) => {
        concat!(
            "SELECT c.id, c.org_id, c.name, c.kind, c.status, c.error, c.snapshot_id, c.sandbox_provider, c.user_id,
            c.local_path_hash, c.service_commands, c.env_files, c.system_prompt, c.created_by,
            c.created_at, c.updated_at FROM configurations c ",
            $rest
        )
    };
}
pub(crate) use configurations;

pub(crate) const INSERT_REPO_LINK: &str =
    "INSERT INTO configuration_repos (configuration_id, repo_id, org_id, workspace_path)
    VALUES ($1, $2, $3, $4)";

/// Fields that the change does not name stay. Who changed commands and files, and when, is stored with them.
const UPDATE_CONFIGURATION: &str =
    "UPDATE configurations SET name = COALESCE($3, name), status = COALESCE($4, status),
    error = CASE WHEN $4 IS NULL THEN COALESCE($5, error) ELSE $5 END,
    snapshot_id = COALESCE($6, snapshot_id),
    service_commands = COALESCE($7, service_commands),
    service_commands_updated_at = CASE WHEN $7 IS NULL THEN service_commands_updated_at ELSE $10 END,
    service_commands_updated_by = CASE WHEN $7 IS NULL THEN service_commands_updated_by ELSE $9 END,
    env_files = COALESCE($8, env_files),
    env_files_updated_at = CASE WHEN $8 IS NULL THEN env_files_updated_at ELSE $10 END,
    env_files_updated_by = CASE WHEN $8 IS NULL THEN env_files_updated_by ELSE $9 END,
    system_prompt = CASE WHEN $11 IS NULL THEN system_prompt ELSE NULLIF($11, '') END,
    updated_at = $10 WHERE org_id = $1 AND id = $2";

impl Store {
    pub async fn create_configuration(&self, new: NewConfiguration) -> Result<(), StoreError> {
        const SQL: &str =
            "INSERT INTO configurations (id, org_id, name, kind, status, sandbox_provider, created_by,
            created_at, updated_at) VALUES ($1, $2, $3, 'manual', 'pending', $4, $5, $6, $6)";
        administer!(self, tx => {
            let (id, org) = (new.id.uuid(), new.org_id.uuid());
            sqlx::query(SQL)
                .bind(id).bind(org).bind(new.name).bind(new.sandbox_provider)
                .bind(new.created_by.map(UserId::uuid)).bind(new.at).execute(&mut *tx).await?;
            for place in new.repos {
                sqlx::query(INSERT_REPO_LINK).bind(id).bind(place.repo_id.uuid()).bind(org).bind(place.workspace_path)
                    .execute(&mut *tx).await?;
            }
            Ok(())
        })
        .map_err(refusal)
    }

    /// The configurations of an organization, latest first.
    pub async fn configurations(&self, org: OrgId) -> Result<Vec<Configuration>, StoreError> {
        const SQL: &str = configurations!("WHERE c.org_id = $1 ORDER BY c.created_at DESC, c.id");
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).fetch_all(pool).await)?)
    }

    pub async fn configuration(
        &self,
        org: OrgId,
        id: ConfigurationId,
    ) -> Result<Option<Configuration>, StoreError> {
        const SQL: &str = configurations!("WHERE c.org_id = $1 AND c.id = $2");
        let (org, id) = (org.uuid(), id.uuid());
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(id).fetch_optional(pool).await)?)
    }

    /// The repositories of a configuration, with their places in the workspace.
    pub async fn configuration_repos(
        &self,
        org: OrgId,
        id: ConfigurationId,
    ) -> Result<Vec<PlacedRepo>, StoreError> {
        const SQL: &str = repos!(
            ", cr.workspace_path",
            "JOIN configuration_repos cr ON cr.repo_id = r.id
            WHERE cr.org_id = $1 AND cr.configuration_id = $2 ORDER BY cr.workspace_path"
        );
        let (org, id) = (org.uuid(), id.uuid());
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(id).fetch_all(pool).await)?)
    }

    pub async fn update_configuration(
        &self,
        org: OrgId,
        id: ConfigurationId,
        change: ConfigurationChange,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const DELETE_REPO_LINKS: &str =
            "DELETE FROM configuration_repos WHERE configuration_id = $1 AND org_id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        let json = |value: Option<JsonValue>| value.map(|value| Json(storable_json(value)));
        let (commands, files) = (json(change.service_commands), json(change.env_files));
        administer!(self, tx => {
            let done = sqlx::query(UPDATE_CONFIGURATION)
                .bind(org).bind(id).bind(change.name.map(storable))
                .bind(change.status.map(ConfigurationStatus::as_str)).bind(change.error.map(storable))
                .bind(change.snapshot_id).bind(commands).bind(files).bind(change.by).bind(at)
                .bind(change.system_prompt.map(storable)).execute(&mut *tx).await?;
            if done.rows_affected() == 0 {
                return Err(StoreError::Missing("this configuration"));
            }
            if let Some(places) = change.repos {
                sqlx::query(DELETE_REPO_LINKS).bind(id).bind(org).execute(&mut *tx).await?;
                for place in places {
                    sqlx::query(INSERT_REPO_LINK).bind(id).bind(place.repo_id.uuid()).bind(org).bind(place.workspace_path)
                        .execute(&mut *tx).await?;
                }
            }
            Ok(())
        })
        .map_err(refusal)
    }

    /// Deletes a configuration with its secrets; its sessions stay without one.
    pub async fn delete_configuration(&self, org: OrgId, id: ConfigurationId) -> Result<(), StoreError> {
        const DETACH_SESSIONS: &str =
            "UPDATE sessions SET configuration_id = NULL WHERE org_id = $1 AND configuration_id = $2";
        const SQL: &str = "DELETE FROM configurations WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        administer!(self, tx => {
            sqlx::query(DETACH_SESSIONS).bind(org).bind(id).execute(&mut *tx).await?;
            let done = sqlx::query(SQL).bind(org).bind(id).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this configuration")) } else { Ok(()) }
        })
    }
}

fn refusal(error: StoreError) -> StoreError {
    error.on_constraint(
        "this configuration, repository or workspace path",
        "this repository, user or organization",
    )
}
