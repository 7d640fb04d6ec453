//! Notifications: the events that an organization is notified of, and the states of their delivery.

use crate::string_enums::string_enums;

string_enums! {
    /// What waits for a person.
    NotificationKind as "notification kind" {
        Approval = "approval",
        Question = "question",
        /// A run of an automation that failed, timed out or needs a human.
        Run = "run",
    }

    /// The delivery state of a notification.
    NotificationState as "notification state" {
        Pending = "pending",
        Sent = "sent",
        /// Nothing waits any more.
        Dropped = "dropped",
        /// It was tried too often.
        Failed = "failed",
    }
}
