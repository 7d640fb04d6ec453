//! The bodies of the Tool Gateway Contract: tool calls, runs and audit events. All of them in `snake_case`, and strict:
//! a field that is not known is refused.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::{JsonObject, RunKind, RunStatus, ToolErrorCode, iso};

/// One governed call: `POST /v1/tool-calls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    #[schema(min_length = 1, max_length = 200)]
    pub tool_name: String,
    /// What the tool is to do, such as `transcription.run`.
    #[schema(min_length = 1, max_length = 200)]
    pub operation: String,
    #[schema(min_length = 1, max_length = 120)]
    pub lane_id: String,
    pub actor: ToolActor,
    #[serde(default)]
    #[schema(min_length = 4, max_length = 120)]
    pub case_id: Option<String>,
    /// The key of this call within the organisation: the same id again is the same call.
    #[schema(min_length = 8, max_length = 120)]
    pub run_id: String,
    /// An active run, or none for a call that starts a tree of its own.
    #[serde(default)]
    #[schema(min_length = 8, max_length = 120)]
    pub parent_run_id: Option<String>,
    /// The run that failed and is tried again.
    #[serde(default)]
    #[schema(min_length = 8, max_length = 120)]
    pub retry_of: Option<String>,
    #[serde(default)]
    #[schema(max_length = 200)]
    pub retry_reason: Option<String>,
    #[serde(default)]
    #[schema(max_length = 120)]
    pub correlation_id: Option<String>,
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    #[schema(max_items = 64)]
    pub input_artifacts: Vec<Value>,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub parameters: JsonObject,
    /// Checked when given: SHA-256 of the canonical body without the volatile fields.
    #[serde(default)]
    #[schema(min_length = 64, max_length = 64)]
    pub request_hash_sha256: Option<String>,
    /// When it was sent; not part of the hash.
    #[serde(default)]
    pub requested_at_utc: Option<String>,
    /// Scope fields that the lane requires.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub scope: JsonObject,
    /// The versions of the policy that the caller demands.
    #[serde(default)]
    pub policy_versions: Option<PolicyVersionsBody>,
    #[serde(default)]
    pub contract_version: Option<String>,
}

/// Who the caller says it is; it must be whom the credential belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolActor {
    /// `agent`, `human` or `system`.
    pub actor_type: String,
    #[schema(min_length = 3, max_length = 120)]
    pub actor_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 120)]
    pub agent_name: Option<String>,
}

/// The pins of the two policy files.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyVersionsBody {
    pub lanes: String,
    pub roles: String,
}

/// The answer to a call, whatever became of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallReply {
    /// `success`, `failure` or `deny`.
    pub outcome: String,
    pub tool_name: String,
    pub operation: String,
    /// Absent when the body could not be read.
    pub run_id: Option<String>,
    pub correlation_id: Option<String>,
    #[schema(value_type = Vec<Object>)]
    pub output_artifacts: Vec<Value>,
    /// SHA-256 of this body in canonical form without this field, where a tool answered.
    pub response_hash_sha256: Option<String>,
    pub error: Option<ToolCallError>,
}

/// Why a call did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallError {
    pub error_code: ToolErrorCode,
    pub message: String,
    pub retryable: bool,
}

/// A run to be started: `POST /v1/runs`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRun {
    pub run_kind: RunKind,
    #[serde(default)]
    #[schema(min_length = 4, max_length = 120)]
    pub case_id: Option<String>,
    #[serde(default)]
    #[schema(max_length = 200)]
    pub run_name: Option<String>,
    #[serde(default)]
    #[schema(min_length = 8, max_length = 120)]
    pub parent_run_id: Option<String>,
    /// For a service token that is bound to no organisation.
    #[serde(default)]
    pub organization_id: Option<String>,
}

/// How a run ends: `POST /v1/runs/{id}/finish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishRun {
    pub status: RunStatus,
    #[serde(default)]
    #[schema(max_length = 200)]
    pub outcome: Option<String>,
}

/// A run as it is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunRecord {
    pub run_id: String,
    pub run_kind: RunKind,
    pub contract_version: String,
    pub policy_versions: PolicyVersionsBody,
    pub status: RunStatus,
    #[serde(with = "iso")]
    pub created_at_utc: DateTime<Utc>,
    pub parent_run_id: Option<String>,
    pub root_run_id: Option<String>,
    pub run_name: Option<String>,
    pub case_id: Option<String>,
    pub client_session_id: Option<String>,
    pub correlation_id: Option<String>,
    #[schema(value_type = Object)]
    pub actor: Value,
    #[schema(value_type = Object)]
    pub tool_versions: Value,
    pub started_at_utc: Option<String>,
    pub completed_at_utc: Option<String>,
    pub duration_ms: Option<i64>,
    pub outcome: Option<String>,
    #[schema(value_type = Option<Object>)]
    pub error: Option<Value>,
    #[schema(value_type = Object)]
    pub inputs: Value,
    #[schema(value_type = Object)]
    pub outputs: Value,
    pub retry_count: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_reason: Option<String>,
}

/// Which runs are wanted, newest first.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RunQuery {
    #[param(max_length = 200)]
    pub case_id: Option<String>,
    #[param(max_length = 200)]
    pub parent_run_id: Option<String>,
    pub status: Option<RunStatus>,
    pub run_kind: Option<RunKind>,
    /// `next` of the page before.
    #[param(max_length = 200)]
    pub before: Option<String>,
    /// At most 200; 50 when absent.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    pub organization_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunList {
    pub runs: Vec<RunRecord>,
    pub next: Option<String>,
}

/// Which events are wanted, oldest first.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    #[param(max_length = 200)]
    pub run_id: Option<String>,
    #[param(max_length = 200)]
    pub case_id: Option<String>,
    /// `next` of the page before.
    pub after: Option<i64>,
    /// At most 1000; 100 when absent.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    pub organization_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEvents {
    /// Events of Contract v1, each with the `sequence` that the ledger gave it.
    #[schema(value_type = Vec<Object>)]
    pub events: Vec<Value>,
    /// Where to go on; absent at the end.
    pub next: Option<i64>,
}

/// Whose artifact it is: it is shown only to those who know the case.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ArtifactQuery {
    #[param(max_length = 200)]
    pub case_id: Option<String>,
    pub organization_id: Option<String>,
}
