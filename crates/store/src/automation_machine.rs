//! The states of an automation's run, and the steps between them. Nothing here accesses a database.

use proto::{AutomationRunStatus, CompletionOutcome, Resolution, TriggerEventStatus};

/// An event in the life of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunStep {
    /// Its session exists.
    SessionCreated,
    /// The prompt was sent to its session.
    PromptSent,
    /// Its session cannot be created or prompted.
    CannotStart,
    /// Its session ended or was deleted before the agent reported an outcome.
    SessionLost,
    /// The agent's question was not answered in time.
    QuestionExpired,
    /// Its deadline has passed.
    TimedOut,
    /// A person cancelled it.
    Cancelled,
    /// The agent reported its outcome.
    Completed(CompletionOutcome),
    /// A person settled it after its end.
    Resolved(Resolution),
}

/// The state after a step; `None` if a run in this state cannot take it.
pub fn next_status(from: AutomationRunStatus, step: RunStep) -> Option<AutomationRunStatus> {
    use AutomationRunStatus::{Cancelled, Failed, NeedsHuman, Queued, Ready, Running, TimedOut};
    match (from, step) {
        (Queued, RunStep::SessionCreated) => Some(Ready),
        (Ready, RunStep::PromptSent) => Some(Running),
        (Queued | Ready, RunStep::CannotStart) | (Ready | Running, RunStep::SessionLost) => Some(Failed),
        (Running, RunStep::QuestionExpired) => Some(NeedsHuman),
        (Queued | Ready | Running, RunStep::TimedOut) => Some(TimedOut),
        (Queued | Ready | Running, RunStep::Cancelled) => Some(Cancelled),
        // A quick agent reports before we have recorded that its prompt was sent.
        (Ready | Running, RunStep::Completed(outcome)) => Some(outcome.status()),
        (Failed | NeedsHuman | TimedOut, RunStep::Resolved(resolution)) => Some(resolution.status()),
        _ => None,
    }
}

/// The state of the event that started a run in this state.
pub(crate) fn event_status(run: AutomationRunStatus) -> TriggerEventStatus {
    match run {
        AutomationRunStatus::Queued => TriggerEventStatus::Queued,
        AutomationRunStatus::Ready | AutomationRunStatus::Running => TriggerEventStatus::Processing,
        AutomationRunStatus::Succeeded => TriggerEventStatus::Completed,
        _ => TriggerEventStatus::Failed,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Strategy, prop_oneof, proptest};
    use proptest::sample::select;

    use super::*;
    use AutomationRunStatus::{Cancelled, NeedsHuman, Queued, Ready, Running, Succeeded};

    fn steps() -> Vec<RunStep> {
        let mut all = vec![
            RunStep::SessionCreated,
            RunStep::PromptSent,
            RunStep::CannotStart,
            RunStep::SessionLost,
            RunStep::QuestionExpired,
            RunStep::TimedOut,
            RunStep::Cancelled,
        ];
        all.extend(CompletionOutcome::ALL.iter().copied().map(RunStep::Completed));
        all.extend(Resolution::ALL.iter().copied().map(RunStep::Resolved));
        all
    }

    fn any_step() -> impl Strategy<Value = RunStep> {
        // The way to `running` is taken often enough that later states are reached.
        prop_oneof![select(steps()), select(vec![RunStep::SessionCreated, RunStep::PromptSent])]
    }

    proptest! {
        #[test]
        fn a_run_ends_once_and_never_starts_again(sequence in proptest::collection::vec(any_step(), 0..40)) {
            let (mut status, mut ended, mut open) = (Queued, false, 0);
            for step in sequence {
                let Some(next) = next_status(status, step) else { continue };
                if ended {
                    assert!(next.has_ended() && matches!(step, RunStep::Resolved(_)), "{status} {step:?}");
                    assert!(!matches!(status, Succeeded | Cancelled), "{status} was settled again");
                } else {
                    assert!(!matches!(step, RunStep::Resolved(_)), "{status} was settled before its end");
                    open += usize::from(!next.has_ended());
                }
                assert!(open <= 2, "more than queued, ready, running");
                ended |= next.has_ended();
                assert_eq!(ended, next.has_ended());
                status = next;
            }
        }
    }

    #[test]
    fn every_state_is_reached_and_every_step_is_possible_somewhere() {
        let mut reached = vec![Queued];
        loop {
            let more: Vec<_> = reached
                .iter()
                .flat_map(|from| steps().into_iter().filter_map(|step| next_status(*from, step)))
                .filter(|status| !reached.contains(status))
                .collect();
            let Some(first) = more.first() else { break };
            reached.push(*first);
        }
        reached.sort_unstable();
        assert_eq!(reached, AutomationRunStatus::ALL);
        for step in steps() {
            assert!(reached.iter().any(|from| next_status(*from, step).is_some()), "{step:?}");
        }
    }

    #[test]
    fn an_open_run_can_always_be_cancelled_or_time_out() {
        for status in [Queued, Ready, Running] {
            assert!(!status.has_ended());
            for step in [RunStep::Cancelled, RunStep::TimedOut] {
                assert!(next_status(status, step).is_some_and(AutomationRunStatus::has_ended));
            }
        }
        assert_eq!(next_status(Running, RunStep::QuestionExpired), Some(NeedsHuman));
    }
}
