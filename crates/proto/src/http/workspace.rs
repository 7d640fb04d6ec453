//! What sessions work on: repositories, and configurations that put them together.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{ConfigurationId, ConfigurationKind, ConfigurationStatus, RepoId, RepoSource, iso};

/// The organisation whose things are listed: named by a service that is bound to none.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct OrgQuery {
    pub organization_id: Option<String>,
}

/// A repository of the organisation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepoEntry {
    pub id: RepoId,
    pub name: String,
    pub source: RepoSource,
    pub url: Option<String>,
    /// Where nobody chose one: what a clone found, and `main` before the first.
    pub default_branch: String,
    pub is_private: bool,
    #[serde(with = "iso")]
    pub created_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepoList {
    pub repos: Vec<RepoEntry>,
}

/// A repository to be added.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddRepo {
    /// `https://host/path`, without a user name or password.
    #[schema(max_length = 500)]
    pub url: String,
    /// Absent: the last part of the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 100)]
    pub name: Option<String>,
    /// Absent: whatever the repository itself calls so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 100)]
    pub default_branch: Option<String>,
}

/// A repository and where in the workspace it lies; `.` is the workspace itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepoPlace {
    pub repo_id: RepoId,
    #[schema(min_length = 1, max_length = 100)]
    pub workspace_path: String,
}

/// A configuration: repositories, and what was made of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationEntry {
    pub id: ConfigurationId,
    pub name: String,
    pub kind: ConfigurationKind,
    pub status: ConfigurationStatus,
    pub snapshot_id: Option<String>,
    /// Absent in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repos: Vec<RepoPlace>,
    #[serde(with = "iso")]
    pub created_at: DateTime<Utc>,
    #[serde(with = "iso")]
    pub updated_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigurationList {
    pub configurations: Vec<ConfigurationEntry>,
}

/// A configuration to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateConfiguration {
    #[schema(min_length = 1, max_length = 100)]
    pub name: String,
    #[schema(max_items = 20)]
    pub repos: Vec<RepoPlace>,
}

/// What to change of a configuration; what is absent stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeConfiguration {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 100)]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 20)]
    pub repos: Option<Vec<RepoPlace>>,
}
