//! Actions of a session: what there is, running one, and the human's answer.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    ActionMode, ErrorCode, IntegrationId, InvocationId, InvocationStatus, JsonObject, ModeSource, OrgId,
    Risk, SessionId, UserId, iso,
};

/// The modes that an organisation has set for its actions; all others follow from the risk of the action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ActionModeList {
    pub modes: Vec<ActionModeEntry>,
}

/// One mode that was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionModeEntry {
    /// `sourceId:actionId`; of a tool from `tools.yaml`, `tools:` and its name.
    pub key: String,
    pub mode: ActionMode,
    /// A member's id, or who operates the gateway.
    pub changed_by: String,
    #[serde(with = "iso")]
    pub changed_at: DateTime<Utc>,
}

/// The mode that an action is to have from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetActionMode {
    /// `sourceId:actionId`; of a tool from `tools.yaml`, `tools:` and its name.
    pub key: String,
    pub mode: ActionMode,
}

/// Everything that a session may try: providers first, then connectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActionCatalog {
    pub integrations: Vec<ActionSource>,
}

/// One provider or connector with its actions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionSource {
    /// `null` for a connector.
    pub integration_id: Option<IntegrationId>,
    /// The name to call it by: `linear`, or `connector:` and its id.
    pub integration: String,
    pub display_name: Option<String>,
    pub actions: Vec<ActionInfo>,
}

/// One action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionInfo {
    pub name: String,
    pub description: String,
    pub risk_level: Risk,
    /// The JSON Schema of its parameters.
    pub params: Value,
}

/// How to use a source, in Markdown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ActionGuide {
    pub integration: String,
    pub guide: String,
}

/// The wish to run an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InvokeAction {
    pub integration: String,
    pub action: String,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub params: JsonObject,
}

/// One attempt to run an action, with all that is known of it. What is not known is `null`, never absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Invocation {
    pub id: InvocationId,
    pub session_id: SessionId,
    pub organization_id: OrgId,
    pub integration_id: Option<IntegrationId>,
    pub integration: String,
    pub action: String,
    pub risk_level: Risk,
    pub mode: ActionMode,
    pub mode_source: ModeSource,
    pub params: Value,
    pub status: InvocationStatus,
    pub result: Value,
    pub error: Option<String>,
    pub denied_reason: Option<String>,
    pub duration_ms: Option<u64>,
    /// Who answered, also when the answer was no.
    pub approved_by: Option<UserId>,
    #[serde(with = "iso::option")]
    pub approved_at: Option<DateTime<Utc>>,
    #[serde(with = "iso::option")]
    pub completed_at: Option<DateTime<Utc>>,
    #[serde(with = "iso::option")]
    pub expires_at: Option<DateTime<Utc>>,
    #[serde(with = "iso")]
    pub created_at: DateTime<Utc>,
}

/// It ran. `result` is `null` when there is none, since the command line looks for the key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvokeReply {
    pub invocation: Invocation,
    pub result: Value,
}

/// It waits for a human.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvocationPending {
    pub invocation: Invocation,
    pub message: String,
}

/// It was refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvocationDenied {
    pub invocation: Invocation,
    pub error: String,
    pub code: ErrorCode,
}

/// One invocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvocationReply {
    pub invocation: Invocation,
}

/// The invocations of a session, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvocationList {
    pub invocations: Vec<Invocation>,
}
