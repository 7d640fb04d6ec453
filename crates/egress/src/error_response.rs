//! The proxy's own HTTP responses. They repeat nothing that the client sent unless it was normalised.

use crate::fields::HeadError;
use crate::record::{Failure, Refusal};
use crate::rules::Denial;

const BAD_GATEWAY: &str = "502 Bad Gateway";
const TIMEOUT: &str = "504 Gateway Timeout";

/// A response that the proxy makes itself instead of relaying one from the target.
#[derive(Debug)]
pub(crate) struct ErrorResponse {
    status: &'static str,
    /// Machine-readable; the message is for people and models.
    code: &'static str,
    message: String,
}

impl ErrorResponse {
    /// Encodes the complete response. A response to `HEAD` has no body.
    pub(crate) fn to_bytes(&self, keep_alive: bool, with_body: bool) -> Vec<u8> {
        let body = serde_json::json!({ "error": self.code, "message": format!("egress: {}", self.message) });
        let body = format!("{body}\n");
        let connection = if keep_alive { "keep-alive" } else { "close" };
        let head = format!(
            "HTTP/1.1 {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: {connection}\r\n\r\n",
            self.status,
            body.len()
        );
        if with_body { [head, body].concat().into_bytes() } else { head.into_bytes() }
    }
}

impl From<&Refusal> for ErrorResponse {
    fn from(refusal: &Refusal) -> Self {
        let (status, code) = match refusal {
            Refusal::Rule(denial) => ("403 Forbidden", code_of(denial)),
            Refusal::Address { .. } => ("403 Forbidden", "address_refused"),
            Refusal::Malformed(HeadError::TooSlow) => ("408 Request Timeout", "head_timeout"),
            Refusal::Malformed(HeadError::TooLong | HeadError::TooManyFields) => {
                ("431 Request Header Fields Too Large", "head_too_long")
            }
            Refusal::Malformed(_) => ("400 Bad Request", "malformed"),
            Refusal::TooManyConnections(_) => ("503 Service Unavailable", "too_many_connections"),
        };
        Self { status, code, message: refusal.to_string() }
    }
}

fn code_of(denial: &Denial) -> &'static str {
    match denial {
        Denial::Offline => "offline",
        Denial::Denied(..) => "denied",
        Denial::NotListed(_) => "not_on_allow_list",
        Denial::PortClosed(_) | Denial::PortBlocked => "port_closed",
    }
}

impl From<Failure> for ErrorResponse {
    fn from(failure: Failure) -> Self {
        let (status, code, message) = match failure {
            Failure::NotFound => (BAD_GATEWAY, "name_not_found", "the host's name does not resolve"),
            Failure::Unreachable => {
                (BAD_GATEWAY, "unreachable", "no connection could be made to the host's address")
            }
            Failure::TimedOut => (TIMEOUT, "connect_timeout", "the host could not be reached in time"),
            Failure::Idle => (TIMEOUT, "idle", "the host sent nothing for too long"),
            Failure::TargetGone => (BAD_GATEWAY, "target_gone", "the host closed the connection too early"),
            Failure::BadResponse => (BAD_GATEWAY, "bad_response", "the host's answer is not valid HTTP/1.1"),
            Failure::RefusedSince => (
                "403 Forbidden",
                "refused_since",
                "the organization's egress rules changed and no longer allow this request",
            ),
            Failure::BodyStalled => {
                ("408 Request Timeout", "body_timeout", "the request body did not arrive in time")
            }
            Failure::ClientGone => ("400 Bad Request", "body_incomplete", "the request body ended too early"),
            Failure::BadBody => {
                ("400 Bad Request", "malformed_body", "the chunks of the request body are malformed")
            }
            Failure::BodyTooLong => {
                ("413 Content Too Large", "body_too_long", "the request body is longer than allowed")
            }
        };
        Self { status, code, message: message.to_owned() }
    }
}
