//! A call that came before: at work here, at work elsewhere, answered, or left behind by an instance that died.

use std::time::Duration;

use chrono::TimeDelta;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use ledger::Hash;
use policy::{Claim, RunState, Versions, decide};
use proto::{OrgId, RunStatus, ToolErrorCode};
use serde_json::json;
use store::{Change, GateWrite, Run, StoreError, Written};

use super::call::{Answered, Call, Outcome, Refusal, Result as CallResult};
use super::question::Undecidable;
use super::{DEAD_AFTER, Gate, pipeline};
use crate::app::AppState;
use crate::sources::{self, Tool, Work};

/// Between two looks at a call that another instance executes.
const LOOK: Duration = Duration::from_millis(100);
/// How much longer than the tool itself may take one waits for another instance.
const MARGIN: Duration = Duration::from_secs(10);

pub(super) type Underway = Shared<BoxFuture<'static, Answered>>;

/// A call at work: what is asked by whom, and where its answer will be.
pub(super) struct InFlight {
    question: (Hash, Claim),
    work: Underway,
}

/// What is known of a call before anything is done.
pub(super) enum Known {
    Nothing,
    Answer(Answered),
    Down(Undecidable),
}

impl Gate {
    /// Brings a call to work, or finds the same one there. `None`: another one is there under its id.
    pub(super) fn join(&self, key: &(OrgId, String), call: &Call, work: Underway) -> Option<Underway> {
        let mut at_work = self.work();
        match at_work.get(key) {
            Some(found) if found.question != call.question() => None,
            Some(found) => Some(found.work.clone()),
            None => {
                at_work.insert(key.clone(), InFlight { question: call.question(), work: work.clone() });
                Some(work)
            }
        }
    }

    /// A call is at work no more. Another one may have come under its id since.
    pub(super) fn leave(&self, key: &(OrgId, String), work: &Underway) {
        let mut at_work = self.work();
        if at_work.get(key).is_some_and(|found| found.work.ptr_eq(work)) {
            at_work.remove(key);
        }
    }

    pub(super) async fn judge_known(&self, app: &AppState, call: &Call, run: Run) -> Known {
        // An answer is for whoever asked first: the same words from somebody else are another call.
        if run.request_hash != Some(call.request_hash.to_string()) || run.actor != json!(call.actor) {
            return self.conflict(call).await;
        }
        if run.status.is_terminal() {
            let answered = stored(call, &run);
            self.answers.keep(call.key(), call.question(), &answered);
            return Known::Answer(answered);
        }
        match self.is_orphaned(&run).await {
            Ok(true) => self.take_over(app, call, run).await,
            Ok(false) => self.wait_for(app, call).await,
            Err(error) => Known::Down(error.into()),
        }
    }

    /// The refusal is recorded in the caller's chain; the run that has the id is not touched.
    pub(super) async fn conflict(&self, call: &Call) -> Known {
        if let Err(over) = self.take_refusal(call) {
            return Known::Answer(self.refuse_unrecorded(call, &over));
        }
        let answered = Answered::conflict(call);
        let versions = self.rules.policy().pins().versions();
        let verdict = policy::Verdict {
            outcome: policy::Outcome::Deny,
            rule_id: "claim.same_id_other_content".to_owned(),
            reason: "the id was used before with other content".to_owned(),
        };
        let refusal = Refusal::new(ToolErrorCode::InvalidRequest, verdict.reason.clone());
        let events = vec![
            self.scribe.decision(call, &verdict, &versions),
            self.scribe.outcome(call, ledger::ActionType::ToolCall, Some(&refusal), &versions),
        ];
        let write = GateWrite::new(Change::Nothing, events);
        match self.store.gate_write(write).await {
            Ok(_) => Known::Answer(answered),
            Err(error) => Known::Down(error.into()),
        }
    }

    /// Whether nobody executes a call that is under way.
    async fn is_orphaned(&self, run: &Run) -> Result<bool, StoreError> {
        let Some(instance) = &run.instance else { return Ok(false) };
        if *instance == self.instance {
            // Whoever asks is the one that is at work on it here, so nobody else is: the answer to the claim was lost on its
            // way from the database, and the caller was told to ask again.
            return Ok(true);
        }
        let before = self.clock.now() - TimeDelta::from_std(DEAD_AFTER).unwrap_or_default();
        let Some(process) = self.store.seen_instance(instance, before).await? else { return Ok(true) };
        Ok(matches!((&self.process, process), (Some(own), Some(other)) if own.knows_dead(&other)))
    }

