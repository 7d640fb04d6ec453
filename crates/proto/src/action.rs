//! The vocabulary of actions: their risk, the mode that the policy assigns, and the status of an invocation.

use crate::string_enums::string_enums;

string_enums! {
    /// The effect that an action can have.
    Risk as "risk level" {
        /// It only reads.
        Read = "read",
        /// It makes changes that can be undone.
        Write = "write",
        /// It may cause lasting damage.
        Danger = "danger",
    }

    /// Whether an action may run.
    ActionMode as "action mode" {
        /// Run it immediately.
        Allow = "allow",
        /// Ask a human first.
        RequireApproval = "require_approval",
        /// Never run it.
        Deny = "deny",
    }

    /// Where the mode comes from.
    ModeSource as "mode source" {
        /// A setting of the automation that started the session.
        AutomationOverride = "automation_override",
        /// A setting of the organisation.
        OrgDefault = "org_default",
        /// The default for the action's risk, because nobody set a mode.
        InferredDefault = "inferred_default",
    }

    /// The status of an invocation.
    InvocationStatus as "invocation status" {
        /// It waits for a human's approval.
        Pending = "pending",
        /// The policy or a human allowed it to run.
        Approved = "approved",
        /// It is running.
        Executing = "executing",
        /// It completed and has a result.
        Completed = "completed",
        /// It failed, or could not be started, and has an error.
        Failed = "failed",
        /// The policy or a human denied it.
        Denied = "denied",
        /// Nobody approved or denied it in time.
        Expired = "expired",
    }
}
