//! Requests whose run already exists: ended, in flight on another instance, or orphaned by an instance that died.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use policy::{RunState, Versions, decide};
use proto::{RunStatus, ToolErrorCode};
use serde_json::json;
use store::{Change, GateWrite, Run, StoreError, Written};

use crate::judgement::{JudgedCall, Undecidable, with_case};
use crate::request::CallRequest;
use crate::result::{CallResult, Refusal};
use crate::tool::{Tool, ToolScope, Work};
use crate::{DEAD_AFTER, Gate};

/// The delay between two lookups of a call that another process executes, of whose end nothing tells us. That happens only
/// while one gateway replaces another, because one serves a database; SQLite cannot notify another process, and PostgreSQL
/// would need a connection for it.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How much longer than the tool's own timeout a caller waits for another instance.
const WAIT_MARGIN: Duration = Duration::from_secs(10);

/// The meaning of an existing run for a request with its id.
pub(crate) enum ExistingRun {
    /// The run belongs to another caller or another request.
    Conflict,
    Answered(Box<CallResult>),
    /// No instance executes the run any more.
    Orphaned(Box<Run>),
    /// The run was deleted, or another instance takes too long.
    Unresolved(Refusal),
}

/// The outcome of an attempt to take over an orphaned call.
pub(crate) enum TakeOver {
    /// This instance owns the call now and may execute it again.
    Execute { call: Box<JudgedCall>, tool: Arc<dyn Tool>, versions: Versions },
    /// The call was given up, or another instance was faster: look it up again.
    LookAgain,
}

impl Gate {
    /// Finds out what an existing run means, and waits as long as another instance executes it.
    pub(crate) async fn resolve(&self, request: &CallRequest, run: Run) -> Result<ExistingRun, Undecidable> {
        if run.request_hash != Some(request.request_hash.to_string())
            || run.actor != json!(request.caller.actor)
        {
            return Ok(ExistingRun::Conflict);
        }
        if run.status.is_terminal() {
            return Ok(ExistingRun::Answered(Box::new(self.ended_result(request, &run))));
        }
        if run.status == RunStatus::Created {
            return self.waiting_result(request, &run).await;
        }
        let tool = self.find_tool(request).await?;
        let patience = tool.map_or(WAIT_MARGIN, |tool| tool.timeout() + WAIT_MARGIN);
        let ended = tokio::time::timeout(patience, self.wait_for_end(request, run)).await;
        ended.unwrap_or_else(|_| {
            let late = "the call is still in flight: try again";
            Ok(ExistingRun::Unresolved(Refusal::new(ToolErrorCode::DependencyDown, late)))
        })
    }

    /// The answer to a call that was sent again while it waits for approval.
    async fn waiting_result(&self, request: &CallRequest, run: &Run) -> Result<ExistingRun, Undecidable> {
        let found = self.store.invocation_of_run(run.org_id, &run.run_id).await?;
        Ok(match found {
            Some(found) => ExistingRun::Answered(Box::new(CallResult::waiting(request, found.id))),
            None => ExistingRun::Unresolved(Refusal::unknown()),
        })
    }

    async fn wait_for_end(&self, request: &CallRequest, mut run: Run) -> Result<ExistingRun, Undecidable> {
        loop {
            if run.status.is_terminal() {
                return Ok(ExistingRun::Answered(Box::new(self.ended_result(request, &run))));
            }
            // If an approval of this process executes the run, its end is told.
            let ended = self.calls.approved.ended(&request.key());
            if ended.is_none() && self.is_orphaned(&run).await? {
                return Ok(ExistingRun::Orphaned(Box::new(run)));
            }
            match ended {
                Some(ended) => ended.await,
                None => tokio::time::sleep(POLL_INTERVAL).await,
            }
            match self.store.run(request.caller.org, &request.run.id).await? {
                Some(found) => run = found,
                None => return Ok(ExistingRun::Unresolved(Refusal::unknown())),
            }
        }
    }

    fn ended_result(&self, request: &CallRequest, run: &Run) -> CallResult {
        let result = stored_result(request, run);
        self.calls.recent.insert(request.key(), request.fingerprint(), &result);
        result
    }

