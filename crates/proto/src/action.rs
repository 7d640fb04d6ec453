//! The vocabulary of actions: their risk, the mode that the policy assigns, and the status of an invocation.

use crate::string_enums::string_enums;

string_enums! {
    /// The effect that an action can have.
    Risk as "risk level" {
        /// The action only reads.
        Read = "read",
        /// The action makes changes that can be undone.
        Write = "write",
        /// The action may cause lasting damage.
        Danger = "danger",
    }

    /// Whether agents may execute statements of their own on a database, and with which risk.
    FreeForm as "use of free-form SQL" {
        /// Agents may only execute the queries that operators have defined.
        Off = "off",
        Read = "read",
        Write = "write",
        Danger = "danger",
    }

    /// Whether an action may run.
    ActionMode as "action mode" {
        /// The action runs immediately.
        Allow = "allow",
        /// A human must approve the action first.
        RequireApproval = "require_approval",
        /// The action never runs.
        Deny = "deny",
    }

    /// The source of the mode.
    ModeSource as "mode source" {
        /// A setting of the automation that started the session.
        AutomationOverride = "automation_override",
        /// A setting of the organization.
        OrgDefault = "org_default",
        /// The default for the action's risk, because nobody set a mode.
        InferredDefault = "inferred_default",
    }

    /// The status of an invocation.
    InvocationStatus as "invocation status" {
        /// The invocation waits for a human's approval.
        Pending = "pending",
        /// The policy or a human allowed the invocation to run.
        Approved = "approved",
        /// The invocation is running.
        Executing = "executing",
        /// The invocation completed and has a result.
        Completed = "completed",
        /// The invocation failed, or could not be started, and has an error.
        Failed = "failed",
        /// The policy or a human denied the invocation.
        Denied = "denied",
        /// The invocation was not approved or denied in time.
        Expired = "expired",
        /// The gateway stopped while the invocation ran, so whether it took effect is unknown.
        Unknown = "unknown",
    }
}
