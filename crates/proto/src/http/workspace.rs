//! Repositories, and configurations that combine them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::EnvFileSpec;
use crate::socket::AutoStartCommand;
use crate::{ConfigurationId, ConfigurationKind, ConfigurationStatus, RepoId, RepoSource, iso};

/// Names the organization if the service token is not bound to one.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct OrgQuery {
    pub organization_id: Option<String>,
}

/// A repository of the organization.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepoEntry {
    pub id: RepoId,
    pub name: String,
    pub source: RepoSource,
    pub url: Option<String>,
    /// If nobody chose a branch: the default branch that a clone found, or `main` before the first clone.
    pub default_branch: String,
    pub is_private: bool,
    /// The commands that start its services.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_commands: Vec<AutoStartCommand>,
    /// The environment files that it reads.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_files: Vec<EnvFileSpec>,
    #[serde(with = "iso")]
    pub created_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RepoList {
    pub repos: Vec<RepoEntry>,
}

/// A request to add a repository.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddRepo {
    /// `https://host/path`, without user name and password.
    #[schema(max_length = 500)]
    pub url: String,
    /// The name of the repository; defaults to the last part of the URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 100)]
    pub name: Option<String>,
    /// The default branch; defaults to the one of the repository itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 100)]
    pub default_branch: Option<String>,
}

/// A repository and its directory in the workspace; `.` is the workspace itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepoPlace {
    pub repo_id: RepoId,
    #[schema(min_length = 1, max_length = 100)]
    pub workspace_path: String,
}

/// A configuration: repositories and the snapshot made from them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationEntry {
    pub id: ConfigurationId,
    pub name: String,
    pub kind: ConfigurationKind,
    pub status: ConfigurationStatus,
    pub snapshot_id: Option<String>,
    /// Replaces the first part of the instructions of its sessions' agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    /// The repositories; omitted in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repos: Vec<RepoPlace>,
    /// The commands that start its services. They replace those of its repositories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_commands: Vec<AutoStartCommand>,
    /// The environment files that it reads, besides those of its repositories.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env_files: Vec<EnvFileSpec>,
    #[serde(with = "iso")]
    pub created_at: DateTime<Utc>,
    #[serde(with = "iso")]
    pub updated_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConfigurationList {
    pub configurations: Vec<ConfigurationEntry>,
}

/// A request to create a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CreateConfiguration {
    #[schema(min_length = 1, max_length = 100)]
    pub name: String,
    #[schema(max_items = 20)]
    pub repos: Vec<RepoPlace>,
}

/// A request to change a configuration; absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeConfiguration {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 100)]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 20)]
    pub repos: Option<Vec<RepoPlace>>,
    /// An empty text removes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 32_768)]
    pub system_prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 10)]
    pub service_commands: Option<Vec<AutoStartCommand>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 10)]
    pub env_files: Option<Vec<EnvFileSpec>>,
}

/// A request to change a repository; absent fields stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeRepo {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 10)]
    pub service_commands: Option<Vec<AutoStartCommand>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 10)]
    pub env_files: Option<Vec<EnvFileSpec>>,
}
