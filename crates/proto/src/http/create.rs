//! Creating a session: `POST /proliferate/sessions`.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{
    AutomationId, ClientType, ConfigurationId, IntegrationId, JsonObject, ReasoningEffort, RepoId,
    SandboxMode, SessionId, SessionStatus, SessionType, TriggerEventId, TriggerId,
};

/// A request to create a session.
///
/// `organizationId` and `configurationId` are plain text: a value that is not a valid id is treated like an
/// unknown id, not like a malformed body.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateSession {
    /// Required only if the token is not bound to an organization; otherwise the token's organization is
    /// used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub organization_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_configuration: Option<ManagedConfiguration>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cli_configuration: Option<CliConfiguration>,
    pub session_type: SessionType,
    pub client_type: ClientType,
    /// Stored unchanged, so that the client can find its session again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub client_metadata: Option<JsonObject>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox_mode: Option<SandboxMode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 524_288)]
    pub initial_prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 200)]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_config: Option<AgentConfig>,
    /// Replaces the first part of the agent's instructions. The rules of its mode stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 32_768)]
    pub system_prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automation_id: Option<AutomationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_id: Option<TriggerId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger_event_id: Option<TriggerEventId>,
    /// The event that fired the trigger. It is written into the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub trigger_context: Option<JsonObject>,
    /// The integrations that the session may use; absent means those of its automation, or all that are active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 100)]
    pub integration_ids: Option<Vec<IntegrationId>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_options: Option<SshOptions>,
}

/// A configuration that the gateway finds or creates from the organization's repositories.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManagedConfiguration {
    /// The repositories to include; absent means all of the organization's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo_ids: Option<Vec<RepoId>>,
}

/// A configuration for one directory of one user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CliConfiguration {
    #[schema(min_length = 1, max_length = 200)]
    pub local_path_hash: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 100)]
    pub display_name: Option<String>,
}

/// Settings of the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AgentConfig {
    /// Any spelling that [`ModelId::parse`](crate::ModelId::parse) accepts, or a name from the list of the configured
    /// chat endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// The platform tools that the agent keeps; absent means all of its mode. Tools of other modes are not
    /// added by naming them here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_items = 50)]
    pub tools: Option<Vec<String>>,
    /// How much the model thinks before it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_effort: Option<ReasoningEffort>,
}

/// The keys that a client needs in the sandbox to copy files over SSH.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SshOptions {
    pub public_keys: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_path: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git_token: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
}

/// Hides the token and the values of the variables, which are secrets.
impl fmt::Debug for SshOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SshOptions")
            .field("public_keys", &self.public_keys)
            .field("local_path", &self.local_path)
            .field("git_token", &self.git_token.as_ref().map(|_| "[secret]"))
            .field("env_vars", &self.env_vars.as_ref().map(|vars| vars.keys().collect::<Vec<_>>()))
            .finish()
    }
}

/// The starting point of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigurationChoice<'a> {
    /// The session starts with an empty workspace.
    Scratch,
    /// The session starts from an existing configuration.
    Existing(&'a str),
    /// The session starts from a configuration that the gateway finds or creates.
    Managed(&'a ManagedConfiguration),
    /// The session starts from a configuration for a local directory.
    Cli(&'a CliConfiguration),
}

/// Errors in a body that is well formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateSessionError {
    #[error("Only one of configurationId, managedConfiguration and cliConfiguration may be given")]
    SeveralConfigurations,
    #[error("sshOptions.publicKeys is required when SSH is enabled")]
    NoPublicKeys,
}

impl CreateSession {
    pub fn configuration_choice(&self) -> Result<ConfigurationChoice<'_>, CreateSessionError> {
        match (&self.configuration_id, &self.managed_configuration, &self.cli_configuration) {
            (None, None, None) => Ok(ConfigurationChoice::Scratch),
            (Some(id), None, None) => Ok(ConfigurationChoice::Existing(id)),
            (None, Some(managed), None) => Ok(ConfigurationChoice::Managed(managed)),
            (None, None, Some(cli)) => Ok(ConfigurationChoice::Cli(cli)),
            _ => Err(CreateSessionError::SeveralConfigurations),
        }
    }

    /// The SSH options, which must contain a public key.
    pub fn ssh(&self) -> Result<Option<&SshOptions>, CreateSessionError> {
        match &self.ssh_options {
            Some(options) if options.public_keys.is_empty() => Err(CreateSessionError::NoPublicKeys),
            options => Ok(options.as_ref()),
        }
    }

    /// Whether to wait for the sandbox. Clients that want SSH always wait, because they need host and port.
    pub fn effective_sandbox_mode(&self) -> SandboxMode {
        if self.ssh_options.is_some() {
            return SandboxMode::Immediate;
        }
        self.sandbox_mode.unwrap_or(SandboxMode::Deferred)
    }
}

/// The created session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedSession {
    pub session_id: SessionId,
    /// `null` for a session without a configuration.
    pub configuration_id: Option<ConfigurationId>,
    pub status: SessionStatus,
    pub gateway_url: String,
    pub has_snapshot: bool,
    pub is_new_configuration: bool,
    /// Present only if the request waited for the sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<CreatedSandbox>,
}

/// A running sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreatedSandbox {
    pub sandbox_id: String,
    pub preview_url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_port: Option<u16>,
}
