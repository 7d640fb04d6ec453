//! The two APIs that agents use their models with: how their paths, headers and errors differ.

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

/// A model API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Anthropic's Messages API.
    Messages,
    /// OpenAI's Chat Completions API, which many other providers and proxies offer too.
    Chat,
}

impl Protocol {
    /// The API that a path of the model proxy belongs to.
    pub(crate) fn of_path(path: &str) -> Self {
        if path.ends_with("/chat/completions") { Self::Chat } else { Self::Messages }
    }

    /// The headers of an agent's request that reach the provider. All others, above all the agent's own credential,
    /// are dropped.
    pub(super) fn request_headers(self) -> &'static [&'static str] {
        match self {
            Self::Messages => &["content-type", "accept", "anthropic-version", "anthropic-beta"],
            Self::Chat => &["content-type", "accept"],
        }
    }

    /// An error response in the format of the API.
    pub fn refusal(self, status: StatusCode, message: &str) -> Response<Body> {
        let body = match self {
            Self::Messages => {
                json!({ "type": "error", "error": { "type": messages_error(status), "message": message } })
            }
            Self::Chat => {
                let kind = chat_error(status);
                json!({ "error": { "message": message, "type": kind, "param": null, "code": null } })
            }
        };
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }
}

fn messages_error(status: StatusCode) -> &'static str {
    match status {
        StatusCode::BAD_REQUEST => "invalid_request_error",
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::PAYMENT_REQUIRED => "billing_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        _ => "api_error",
    }
}

fn chat_error(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::PAYMENT_REQUIRED => "insufficient_quota",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        status if status.is_server_error() => "server_error",
        _ => "invalid_request_error",
    }
}
