//! What every client meets first: health, who am I, yes, and no.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::words::words;
use crate::{BillingCode, ErrorCode, OrgId, Role, UserId};

/// The answer to `GET /health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// `ok`, or the request would not have been answered.
    pub status: String,
}

impl Health {
    /// The one answer there is.
    pub fn ok() -> Self {
        Self { status: "ok".to_owned() }
    }
}

/// Whether something behind the proxy answers, and with which HTTP status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProxyHealth {
    pub ready: bool,
    pub status: u16,
}

/// The answer where there is nothing to say but yes; old clients need a body even then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OkReply {
    pub ok: bool,
}

impl OkReply {
    pub const OK: Self = Self { ok: true };
}

words! {
    /// What kind of credential a caller came with.
    TokenSource as "token source" {
        /// A person's token.
        User = "user",
        /// A key that acts for a person.
        Cli = "cli",
        /// Another service of ours.
        Service = "service",
        /// The sandbox of one session.
        Sandbox = "sandbox",
    }
}

/// The answer to `GET /v1/me`. A service has no user, and no organisation unless it is bound to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Me {
    pub user_id: Option<UserId>,
    pub org_id: Option<OrgId>,
    pub role: Option<Role>,
    pub source: TokenSource,
}

/// The body of every refusal and failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// For people.
    pub error: String,
    /// For programs.
    pub code: ErrorCode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

impl ErrorBody {
    /// An error without details.
    pub fn new(code: ErrorCode, error: impl Into<String>) -> Self {
        Self { error: error.into(), code, details: None }
    }

    /// An error of billing, which names its reason where old clients look for it.
    pub fn billing(reason: BillingCode, error: impl Into<String>) -> Self {
        let details = serde_json::json!({ "billingCode": reason });
        Self { details: Some(details), ..Self::new(ErrorCode::PaymentRequired, error) }
    }
}
