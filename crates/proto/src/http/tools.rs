//! Calls from a tool inside the sandbox to the gateway: `POST /proliferate/{id}/tools/{tool}`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::JsonObject;

/// A tool call from the sandbox. Unlike other bodies, it uses `snake_case`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallback {
    /// Identifies the call: a repeated id returns the first answer again.
    #[schema(min_length = 1, max_length = 200)]
    pub tool_call_id: String,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub args: JsonObject,
    /// The version of the tool's file in the sandbox. A call of an outdated version is not executed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u32>,
}

/// The answer to a tool call, also if the tool failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallbackReply {
    pub success: bool,
    /// The text that the agent reads.
    pub result: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<JsonObject>,
}
