//! The codes that programs may match on. Texts beside them are for people and may change; these may not.

use crate::words::words;

words! {
    /// Why a request was refused or failed; `code` of every error body.
    ErrorCode as "error code" {
        /// The request makes no sense as it stands.
        BadRequest = "bad_request",
        /// The body is not JSON, or not of the expected shape.
        InvalidJson = "invalid_json",
        /// The body is larger than this route takes.
        PayloadTooLarge = "payload_too_large",
        /// No credential, or one that does not hold.
        Unauthorized = "unauthorized",
        /// The caller is known and may not do this.
        Forbidden = "forbidden",
        /// There is no such thing, or the caller may not know of it.
        NotFound = "not_found",
        /// The path exists, this method on it does not.
        MethodNotAllowed = "method_not_allowed",
        /// The thing is in a state that does not allow this.
        Conflict = "conflict",
        /// The first request with this idempotency key is still running.
        IdempotencyInProgress = "idempotency_in_progress",
        /// The idempotency key was used before with other content.
        IdempotencyMismatch = "idempotency_mismatch",
        /// It was there and its time is over, as with an approval that nobody gave.
        Expired = "expired",
        /// The organisation has no repository to work on.
        NoRepos = "no_repos",
        /// Too many requests in too short a time.
        RateLimited = "rate_limited",
        /// Too many actions wait for an answer already.
        TooManyPending = "too_many_pending",
        /// Billing refuses; `details.billingCode` says why.
        PaymentRequired = "payment_required",
        /// Policy or a human refused the action.
        ActionDenied = "action_denied",
        /// The action ran and failed at its source.
        ActionFailed = "action_failed",
        /// It took too long.
        Timeout = "timeout",
        /// Something this needs, such as the sandbox, is not there now.
        Unavailable = "unavailable",
        /// Our fault.
        Internal = "internal",
    }

    /// Why a governed tool call did not succeed.
    ToolErrorCode as "tool error code" {
        /// Policy refused the call.
        PolicyDenied = "POLICY_DENIED",
        /// The tool did not answer in time.
        ToolTimeout = "TOOL_TIMEOUT",
        /// The tool answered with a failure.
        ToolError = "TOOL_ERROR",
        /// The call cannot be understood.
        InvalidRequest = "INVALID_REQUEST",
        /// Something the call needs is down.
        DependencyDown = "DEPENDENCY_DOWN",
    }

    /// Why billing refuses.
    BillingCode as "billing code" {
        /// The credits are used up.
        NoCredits = "NO_CREDITS",
        /// As many sessions run as the plan allows.
        ConcurrentLimit = "CONCURRENT_LIMIT",
        /// The organisation has no billing yet.
        BillingNotConfigured = "BILLING_NOT_CONFIGURED",
        /// The account is blocked.
        StateBlocked = "STATE_BLOCKED",
        /// The time of grace is over.
        GraceExpired = "GRACE_EXPIRED",
    }
}

impl ErrorCode {
    /// Whether the same request may succeed later without anything being changed by the caller.
    pub const fn retryable(self) -> bool {
        matches!(self, Self::IdempotencyInProgress | Self::RateLimited | Self::Timeout | Self::Unavailable)
    }
}

impl ToolErrorCode {
    /// Whether the same call may succeed later. A tool that failed for its own reasons would fail again.
    pub const fn retryable(self) -> bool {
        matches!(self, Self::ToolTimeout | Self::DependencyDown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes are a promise: this list may grow, and no line of it may change.
    #[test]
    fn the_codes_are_exactly_these() {
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
    fn the_tool_contract_has_five_codes_and_two_may_be_tried_again() {
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
    fn billing_codes_are_those_that_clients_know() {
        let codes: Vec<&str> = BillingCode::ALL.iter().map(|c| c.as_str()).collect();
        let known =
            ["NO_CREDITS", "CONCURRENT_LIMIT", "BILLING_NOT_CONFIGURED", "STATE_BLOCKED", "GRACE_EXPIRED"];
        assert_eq!(codes, known);
    }
}