    /// Executes what a dead instance left behind, if that cannot harm; else nobody knows, and that is the answer.
    async fn take_over(&self, app: &AppState, call: &Call, run: Run) -> Known {
        let tool = sources::find(&self.rules.policy(), &call.tool, &call.operation);
        let work = tool.as_ref().map(|tool| (tool.as_ref(), tool.work()));
        let again = work.filter(|(_, work)| work.replay_safe());
        let allowed = match self.is_still_allowed(call, tool.as_deref()).await {
            Ok(allowed) => allowed,
            Err(error) => return Known::Down(error),
        };
        let Some((tool, Work::Outside(outside))) = again.filter(|_| allowed) else {
            return match self.give_up(&run).await {
                Ok(()) => self.again(call).await,
                Err(error) => Known::Down(error.into()),
            };
        };
        let change = Change::Take {
            org: run.org_id,
            run_id: run.run_id.clone(),
            from: run.instance.clone().unwrap_or_default(),
            to: self.instance.clone(),
        };
        let taken = GateWrite::new(change, Vec::new());
        match self.store.gate_write(taken).await {
            Ok(Written::Done) => {
                let versions = Versions { lanes: run.lanes_version, roles: run.roles_version };
                Known::Answer(pipeline::execute(app, call, (tool, outside), &versions).await)
            }
            // Somebody was faster.
            Ok(_) => self.wait_for(app, call).await,
            Err(error) => Known::Down(error.into()),
        }
    }

    /// Whether policy would let the call happen now: an operator may have forbidden it since it was claimed. The run that it
    /// belongs to may have died with the instance that claimed it.
    async fn is_still_allowed(&self, call: &Call, tool: Option<&dyn Tool>) -> Result<bool, Undecidable> {
        let mut request = self.question(&mut call.clone(), tool).await?.request;
        request.run = RunState::New;
        Ok(decide(&self.rules.policy(), &request).outcome == policy::Outcome::Allow)
    }

    /// Writes down that nobody knows what became of a call.
    pub(super) async fn give_up(&self, run: &Run) -> Result<(), StoreError> {
        let Some(mut call) = Call::of_run(run) else { return Ok(()) };
        let tool = sources::find(&self.rules.policy(), &call.tool, &call.operation);
        call.writes = tool.and_then(|tool| tool.writes().cloned());
        let versions = Versions { lanes: run.lanes_version.clone(), roles: run.roles_version.clone() };
        let instance = run.instance.clone().unwrap_or_default();
        let (mut write, _) = self.outcome(&call, &instance, Err(Refusal::unknown()), &versions);
        if let Change::End { ended, .. } = &mut write.change {
            "unknown".clone_into(&mut ended.outcome);
        }
        metrics::counter!("proliferate_gate_unknown_total").increment(1);
        tracing::warn!(run = %run.run_id, "a call was left behind by an instance that died: unknown");
        // Whoever was faster wrote the same, or knew better.
        self.store.gate_write(write).await.map(drop)
    }

    async fn again(&self, call: &Call) -> Known {
        match self.store.run(call.org, &call.run_id).await {
            Ok(Some(run)) if run.status.is_terminal() => Known::Answer(stored(call, &run)),
            Ok(_) => Known::Answer(Answered::unrecorded(call, Refusal::unknown())),
            Err(error) => Known::Down(error.into()),
        }
    }

    /// Another instance is at it: its answer is ours too.
    fn wait_for<'a>(&'a self, app: &'a AppState, call: &'a Call) -> BoxFuture<'a, Known> {
        let tool = sources::find(&self.rules.policy(), &call.tool, &call.operation);
        let patience = tool.map_or(MARGIN, |tool| tool.timeout() + MARGIN);
        async move {
            let waiting = async {
                loop {
                    match self.store.run(call.org, &call.run_id).await {
                        Ok(Some(run)) if run.status != RunStatus::Running => {
                            return Known::Answer(stored(call, &run));
                        }
                        Ok(Some(run)) => match self.is_orphaned(&run).await {
                            Ok(true) => return self.take_over(app, call, run).await,
                            Ok(false) => {}
                            Err(error) => return Known::Down(error.into()),
                        },
                        Ok(None) => return Known::Nothing,
                        Err(error) => return Known::Down(error.into()),
                    }
                    tokio::time::sleep(LOOK).await;
                }
            };
            let late = Refusal::new(ToolErrorCode::DependencyDown, "the call is still at work: ask again");
            tokio::time::timeout(patience, waiting)
                .await
                .unwrap_or_else(|_| Known::Answer(Answered::unrecorded(call, late)))
        }
        .boxed()
    }
}

/// The answer of a run that has ended.
pub(super) fn stored(call: &Call, run: &Run) -> Answered {
    let kept = run.answer.clone().and_then(|answer| serde_json::from_value(answer).ok());
    kept.unwrap_or_else(|| {
        let refusal = Refusal::unknown();
        Answered { outcome: Outcome::Failed(refusal.code), body: call.body(&CallResult::Refused(refusal)) }
    })
}
