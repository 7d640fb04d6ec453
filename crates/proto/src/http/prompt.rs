//! Sending a prompt without a WebSocket: `POST /proliferate/{id}/message`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::socket::MessageSource;

/// A message to a session; prompts are the only kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum PostMessage {
    Prompt {
        #[schema(min_length = 1)]
        content: String,
        /// The person for whom a service sends the prompt: any text, such as the id of a Slack user. Ignored
        /// for other callers.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user_id: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<MessageSource>,
        /// Images as data URIs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(max_items = 20)]
        images: Option<Vec<String>>,
    },
}

/// The prompt is stored, and its message will have this id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromptReply {
    pub ok: bool,
    pub message_id: String,
}
