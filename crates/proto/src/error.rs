//! Error codes that programs may match on. The codes are stable; the messages next to them are for people and
//! may change.

use crate::string_enums::string_enums;

string_enums! {
    /// Why a request was rejected or failed: the `code` of every error body.
    ErrorCode as "error code" {
        /// The request is invalid.
        BadRequest = "bad_request",
        /// The body is not valid JSON, or does not have the expected fields.
        InvalidJson = "invalid_json",
        /// The body is larger than this route accepts.
        PayloadTooLarge = "payload_too_large",
        /// The credential is missing or not valid.
        Unauthorized = "unauthorized",
        /// The caller is authenticated but not allowed to do this.
        Forbidden = "forbidden",
        /// The resource does not exist, or the caller is not allowed to know that it exists.
        NotFound = "not_found",
        /// The path exists but does not support this method.
        MethodNotAllowed = "method_not_allowed",
        /// The current state of the resource does not allow this.
        Conflict = "conflict",
        /// The first request with this idempotency key is still running.
        IdempotencyInProgress = "idempotency_in_progress",
        /// The idempotency key was already used with a different request.
        IdempotencyMismatch = "idempotency_mismatch",
        /// The resource existed but has expired, like an approval that nobody gave in time.
        Expired = "expired",
        /// The organization has no repository to work on.
        NoRepos = "no_repos",
        /// Too many requests in too short a time.
        RateLimited = "rate_limited",
        /// Too many actions are already waiting for an answer.
        TooManyPending = "too_many_pending",
        /// Billing does not allow this; `details.billingCode` gives the reason.
        PaymentRequired = "payment_required",
        /// The policy or a human denied the action.
        ActionDenied = "action_denied",
        /// The action ran, and its provider reported a failure.
        ActionFailed = "action_failed",
        /// The operation took too long.
        Timeout = "timeout",
        /// Something that the request needs, such as the sandbox, is not available at the moment.
        Unavailable = "unavailable",
        /// An internal error of the gateway.
        Internal = "internal",
    }

    ToolErrorCode as "tool error code" {
        /// The policy denied the call.
        PolicyDenied = "POLICY_DENIED",
        /// The tool did not answer in time.
        ToolTimeout = "TOOL_TIMEOUT",
        /// The tool reported a failure.
        ToolError = "TOOL_ERROR",
        /// The call is malformed.
        InvalidRequest = "INVALID_REQUEST",
        /// A service that the call depends on is not available.
        DependencyDown = "DEPENDENCY_DOWN",
    }

    /// Why billing does not allow a request.
    BillingCode as "billing code" {
        /// The organization has no credits left.
        NoCredits = "NO_CREDITS",
        /// The plan's limit of concurrent sessions is reached.
        ConcurrentLimit = "CONCURRENT_LIMIT",
        /// Billing is not set up for the organization.
        BillingNotConfigured = "BILLING_NOT_CONFIGURED",
        /// The billing account is blocked.
        StateBlocked = "STATE_BLOCKED",
        /// The grace period has ended.
        GraceExpired = "GRACE_EXPIRED",
    }
}

impl ErrorCode {
    /// Whether the same request may succeed later without any change by the caller.
    pub const fn retryable(self) -> bool {
        matches!(self, Self::IdempotencyInProgress | Self::RateLimited | Self::Timeout | Self::Unavailable)
    }
}

impl ToolErrorCode {
    /// Whether the same call may succeed later. A tool that failed for its own reasons is expected to fail
    /// again.
    pub const fn retryable(self) -> bool {
        matches!(self, Self::ToolTimeout | Self::DependencyDown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes are a stable API: codes may be added to this list, but none may change.
    #[test]
    fn error_codes_are_stable() {
        let codes: Vec<(&str, bool)> = ErrorCode::ALL.iter().map(|c| (c.as_str(), c.retryable())).collect();
        assert_eq!(
            codes,
            [
                ("bad_request", false),
                ("invalid_json", false),
                ("payload_too_large", false),
                ("unauthorized", false),
                ("forbidden", false),
                ("not_found", false),
                ("method_not_allowed", false),
                ("conflict", false),
                ("idempotency_in_progress", true),
                ("idempotency_mismatch", false),
                ("expired", false),
                ("no_repos", false),
                ("rate_limited", true),
                ("too_many_pending", false),
                ("payment_required", false),
                ("action_denied", false),
                ("action_failed", false),
                ("timeout", true),
                ("unavailable", true),
                ("internal", false),
            ]
        );
    }

    #[test]
    fn tool_error_codes_are_stable_and_two_are_retryable() {
        let codes: Vec<(&str, bool)> =
            ToolErrorCode::ALL.iter().map(|c| (c.as_str(), c.retryable())).collect();
        assert_eq!(
            codes,
            [
                ("POLICY_DENIED", false),
                ("TOOL_TIMEOUT", true),
                ("TOOL_ERROR", false),
                ("INVALID_REQUEST", false),
                ("DEPENDENCY_DOWN", true),
            ]
        );
    }

    #[test]
    fn billing_codes_match_what_clients_expect() {
        let codes: Vec<&str> = BillingCode::ALL.iter().map(|c| c.as_str()).collect();
        let known =
            ["NO_CREDITS", "CONCURRENT_LIMIT", "BILLING_NOT_CONFIGURED", "STATE_BLOCKED", "GRACE_EXPIRED"];
        assert_eq!(codes, known);
    }
}
