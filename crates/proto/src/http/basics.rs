//! Common bodies: health, the caller's identity, success and errors.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::string_enums::string_enums;
use crate::{BillingCode, ErrorCode, OrgId, Role, UserId};

/// The response to `GET /health`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// The status, which is always `ok`.
    pub status: String,
}

impl Health {
    pub fn ok() -> Self {
        Self { status: "ok".to_owned() }
    }
}

/// A success without further content. Old clients expect a body even then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OkReply {
    pub ok: bool,
}

impl OkReply {
    pub const OK: Self = Self { ok: true };
}

string_enums! {
    /// The kind of credential that the caller used.
    TokenSource as "token source" {
        /// A user token.
        User = "user",
        /// An API key that acts for a user.
        Cli = "cli",
        /// A token of another service.
        Service = "service",
        /// The token of a session's sandbox.
        Sandbox = "sandbox",
    }
}

/// The answer to `GET /v1/me`. A service has no user, and an organization only if its token is bound to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Me {
    pub user_id: Option<UserId>,
    pub org_id: Option<OrgId>,
    pub role: Option<Role>,
    pub source: TokenSource,
}

/// The body of every error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// A message for people.
    pub error: String,
    /// A stable code for programs.
    pub code: ErrorCode,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

impl ErrorBody {
    pub fn new(code: ErrorCode, error: impl Into<String>) -> Self {
        Self { error: error.into(), code, details: None }
    }

    /// A billing error. It gives the reason in `details.billingCode`, where old clients expect it.
    pub fn billing(reason: BillingCode, error: impl Into<String>) -> Self {
        let details = serde_json::json!({ "billingCode": reason });
        Self { details: Some(details), ..Self::new(ErrorCode::PaymentRequired, error) }
    }
}
