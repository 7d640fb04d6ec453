//! Runs of the Tool Gateway Contract: what is under way, and how it may end.

use crate::words::words;

words! {
    /// What a run is.
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

    /// Where a run stands. All but the first two are final.
    RunStatus as "status" {
        Created = "created",
        Running = "running",
        Completed = "completed",
        Failed = "failed",
        Cancelled = "cancelled",
        Denied = "denied",
    }
}

impl RunStatus {
    pub const fn is_terminal(self) -> bool {
        !matches!(self, Self::Created | Self::Running)
    }

    /// Whether the contract knows the step from here to `next`.
    pub const fn may_become(self, next: Self) -> bool {
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
    fn only_the_steps_of_the_contract_are_known() {
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
                assert_eq!(from.may_become(*to), known.contains(&(*from, *to)), "{from} to {to}");
            }
        }
    }
}
