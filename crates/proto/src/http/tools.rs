//! A tool inside the sandbox asks the gateway to do its work: `POST /proliferate/{id}/tools/{tool}`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::JsonObject;

/// The call. This is the one body in `snake_case`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallback {
    /// The same id twice is the same call, whose answer is given again.
    #[schema(min_length = 1, max_length = 200)]
    pub tool_call_id: String,
    #[serde(default)]
    #[schema(value_type = Object)]
    pub args: JsonObject,
}

/// The answer, also for a tool that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolCallbackReply {
    pub success: bool,
    /// What the agent reads.
    pub result: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub data: Option<JsonObject>,
}
