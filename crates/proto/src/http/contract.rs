//! The bodies of the Tool Gateway Contract: tool calls, runs and audit events. All use `snake_case` and
//! reject unknown fields.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::{JsonObject, RunKind, RunStatus, ToolErrorCode, WorkflowState, iso};

/// One governed call: `POST /v1/tool-calls`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    #[schema(min_length = 1, max_length = 200)]
    pub tool_name: String,
    /// The operation of the tool, such as `transcription.run`.
    #[schema(min_length = 1, max_length = 200)]
    pub operation: String,
    #[schema(min_length = 1, max_length = 120)]
    pub lane_id: String,
    pub actor: ToolActor,
    #[serde(default)]
    #[schema(min_length = 4, max_length = 120)]
    pub case_id: Option<String>,
    /// Identifies this call within the organization: a call with the same id is a duplicate of it.
    #[schema(min_length = 8, max_length = 120)]
    pub run_id: String,
    /// The id of an active run. Absent if the call starts a new tree of runs.
    #[serde(default)]
    #[schema(min_length = 8, max_length = 120)]
    pub parent_run_id: Option<String>,
    /// The failed run that this call retries.
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
    /// SHA-256 of the canonical body without the volatile fields. Checked if present.
    #[serde(default)]
    #[schema(min_length = 64, max_length = 64)]
    pub request_hash_sha256: Option<String>,
    /// The time at which the request was sent. Not part of the hash.
    #[serde(default)]
    pub requested_at_utc: Option<String>,
    /// The scope fields that the lane requires.
    #[serde(default)]
    #[schema(value_type = Object)]
    pub scope: JsonObject,
    /// The policy versions that the caller demands.
    #[serde(default)]
    pub policy_versions: Option<PolicyVersionsBody>,
    #[serde(default)]
    pub contract_version: Option<String>,
}

/// The identity that the caller claims. It must match the credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolActor {
    /// The class of the actor: `agent`, `human` or `system`.
    pub actor_type: String,
    #[schema(min_length = 3, max_length = 120)]
    pub actor_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 120)]
    pub agent_name: Option<String>,
}

/// The versions of `lanes.yaml` and `roles.yaml` that a caller demands; the gate denies the call under any other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PolicyVersionsBody {
    pub lanes: String,
    pub roles: String,
}

/// The answer to a tool call, whatever its outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallReply {
    /// The outcome of the call: `success`, `failure` or `deny`.
    pub outcome: String,
    pub tool_name: String,
    pub operation: String,
    /// Absent if the request body could not be parsed.
    pub run_id: Option<String>,
    pub correlation_id: Option<String>,
    #[schema(value_type = Vec<Object>)]
    pub output_artifacts: Vec<Value>,
    /// SHA-256 of this body in canonical form without this field; present if a tool answered.
    pub response_hash_sha256: Option<String>,
    pub error: Option<ToolCallError>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallError {
    pub error_code: ToolErrorCode,
    pub message: String,
    pub retryable: bool,
}

/// A request to start a run: `POST /v1/runs`.
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
    /// Required if the service token is not bound to an organization.
    #[serde(default)]
    pub organization_id: Option<String>,
}

/// A request to finish a run: `POST /v1/runs/{id}/finish`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FinishRun {
    pub status: RunStatus,
    #[serde(default)]
    #[schema(max_length = 200)]
    pub outcome: Option<String>,
}

/// A run of the Tool Gateway Contract.
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
    /// What a run waits for that was created and has not started.
    pub workflow_state: Option<WorkflowState>,
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

/// Selects runs, newest first.
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
    /// The cursor: `next` of the previous page.
    #[param(max_length = 200)]
    pub before: Option<String>,
    /// The page size: at most 200; the default is 50.
    #[param(minimum = 1, maximum = 200)]
    pub limit: Option<u32>,
    pub organization_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RunList {
    pub runs: Vec<RunRecord>,
    pub next: Option<String>,
}

/// Selects events, oldest first.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AuditQuery {
    #[param(max_length = 200)]
    pub run_id: Option<String>,
    #[param(max_length = 200)]
    pub case_id: Option<String>,
    /// The cursor: `next` of the previous page.
    pub after: Option<i64>,
    /// The page size: at most 1000; the default is 100.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    pub organization_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuditEvents {
    /// Events of Contract v1, each with its `sequence` in the ledger.
    #[schema(value_type = Vec<Object>)]
    pub events: Vec<Value>,
    /// The cursor of the next page; absent on the last page.
    pub next: Option<i64>,
}

/// Identifies the owner of an artifact: it is returned only to callers who know its case.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ArtifactQuery {
    #[param(max_length = 200)]
    pub case_id: Option<String>,
    pub organization_id: Option<String>,
}
