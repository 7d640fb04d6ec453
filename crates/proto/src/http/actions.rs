//! Actions of a session: listing, invoking, approving and denying them.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{
    ActionMode, ErrorCode, IntegrationId, InvocationId, InvocationStatus, JsonObject, ModeSource, OrgId,
    Risk, SessionId, UserId, iso,
};

/// The modes that an organization has set for its actions. Every other action has the default mode for its
/// risk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActionModeList {
    pub modes: Vec<ActionModeEntry>,
}

/// The mode that was set for one action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionModeEntry {
    /// `sourceId:actionId`; for a tool from `tools.yaml`, `tools:` and its name.
    pub key: String,
    /// As it was set.
    pub mode: Value,
    /// The approved invocation with which somebody decided not to be asked again.
    pub invocation_id: Option<InvocationId>,
    /// The id of a member, or the name of the operator of the gateway.
    pub changed_by: String,
    #[serde(with = "iso")]
    pub changed_at: DateTime<Utc>,
}

/// The new mode of an action. Strict, because a `twoPerson` beside the mode would be ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct SetActionMode {
    /// `sourceId:actionId`; for a tool from `tools.yaml`, `tools:` and its name.
    pub key: String,
    /// `allow`, `require_approval` or `deny`; or an object: `else` has the mode of all arguments that no rule matches,
    /// `rules` is a list of `{when, mode}` with a JSON Schema of the arguments each, of which the first that matches
    /// decides, `examples` is a list of `{args, mode}` that must hold, and with `twoPerson` two people must approve.
    pub mode: Value,
    /// An approved invocation of this action: whoever approved it decides not to be asked again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub invocation_id: Option<InvocationId>,
}

/// The modes of an automation. They count before those of the organization, except for what the organization denies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AutomationModes {
    /// By action key, as they were set.
    #[schema(value_type = Object)]
    pub modes: JsonObject,
}

/// The new mode of an action in the sessions of an automation. Strict as [`SetActionMode`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SetAutomationMode {
    /// `sourceId:actionId`; for a tool from `tools.yaml`, `tools:` and its name.
    pub key: String,
    /// As for an organization.
    pub mode: Value,
}

/// The mode was set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ModeReply {
    pub ok: bool,
    /// Why nobody could check that the action exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// All actions that a session may invoke: providers first, then connectors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ActionCatalog {
    pub integrations: Vec<ActionSource>,
    /// The sources that are left out because they could not be asked, and what the lanes of the policy prohibit for the
    /// session's agent. For admins and owners only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unavailable: Vec<UnavailableSource>,
}

/// A source of actions that could not be asked what it offers, or of which not everything is offered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnavailableSource {
    pub integration: String,
    pub problem: String,
}

/// A provider or connector and its actions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionSource {
    /// The id of the provider account; `null` for a connector.
    pub integration_id: Option<IntegrationId>,
    /// The name to use in requests: `linear`, or `connector:` and the connector's id.
    pub integration: String,
    pub display_name: Option<String>,
    pub actions: Vec<ActionInfo>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionInfo {
    pub name: String,
    pub description: String,
    pub risk_level: Risk,
    /// The JSON Schema of the action's parameters. Shared, because a catalog of large schemas is made for each request.
    #[serde(with = "shared")]
    #[schema(value_type = Value)]
    pub params: Arc<Value>,
    /// Whether the action runs, waits for approval or is denied now, if an agent of this session invokes it. With
    /// conditions, this is the mode of arguments that none of them matches.
    pub mode: ActionMode,
    pub mode_source: ModeSource,
    /// A list of `{when, mode}`: the first rule whose JSON Schema the arguments fit decides. What the organization denies
    /// stays denied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Value>,
}

/// How to use a provider or connector, in Markdown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ActionGuide {
    pub integration: String,
    pub guide: String,
}

/// A request to run an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct InvokeAction {
    pub integration: String,
    pub action: String,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub params: JsonObject,
}

/// An invocation of an action. Unknown values are `null`, never absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Invocation {
    pub id: InvocationId,
    /// The session whose agent invoked the action, if one did.
    pub session_id: Option<SessionId>,
    pub organization_id: OrgId,
    pub integration_id: Option<IntegrationId>,
    pub integration: String,
    pub action: String,
    pub risk_level: Risk,
    pub mode: ActionMode,
    pub mode_source: ModeSource,
    /// Why the mode is stricter than what was set: `definition_drift` if nobody has reviewed the definition of the action
    /// as it is now, `unknown_mode:…` if what was set is wrong.
    pub mode_reason: Option<String>,
    pub params: Value,
    /// Whether an approver has edited the parameters.
    pub edited: bool,
    /// Identifies the request with its present parameters while it waits for approval, for [`ApproveInvocation`].
    pub request_hash: Option<String>,
    pub status: InvocationStatus,
    pub result: Value,
    pub error: Option<String>,
    /// `denied` if a person denied it, with a colon and the reason if one was given; `policy`, or why the mode denies.
    pub denied_reason: Option<String>,
    pub duration_ms: Option<u64>,
    /// Whether two people must approve the invocation.
    pub two_person: bool,
    /// The first of the two, who approved the invocation with the parameters that it has now.
    pub first_approved_by: Option<UserId>,
    #[serde(with = "iso::option")]
    pub first_approved_at: Option<DateTime<Utc>>,
    /// The user who approved or denied the invocation.
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

/// The approval of an invocation. Strict, because with a misspelled field it would execute what its sender has not seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ApproveInvocation {
    /// Replaces the parameters of the invocation; the action is executed with these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub params: Option<JsonObject>,
    /// The `requestHash` of the invocation as the approver has seen it: if somebody has edited the parameters since, the
    /// answer is 409. Required once they were edited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_hash: Option<String>,
}

/// The denial of an invocation. Strict, because a misspelled reason would be lost.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DenyInvocation {
    /// Why, for the agent and the ledger: one line of at most 500 characters, without invisible ones. Known secrets are removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 500)]
    pub reason: Option<String>,
}

impl Invocation {
    /// Why it was denied, for its caller.
    pub fn denial_text(&self) -> Option<String> {
        let reason = self.denied_reason.as_deref()?;
        Some(match reason.strip_prefix("denied") {
            Some(why) => format!("a person denied it{why}"),
            None => reason.to_owned(),
        })
    }
}

/// The action ran. `result` is `null` if it has none, because the command line expects the key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvokeReply {
    pub invocation: Invocation,
    pub result: Value,
}

/// The action waits for a human's approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvocationPending {
    pub invocation: Invocation,
    pub message: String,
}

/// The action was denied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvocationDenied {
    pub invocation: Invocation,
    pub error: String,
    pub code: ErrorCode,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvocationReply {
    pub invocation: Invocation,
}

/// The invocations of a session, newest first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct InvocationList {
    pub invocations: Vec<Invocation>,
}

/// A shared value, written as the value itself.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<T: Serialize, S: Serializer>(value: &Arc<T>, to: S) -> Result<S::Ok, S::Error> {
        value.as_ref().serialize(to)
    }

    pub(super) fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Arc<T>, D::Error> {
        T::deserialize(from).map(Arc::new)
    }
}
