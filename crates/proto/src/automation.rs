//! Automations: what starts them, and the states of their runs.

use crate::string_enums::string_enums;

string_enums! {
    /// How the requests of a webhook are signed.
    WebhookScheme as "webhook scheme" {
        /// `x-proliferate-signature: t=<unix time>,v1=<HMAC-SHA256 of t.body>`.
        Generic = "generic",
        /// `x-hub-signature-256`.
        Github = "github",
        /// `linear-signature`, and a time in the body.
        Linear = "linear",
    }

    /// The kind of trigger that started a run.
    TriggerKind as "trigger kind" {
        Manual = "manual",
        Webhook = "webhook",
        Cron = "cron",
    }

    /// The state of a trigger event.
    TriggerEventStatus as "trigger event status" {
        Queued = "queued",
        Processing = "processing",
        /// Its run succeeded.
        Completed = "completed",
        /// Its run ended otherwise.
        Failed = "failed",
        /// It started no run.
        Skipped = "skipped",
    }

    /// The state of a run of an automation.
    AutomationRunStatus as "automation run status" {
        /// The run waits for a session.
        Queued = "queued",
        /// The run has a session, which has not got its prompt yet.
        Ready = "ready",
        /// The agent works, or waits for an answer.
        Running = "running",
        Succeeded = "succeeded",
        Failed = "failed",
        NeedsHuman = "needs_human",
        TimedOut = "timed_out",
        Cancelled = "cancelled",
    }

    /// The outcome that an agent reports at the end of its run.
    CompletionOutcome as "outcome" {
        Succeeded = "succeeded",
        Failed = "failed",
        NeedsHuman = "needs_human",
    }

    /// How a person settles a run that did not succeed.
    Resolution as "resolution" {
        Succeeded = "succeeded",
        Failed = "failed",
    }

    /// The kind of an entry in the log of a run.
    RunEventKind as "run event kind" {
        Created = "created",
        Transition = "transition",
        /// The agent reported its outcome.
        Completion = "completion",
        /// The agent began to wait for an answer, or continues.
        Waiting = "waiting",
        Assignment = "assignment",
        /// A person settled the run.
        Resolution = "resolution",
    }

    /// The event that a run waits for.
    WaitingFor as "reason to wait" {
        Question = "question",
    }
}

impl AutomationRunStatus {
    /// Whether the run has ended. A run that has ended never starts again.
    pub const fn has_ended(self) -> bool {
        !matches!(self, Self::Queued | Self::Ready | Self::Running)
    }
}

impl CompletionOutcome {
    /// The state of a run with this outcome.
    pub const fn status(self) -> AutomationRunStatus {
        match self {
            Self::Succeeded => AutomationRunStatus::Succeeded,
            Self::Failed => AutomationRunStatus::Failed,
            Self::NeedsHuman => AutomationRunStatus::NeedsHuman,
        }
    }
}

impl Resolution {
    /// The state of a run that was settled like this.
    pub const fn status(self) -> AutomationRunStatus {
        match self {
            Self::Succeeded => AutomationRunStatus::Succeeded,
            Self::Failed => AutomationRunStatus::Failed,
        }
    }
}