    /// Whether no instance executes a call that has not ended.
    async fn is_orphaned(&self, run: &Run) -> Result<bool, StoreError> {
        let Some(instance) = &run.instance else { return Ok(false) };
        if *instance == self.instance.id {
            // This instance executes only this request under the id, and no approval of it is in progress: the database
            // committed the claim, but its reply was lost and the caller was told to retry.
            return Ok(true);
        }
        let before = self.clock.now() - TimeDelta::from_std(DEAD_AFTER).unwrap_or_default();
        let Some(process) = self.store.seen_instance(instance, before).await? else { return Ok(true) };
        Ok(matches!((&self.instance.process, process), (Some(own), Some(other)) if own.knows_dead(&other)))
    }

    /// Takes over an orphaned call if a second execution is harmless and policy still allows it. Otherwise the call
    /// ends with an unknown outcome.
    pub(crate) async fn take_over(
        &self,
        request: &Arc<CallRequest>,
        run: Run,
    ) -> Result<TakeOver, Undecidable> {
        let judgement = self.judge(request).await?;
        // The parent run may have died with the instance that claimed the call.
        let asked = policy::Request { run: RunState::New, ..judgement.asked };
        let allowed = decide(&self.rules.policy(), &asked).outcome == policy::Outcome::Allow;
        let replayable =
            |tool: &Arc<dyn Tool>| matches!(tool.work(), Work::Outside(tool) if tool.replay_safe());
        let Some(tool) = judgement.tool.filter(|tool| allowed && replayable(tool)) else {
            self.give_up(&run).await?;
            return Ok(TakeOver::LookAgain);
        };
        let change = Change::Take {
            org: run.org_id,
            run_id: run.run_id.clone(),
            from: run.instance.clone().unwrap_or_default(),
            to: self.instance.id.clone(),
        };
        match self.store.gate_write(GateWrite::new(change, Vec::new())).await? {
            Written::Done => {
                // The run was created by the first judgement, and its end must agree with that one.
                let started_at = run.started_at.filter(|at| *at > run.created_at);
                let (case, parent_run_id) = (run.case_id, run.parent_run_id);
                let request = with_case(request, case.as_ref());
                let call =
                    Box::new(JudgedCall { request, case, parent_run_id, started_at, ..judgement.call });
                let versions = Versions { lanes: run.lanes_version, roles: run.roles_version };
                Ok(TakeOver::Execute { call, tool, versions })
            }
            _ => Ok(TakeOver::LookAgain),
        }
    }

    /// Records that the outcome of a call is unknown.
    pub(crate) async fn give_up(&self, run: &Run) -> Result<(), StoreError> {
        let name = policy::full_name(
            run.tool.as_deref().unwrap_or_default(),
            run.operation.as_deref().unwrap_or_default(),
        );
        // A source that does not answer must not keep the run open forever.
        let scope = ToolScope { org: run.org_id, session: run.session_id };
        let tool = self.sources.find(&self.rules.policy(), scope, &name).await.ok().flatten();
        let writes = tool.and_then(|tool| tool.writes().cloned());
        let Some(call) = JudgedCall::of_run(run, writes) else { return Ok(()) };
        let versions = Versions { lanes: run.lanes_version.clone(), roles: run.roles_version.clone() };
        let instance = run.instance.clone().unwrap_or_default();
        let (mut write, _) = self.end(&call, &instance, Err(Refusal::unknown()), &versions);
        if let Change::End { ended, .. } = &mut write.change {
            "unknown".clone_into(&mut ended.outcome);
        }
        metrics::counter!("proliferate_gate_unknown_total").increment(1);
        tracing::warn!(run = %run.run_id, "an instance died while it executed a call: its outcome is unknown");
        // If another instance was faster, it wrote the same or knew more.
        self.store.gate_write(write).await.map(drop)
    }
}

/// The result of a run that has ended.
pub(crate) fn stored_result(request: &CallRequest, run: &Run) -> CallResult {
    let stored = run.answer.clone().and_then(|answer| serde_json::from_value(answer).ok());
    stored.unwrap_or_else(|| CallResult::refused(request, &Refusal::unknown()))
}
