//! The errors of the API client.

use proto::ErrorCode;
use proto::http::ErrorBody;

/// Why an API call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The gateway answered with an error.
    #[error("{message} (HTTP {status})")]
    Refused {
        status: u16,
        /// Absent if something else answered, such as a proxy.
        code: Option<ErrorCode>,
        /// The body's `error` and its reason, as a message for people.
        message: String,
    },
    /// There was no answer, or the connection broke.
    #[error("cannot reach {url}: {cause}")]
    Unreachable {
        url: String,
        cause: String,
        /// Whether the gateway may have received the request, and carried it out.
        sent: bool,
    },
    /// The answer is not from a gateway that this client understands.
    #[error("the server at {url} is not a gateway that this client understands: {problem}")]
    UnexpectedResponse { url: String, problem: String },
    /// The token is not a valid header value.
    #[error("the token contains characters that are not allowed in an HTTP header")]
    BadToken,
    /// The HTTP client could not be created.
    #[error("cannot create an HTTP client: {0}")]
    HttpClient(String),
}

impl Error {
    /// The error for an unsuccessful response.
    pub(crate) fn from_response(status: u16, body: &str) -> Self {
        match serde_json::from_str::<ErrorBody>(body) {
            Ok(body) => {
                let more = body.details.as_ref().and_then(|details| details["reason"].as_str());
                let message =
                    more.map_or_else(|| body.error.clone(), |more| format!("{}: {more}", body.error));
                Self::Refused { status, code: Some(body.code), message }
            }
            Err(_) => Self::Refused { status, code: None, message: extract_message(body) },
        }
    }

    /// The HTTP status of an error response.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The message of an error response; empty for other errors.
    pub fn reason(&self) -> &str {
        match self {
            Self::Refused { message, .. } => message,
            _ => "",
        }
    }

    /// Whether a later attempt may succeed, because the gateway is unavailable or busy.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status >= 500 || matches!(status, 408 | 429),
            Self::Unreachable { .. } => true,
            Self::UnexpectedResponse { .. } | Self::BadToken | Self::HttpClient(_) => false,
        }
    }
}

/// The `error` field of a body with an unknown code, or else the beginning of the body.
fn extract_message(body: &str) -> String {
    let value = serde_json::from_str::<serde_json::Value>(body).ok();
    if let Some(text) = value.as_ref().and_then(|value| value.get("error")?.as_str()) {
        return text.to_owned();
    }
    let beginning: String = body.trim().chars().filter(|c| !c.is_control()).take(200).collect();
    if beginning.is_empty() { "the server gave no reason".to_owned() } else { beginning }
}

/// The innermost cause, because outer errors often say only that something failed.
pub(crate) fn cause(mut error: &dyn std::error::Error) -> String {
    while let Some(inner) = error.source() {
        error = inner;
    }
    error.to_string()
}
