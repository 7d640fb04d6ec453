//! The vocabulary of actions: how dangerous one is, what policy says to it, and how far an attempt has come.

use crate::words::words;

words! {
    /// What an action can do to the world.
    Risk as "risk level" {
        /// It only looks.
        Read = "read",
        /// It changes something that can be changed back.
        Write = "write",
        /// It may do harm that stays.
        Danger = "danger",
    }

    /// What policy answers to an action.
    ActionMode as "action mode" {
        /// Run it at once.
        Allow = "allow",
        /// Ask a human first.
        RequireApproval = "require_approval",
        /// Never run it.
        Deny = "deny",
    }

    /// Which rule decided the mode.
    ModeSource as "mode source" {
        /// The automation that started the session says so.
        AutomationOverride = "automation_override",
        /// The organisation says so.
        OrgDefault = "org_default",
        /// Nobody said anything; it follows from the risk.
        InferredDefault = "inferred_default",
    }

    /// How far an invocation has come.
    InvocationStatus as "invocation status" {
        /// It waits for a human.
        Pending = "pending",
        /// It may run, by policy or by a human.
        Approved = "approved",
        /// It runs now.
        Executing = "executing",
        /// It ran and has a result.
        Completed = "completed",
        /// It ran, or tried to, and has an error.
        Failed = "failed",
        /// Policy or a human refused it.
        Denied = "denied",
        /// Nobody answered in time.
        Expired = "expired",
    }
}
