//! What can go wrong between a client and its gateway.

use proto::ErrorCode;
use proto::http::ErrorBody;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The gateway answered, and said no.
    #[error("{message} (HTTP {status})")]
    Refused {
        status: u16,
        /// Absent when somebody else answered, such as a proxy on the way.
        code: Option<ErrorCode>,
        /// The body's `error` and its reason, in words for people.
        message: String,
    },
    /// Nobody answered, or the connection broke.
    #[error("cannot reach {url}: {cause}")]
    Unreachable { url: String, cause: String },
    /// Something answered that is no gateway of ours.
    #[error("what answers at {url} is no gateway that this client understands: {problem}")]
    Garbled { url: String, problem: String },
    /// The token cannot be sent at all.
    #[error("the token has characters that no header may have")]
    BadToken,
    /// No HTTP client could be made on this machine.
    #[error("cannot make an HTTP client: {0}")]
    NoHttp(String),
}

impl Error {
    /// What a refusal says.
    pub(crate) fn refused(status: u16, body: &str) -> Self {
        match serde_json::from_str::<ErrorBody>(body) {
            Ok(body) => {
                let more = body.details.as_ref().and_then(|details| details["reason"].as_str());
                let message =
                    more.map_or_else(|| body.error.clone(), |more| format!("{}: {more}", body.error));
                Self::Refused { status, code: Some(body.code), message }
            }
            Err(_) => Self::Refused { status, code: None, message: said(body) },
        }
    }

    /// The HTTP status of a refusal.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether trying again later may help: the gateway is away or busy, and has not said no.
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status >= 500 || matches!(status, 408 | 429),
            Self::Unreachable { .. } => true,
            Self::Garbled { .. } | Self::BadToken | Self::NoHttp(_) => false,
        }
    }
}

/// The `error` of a body whose code is of a later version, else the beginning of whatever it is.
fn said(body: &str) -> String {
    let value = serde_json::from_str::<serde_json::Value>(body).ok();
    if let Some(text) = value.as_ref().and_then(|value| value.get("error")?.as_str()) {
        return text.to_owned();
    }
    let beginning: String = body.trim().chars().filter(|c| !c.is_control()).take(200).collect();
    if beginning.is_empty() { "refused without a reason".to_owned() } else { beginning }
}

/// The innermost cause: what a library says first is that something failed, and not what.
pub(crate) fn cause(mut error: &dyn std::error::Error) -> String {
    while let Some(inner) = error.source() {
        error = inner;
    }
    error.to_string()
}
