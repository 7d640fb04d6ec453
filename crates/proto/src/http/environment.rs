//! The environment and the services of a session's app.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{SecretOwner, SecretScope};
use crate::iso;
use crate::socket::AutoStartCommand;
use crate::string_enums::string_enums;

/// Values that somebody submits for a session. They have no `Debug` implementation, so that they cannot be logged. Strict,
/// because values in a misspelled field would be lost, and the answer would say that they were submitted.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubmitEnv {
    #[serde(default)]
    #[schema(max_items = 100)]
    pub secrets: Vec<SubmittedSecret>,
    #[serde(default)]
    #[schema(max_items = 100)]
    pub env_vars: Vec<SubmittedVariable>,
    /// The default of `persist`.
    #[serde(default)]
    pub save_to_configuration: bool,
}

#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmittedSecret {
    pub key: String,
    pub value: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether all sessions of the organization may use the value. For admins and owners only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persist: Option<bool>,
}

#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmittedVariable {
    pub key: String,
    pub value: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubmitEnvReply {
    pub submitted: bool,
    pub results: Vec<SubmittedEntry>,
    /// Whether a running sandbox has the values now. Otherwise it gets them when it starts.
    pub applied: bool,
    /// The required variables that still have no value.
    pub missing: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubmittedEntry {
    pub key: String,
    /// The organization has the value now.
    pub persisted: bool,
    /// The organization had a value of this name, which was not replaced.
    pub already_existed: bool,
}

/// The environment of a session, without values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvState {
    pub files: Vec<EnvFileState>,
    /// The paths of secret files.
    pub secret_files: Vec<String>,
    /// The required variables that have no value. If there are any, no environment file is written.
    pub missing: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvFileState {
    /// Inside the workspace.
    pub path: String,
    pub keys: Vec<EnvKeyState>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvKeyState {
    pub key: String,
    pub required: bool,
    /// Whose value it gets; absent if nobody has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<SecretScope>,
}

/// Files that were written or removed in a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvChangeReply {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub applied: Vec<AppliedFile>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scrubbed: Vec<String>,
    /// The required variables that have no value. If there are any, no environment file was written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AppliedFile {
    pub path: String,
    /// The number of variables, or of bytes of a secret file.
    pub key_count: usize,
}

/// An environment file that a project reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EnvFileSpec {
    /// The directory of the repository in the workspace. Files of a repository are in the repository's own directory.
    #[serde(default = "dot")]
    #[schema(max_length = 500)]
    pub workspace_path: String,
    #[schema(min_length = 1, max_length = 500)]
    pub path: String,
    #[serde(default = "dotenv")]
    pub format: String,
    /// `secret`, or `plain` for a file that stays when an agent removes the secrets of its sandbox. Snapshots copy neither, except `plain` files without keys.
    #[serde(default = "secret")]
    pub mode: String,
    #[schema(min_items = 1, max_items = 50)]
    pub keys: Vec<EnvKeySpec>,
}

fn dot() -> String {
    ".".to_owned()
}

fn dotenv() -> String {
    "dotenv".to_owned()
}

fn secret() -> String {
    "secret".to_owned()
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EnvKeySpec {
    pub key: String,
    #[serde(default)]
    pub required: bool,
}

/// A secret file. It has no `Debug` implementation on purpose, so that it cannot be logged.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
pub struct SetSecretFile {
    /// Inside the workspace.
    #[schema(min_length = 1, max_length = 500)]
    pub path: String,
    #[schema(max_length = 65_536)]
    pub content: String,
    #[serde(flatten)]
    pub owner: SecretOwner,
}

/// Names a secret file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct SecretFileQuery {
    pub path: String,
    #[serde(default)]
    pub repo_id: Option<crate::RepoId>,
    #[serde(default)]
    pub configuration_id: Option<crate::ConfigurationId>,
}

/// A secret file without its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretFileItem {
    pub path: String,
    pub scope: SecretScope,
    #[serde(flatten)]
    pub owner: SecretOwner,
    #[serde(with = "iso")]
    pub updated_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SecretFileList {
    pub files: Vec<SecretFileItem>,
}

/// A service to keep running. It replaces one of the same name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StartService {
    #[schema(min_length = 1, max_length = 100)]
    pub name: String,
    #[schema(min_length = 1, max_length = 1000)]
    pub command: String,
    /// The directory in the workspace to start it in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 500)]
    pub cwd: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceEntry {
    pub name: String,
    pub command: String,
    pub status: ServiceStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    pub restarts: u32,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<i64>,
}

string_enums! {
    /// Whether a service runs.
    ServiceStatus as "service status" {
        Running = "running",
        /// It was stopped, or exited without an error.
        Stopped = "stopped",
        /// It failed; it may be started again after a pause.
        Error = "error",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceList {
    pub services: Vec<ServiceEntry>,
    /// The port that the app listens on, if the agent named one. It cannot be opened from outside of the sandbox.
    pub exposed_port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServiceLog {
    /// The newest output.
    pub log: String,
    /// Whether older output was left out.
    pub truncated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExposePort {
    #[schema(minimum = 1, maximum = 65_535)]
    pub port: u16,
}

/// Commands to test in a running session. Without any, those that the session would start are tested.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TestServices {
    #[serde(default)]
    #[schema(max_items = 10)]
    pub commands: Vec<AutoStartCommand>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TestServicesReply {
    pub entries: Vec<crate::socket::AutoStartEntry>,
}

/// Ends a setup: saves its files for the sessions of its configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct FinishSetup {
    /// A new name for the configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 100)]
    pub name: Option<String>,
    /// Whether the setup session keeps running; otherwise it is stopped.
    #[serde(default = "default_true")]
    pub keep_running: bool,
}

fn default_true() -> bool {
    true
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct FinishSetupReply {
    pub configuration_id: crate::ConfigurationId,
    pub snapshot_id: String,
    pub success: bool,
}
