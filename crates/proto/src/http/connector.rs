//! The bodies of `/v1/connectors`: remote MCP servers, their tools, and what admins reviewed of them.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{ActionMode, ConnectorId, ModeSource, Risk};

/// How the gateway authenticates to a connector. The keys name platform secrets of the organization.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum ConnectorAuth {
    None,
    Bearer {
        secret_key: String,
    },
    CustomHeader {
        secret_key: String,
        header_name: String,
    },
    /// The OAuth grant "client credentials".
    Oauth {
        token_url: String,
        client_id_key: String,
        client_secret_key: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<String>,
    },
}

/// The risk of a connector's tools.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RiskPolicy {
    /// The risk of tools that no override names. A tool's own hints may raise it, never lower it.
    #[serde(default)]
    pub default_risk: Option<Risk>,
    /// The risks of tools by name.
    #[serde(default)]
    pub overrides: BTreeMap<String, Risk>,
}

/// A new connector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateConnector {
    pub name: String,
    pub url: String,
    pub auth: ConnectorAuth,
    #[serde(default)]
    pub risk_policy: RiskPolicy,
}

/// Changes of a connector. An absent field keeps its value; the risk of a tool that is `null` follows the default again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeConnector {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub auth: Option<ConnectorAuth>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_risk: Option<Risk>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = BTreeMap<String, Risk>)]
    pub overrides: BTreeMap<String, Option<Risk>>,
}

/// A connector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectorEntry {
    pub id: ConnectorId,
    pub name: String,
    /// The transport, which is always `remote_http`.
    pub transport: String,
    pub url: String,
    pub auth: ConnectorAuth,
    pub risk_policy: RiskPolicy,
    pub enabled: bool,
    #[serde(with = "crate::iso")]
    pub created_at: DateTime<Utc>,
    #[serde(with = "crate::iso")]
    pub updated_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectorList {
    pub connectors: Vec<ConnectorEntry>,
}

/// Whether an admin has reviewed what a tool offers now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReviewState {
    Reviewed,
    /// The tool has not been reviewed.
    New,
    /// The definition is not the one that was reviewed.
    Changed,
}

/// One tool that a connector offers now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectorToolEntry {
    pub name: String,
    pub description: String,
    pub risk_level: Risk,
    /// The key of its action mode.
    pub key: String,
    /// The mode for agents of the organization, without automations' own modes.
    pub mode: ActionMode,
    pub mode_source: ModeSource,
    pub state: ReviewState,
    /// The SHA-256 of the definition's canonical JSON.
    pub hash: String,
    /// The definition as the server sends it.
    pub definition: Value,
    /// The definition that was reviewed, if it differs.
    pub reviewed_definition: Option<Value>,
    /// The differences between both, by JSON pointer.
    pub changes: Vec<DefinitionChange>,
    /// Whether there are more differences than are listed.
    #[serde(default)]
    pub changes_truncated: bool,
}

/// One difference between the reviewed definition and the present one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DefinitionChange {
    /// A JSON pointer.
    pub path: String,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

/// A connector, and what its server offers now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConnectorDetail {
    pub connector: ConnectorEntry,
    pub offer: ConnectorOffer,
}

/// The tools that a server offers now, or the reason why they are unknown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ConnectorOffer {
    pub ok: bool,
    pub tools: Vec<ConnectorToolEntry>,
    /// Reviewed tools that the server no longer offers.
    pub gone: Vec<String>,
    /// Why tools were left out, once per tool.
    pub refused: Vec<String>,
    /// Whether the server offers more tools than are used.
    pub truncated: bool,
    pub error: Option<String>,
    pub diagnostics: Option<ConnectorDiagnostics>,
}

/// The kind of a problem with a connector.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ConnectorDiagnostics {
    /// `auth`, `timeout`, `unreachable`, `protocol` or `unknown`.
    pub class: String,
    pub message: String,
}

/// The definitions that an admin has reviewed, by the hashes that the admin saw.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ReviewConnector {
    /// Hashes by the names of tools.
    pub tools: BTreeMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReviewReply {
    /// The names of the tools whose definitions are pinned now.
    pub pinned: Vec<String>,
}
