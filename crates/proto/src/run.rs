//! Runs of the Tool Gateway Contract: their kinds and statuses.

use crate::string_enums::string_enums;

string_enums! {
    /// The kind of a run.
    RunKind as "run_kind" {
        Orchestrator = "orchestrator",
        Agent = "agent",
        ToolGateway = "tool_gateway",
        WriteBroker = "write_broker",
        PolicyChange = "policy_change",
        Promotion = "promotion",
        Export = "export",
        Override = "override",
        System = "system",
        DbWrite = "db_write",
        DbRead = "db_read",
    }

    /// The status of a run. All except the first two are final.
    RunStatus as "status" {
        Created = "created",
        Running = "running",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
        Denied = "denied",
    }

    /// What a run waits for that was created and has not started.
    WorkflowState as "workflow state" {
        /// A person must approve or deny it.
        WaitingForApproval = "waiting_for_approval",
        /// A person has approved it, and it starts when its caller repeats it.
        Approved = "approved",
    }
}

impl RunStatus {
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Created | Self::Running)
    }

    /// Whether the contract allows the transition from this status to `next`.
    pub const fn can_transition_to(self, next: Self) -> bool {
        match self {
            Self::Created => matches!(next, Self::Running | Self::Denied | Self::Cancelled),
            Self::Running => next.is_terminal(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RunStatus::{Cancelled, Completed, Created, Denied, Failed, Running};
    use super::*;

    #[test]
    fn only_transitions_of_the_contract_are_allowed() {
        let known = [
            (Created, Running),
            (Created, Denied),
            (Created, Cancelled),
            (Running, Completed),
            (Running, Failed),
            (Running, Denied),
            (Running, Cancelled),
        ];
        for from in RunStatus::ALL {
            for to in RunStatus::ALL {
                assert_eq!(from.can_transition_to(*to), known.contains(&(*from, *to)), "{from} to {to}");
            }
        }
    }
}
