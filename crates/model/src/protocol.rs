//! The two APIs that the model speaks. They differ in how requests are read and answers are written, not in what
//! the model answers.

use serde_json::json;

use crate::chat;
use crate::message::{Chunking, Message};
use crate::reply::Reply;
use crate::request::{Purpose, Request};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Anthropic's Messages API.
    Messages,
    /// The Chat Completions API of OpenAI, which many other providers and proxies offer too.
    Chat,
}

impl Protocol {
    /// The API that a path belongs to.
    pub(crate) fn of(path: &str) -> Self {
        if path.starts_with("/v1/chat/") { Self::Chat } else { Self::Messages }
    }

    pub(crate) fn parse(self, body: &[u8], conversation: &str) -> Result<Request, String> {
        match self {
            Self::Messages => Request::parse(body, conversation, Purpose::Answer),
            Self::Chat => chat::parse(body, conversation),
        }
    }

    /// The answer in the format that the request asks for, streamed or complete.
    pub(crate) fn write(self, message: &Message, request: &Request, chunking: Chunking) -> Reply {
        match (self, request.stream) {
            (Self::Messages, true) => Reply::stream(message.to_frames(chunking)),
            (Self::Messages, false) => Reply::json(200, &message.to_json()),
            (Self::Chat, true) => Reply::stream(chat::frames(message, chunking, request.stream_usage)),
            (Self::Chat, false) => Reply::json(200, &chat::complete(message)),
        }
    }

    pub(crate) fn error(self, status: u16, message: &str) -> Reply {
        let body = match self {
            Self::Messages => {
                json!({ "type": "error", "error": { "type": messages_error(status), "message": message } })
            }
            Self::Chat => {
                let kind = chat_error(status);
                json!({ "error": { "message": message, "type": kind, "param": null, "code": null } })
            }
        };
        Reply::json(status, &body)
    }
}

/// The name of the Messages API for an HTTP status.
fn messages_error(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        500 => "api_error",
        529 => "overloaded_error",
        _ => "invalid_request_error",
    }
}

/// The name of the Chat Completions API for an HTTP status.
fn chat_error(status: u16) -> &'static str {
    match status {
        429 => "rate_limit_error",
        500.. => "server_error",
        _ => "invalid_request_error",
    }
}
