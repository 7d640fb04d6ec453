//! Sending a prompt without a socket: `POST /proliferate/{id}/message`.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::socket::MessageSource;

/// What is sent to a session; only prompts are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum PostMessage {
    Prompt {
        #[schema(min_length = 1)]
        content: String,
        /// Whom a service speaks for: any text, such as a Slack user's id. Ignored from everyone else.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        user_id: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        source: Option<MessageSource>,
        /// Data URIs.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[schema(max_items = 20)]
        images: Option<Vec<String>>,
    },
}

/// The answer to a prompt: it is kept, and will be the message of this id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromptReply {
    pub ok: bool,
    pub message_id: String,
}
