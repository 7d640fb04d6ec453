//! One call, from the question to the answer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use ledger::{ActionType, ArtifactRef, Artifacts, payload_hash};
use policy::{Verdict, Versions, decide};
use proto::{OrgId, RunKind, RunStatus, ToolErrorCode};
use serde_json::{Value, json};
use store::{Called, Change, Ended, GateWrite, NewRun, Written};

use super::call::{Answered, Call, Outcome, Refusal, Result as CallResult};
use super::known::Known;
use super::question::Question;
use super::{Gate, Permit, artifacts};
use crate::app::AppState;
use crate::sources::{self, Failure, Output, Tool};

/// So often a call is decided about anew because its parent ended in between: it ends once.
const LOOKS: u32 = 3;
/// Between two attempts to write down what has happened.
const AGAIN: Duration = Duration::from_millis(500);

impl Gate {
    /// Does a call, or gives the answer that it was given before. It goes on when whoever asked goes away.
    pub(crate) async fn call(app: &AppState, call: Call) -> Answered {
        let gate = app.gate.clone();
        let key = (call.org, call.run_id.clone());
        let (inside, asked) = (app.clone(), call.clone());
        let work = async move { answer(&inside, asked).await }.boxed().shared();
        let Some(work) = gate.join(&key, &call, work) else {
            return told(&call, gate.conflict(&call).await);
        };
        // From the first look on, or a caller that hangs up would leave a call that nobody executes.
        let done = tokio::spawn(async move {
            let _at_work = AtWork { gate, key };
            work.await
        });
        done.await.unwrap_or_else(|_| Answered::unrecorded(&call, Refusal::unknown()))
    }
}

/// A call is at work until this is dropped, however it ends.
struct AtWork {
    gate: Arc<Gate>,
    key: (OrgId, String),
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.gate.work().remove(&self.key);
    }
}

async fn answer(app: &AppState, call: Call) -> Answered {
    match app.gate.known(app, &call).await {
        Known::Nothing => perform(app, call).await,
        known => told(&call, known),
    }
}

fn told(call: &Call, known: Known) -> Answered {
    match known {
        Known::Answer(answered) => answered,
        Known::Down(error) => down(call, &error),
        Known::Nothing => Answered::unrecorded(call, Refusal::unknown()),
    }
}

/// What is decided about a call before it is claimed.
struct Decided {
    question: Question,
    verdict: Verdict,
    versions: Versions,
    tool: Option<Arc<dyn Tool>>,
}

async fn perform(app: &AppState, call: Call) -> Answered {
    let gate = &app.gate;
    let mut call = call;
    for _ in 0..LOOKS {
        let decided = match decide_about(app, &mut call).await {
            Ok(decided) => decided,
            Err(error) => return down(&call, &error),
        };
        let refusal = refused(&call, &decided);
        let written = gate.store.gate_write(gate.claim(&call, &decided, refusal.as_ref())).await;
        match (written, refusal, decided.tool) {
            // No audit, no effect.
            (Err(error), _, _) => return down(&call, &error),
            (Ok(Written::Known(run)), _, _) => {
                let known = gate.judge_known(app, &call, *run).await;
                return told(&call, known);
            }
            // The parent ended after it was looked at: look again.
            (Ok(Written::ParentInactive | Written::NotYours), _, _) => {}
            (Ok(Written::Done), Some(refusal), _) => {
                let outcome = Outcome::Failed(refusal.code);
                return Answered { outcome, body: call.body(&CallResult::Refused(refusal)) };
            }
            (Ok(Written::Done), None, Some(tool)) => {
                crash_point("gate-claimed");
                return execute(app, &call, tool.as_ref(), &decided.versions).await;
            }
            (Ok(Written::Done), None, None) => return Answered::unrecorded(&call, Refusal::unknown()),
        }
    }
    let changing = "the run that the call belongs to changes all the time";
    Answered::unrecorded(&call, Refusal::new(ToolErrorCode::DependencyDown, changing))
}

async fn decide_about(app: &AppState, call: &mut Call) -> Result<Decided, store::StoreError> {
    let gate = &app.gate;
    let policy = gate.rules.policy();
    let tool = sources::find(&policy, &call.tool, &call.operation);
    let question = gate.question(call, tool.as_deref()).await?;
    call.writes = tool.as_ref().and_then(|tool| tool.writes().cloned());
    // Only in a lane that breaks the glass is a ticket one.
    let breaks = policy.lane(&call.lane).is_some_and(|lane| lane.override_minutes.is_some());
    call.ticket = call.ticket.take().filter(|_| breaks);
    // A child is of its parent's case, also where it does not say so.
    if call.case.is_none() {
        call.case = question.parent.as_ref().and_then(|parent| parent.case_id.clone());
    }
    let verdict = decide(&policy, &question.request);
    Ok(Decided { question, verdict, versions: policy.pins().versions(), tool })
}

/// Why a call is not executed, if it is not.
fn refused(call: &Call, decided: &Decided) -> Option<Refusal> {
    if decided.verdict.outcome != policy::Outcome::Allow {
        return Some(Refusal::new(ToolErrorCode::PolicyDenied, decided.verdict.reason.clone()));
    }
    let problem = decided.tool.as_ref()?.check(&call.parameters).err()?;
    Some(Refusal::new(ToolErrorCode::InvalidRequest, problem))
}

/// Executes a claimed call, and writes down what came of it before anybody is told.
pub(super) async fn execute(app: &AppState, call: &Call, tool: &dyn Tool, versions: &Versions) -> Answered {
    let permit = Permit::new(call.org, &call.run_id);
    let executing = AssertUnwindSafe(tool.execute(app, &permit, call)).catch_unwind();
    let result = tokio::time::timeout(tool.timeout(), executing).await;
    drop(permit);
    crash_point("gate-executed");
    let result = match result {
        Ok(Ok(Ok(output))) => Ok(output),
        Ok(Ok(Err(failure))) => Err(refusal_of(failure)),
        // It fell over, perhaps after its effect.
        Ok(Err(_)) => Err(Refusal::unknown()),
        Err(_) => Err(Refusal::new(ToolErrorCode::ToolTimeout, "the tool did not answer in time")),
    };
    let (write, answered) = app.gate.outcome(call, &app.gate.instance, result, versions);
    let answered = settle(app, call, write, answered).await;
    crash_point("gate-settled");
    answered
}

/// The effect has happened, so this is tried until it is written: an answer that is nowhere on disk is none.
async fn settle(app: &AppState, call: &Call, write: GateWrite, answered: Answered) -> Answered {
    loop {
        match app.gate.store.gate_write(write.clone()).await {
            Ok(Written::Done) => return answered,
            // Somebody took us for dead and has written what they knew: that stands.
            Ok(_) => {
                return match app.gate.store.run(call.org, &call.run_id).await {
                    Ok(Some(run)) => super::known::stored(call, &run),
                    _ => Answered::unrecorded(call, Refusal::unknown()),
                };
            }
            Err(error) => {
                tracing::error!(%error, run = %call.run_id, "an outcome is not on disk yet");
                if app.closing.is_cancelled() {
                    return Answered::unrecorded(call, Refusal::unknown());
                }
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
}

fn refusal_of(failure: Failure) -> Refusal {
    match failure {
        Failure::Refused(message) => Refusal::new(ToolErrorCode::ToolError, message),
        Failure::Invalid(message) => Refusal::new(ToolErrorCode::InvalidRequest, message),
        Failure::Timeout => Refusal::new(ToolErrorCode::ToolTimeout, "the tool did not answer in time"),
        Failure::Down(message) => Refusal::new(ToolErrorCode::DependencyDown, message),
    }
}

fn down(call: &Call, error: &store::StoreError) -> Answered {
    tracing::error!(%error, run = %call.run_id, "a call was not executed: it could not be recorded");
    let refusal =
        Refusal::new(ToolErrorCode::DependencyDown, "the call could not be recorded, so nothing was done");
    Answered::unrecorded(call, refusal)
}

/// Where tests let the process die. Nothing in a build that is not for tests.
fn crash_point(name: &str) {
    fail::fail_point!(name, |_| std::process::abort());
}

impl Gate {
    /// The claim of a call with the decision about it; for one that is refused, also its end.
    fn claim(&self, call: &Call, decided: &Decided, refusal: Option<&Refusal>) -> GateWrite {
        let versions = &decided.versions;
        let now = self.scribe.now();
        let input = artifacts::input(call, now);
        let mut events = vec![self.scribe.decision(call, &decided.verdict, versions)];
        let end = refusal.map(|refusal| {
            events.push(self.scribe.outcome(call, ActionType::ToolCall, Some(refusal), versions));
            let denied = refusal.code == ToolErrorCode::PolicyDenied;
            let status = if denied { RunStatus::Denied } else { RunStatus::Failed };
            self.ended(status, &CallResult::Refused(refusal.clone()), call, None)
        });
        // What is refused is not kept: its content was never accepted.
        let artifacts = input.into_iter().filter(|_| end.is_none()).collect();
        let run = self.new_run(call, decided, end);
        GateWrite { change: Change::Begin(Box::new(run)), artifacts, events }
    }

    fn new_run(&self, call: &Call, decided: &Decided, end: Option<Ended>) -> NewRun {
        let Question { request, parent, retried } = &decided.question;
        let above = retried.as_ref().or(parent.as_ref());
        NewRun {
            org_id: call.org,
            run_id: call.run_id.clone(),
            kind: call.kind(),
            status: RunStatus::Running,
            lanes_version: decided.versions.lanes.clone(),
            roles_version: decided.versions.roles.clone(),
            // A parent that does not count is not recorded: it may be somebody else's.
            parent_run_id: above.map(|run| run.run_id.clone()),
            root_run_id: above.map_or_else(|| call.run_id.clone(), |run| run.root_run_id.clone()),
            run_name: None,
            case_id: call.case.clone(),
            session_id: call.session,
            correlation_id: call.correlation.clone(),
            actor: json!(call.actor),
            role_id: call.role.to_owned(),
            lane_id: Some(call.lane.clone()),
            call: Some(Called {
                tool: call.tool.clone(),
                operation: call.operation.clone(),
                request_hash: call.request_hash.to_string(),
                decision: json!({"request": request, "outcome": decided.verdict.outcome}),
                instance: self.instance.clone(),
            }),
            inputs: json!({
                "artifact_refs": call.input_artifacts,
                "parameters_hash_sha256": self.parameters_hash(&call.parameters).map(|hash| hash.to_string()),
            }),
            retry_count: retried.as_ref().map_or(0, |run| run.retry_count + 1),
            retry_reason: call.retry_of.as_ref().map(|(_, reason)| reason.clone()),
            created_at: self.scribe.now(),
            end,
        }
    }

    /// What is written when a call has ended, and what its caller is told.
    pub(super) fn outcome(
        &self,
        call: &Call,
        instance: &str,
        result: Result<Output, Refusal>,
        versions: &Versions,
    ) -> (GateWrite, Answered) {
        let now = self.scribe.now();
        let refused = result.as_ref().err().cloned();
        let mut event = self.scribe.outcome(call, ActionType::ToolCall, refused.as_ref(), versions);
        let (status, kept, result) = match result {
            Ok(output) => {
                let kept = artifacts::output(call, &output.content(), now);
                let references: Vec<ArtifactRef> = artifacts::new_reference(&kept).into_iter().collect();
                (RunStatus::Completed, Some(kept), CallResult::Done(output, references))
            }
            Err(refusal) => (RunStatus::Failed, None, CallResult::Refused(refusal)),
        };
        let outcome = match &result {
            CallResult::Done(..) => Outcome::Success,
            CallResult::Refused(refusal) => Outcome::Failed(refusal.code),
        };
        if let CallResult::Done(_, references) = &result {
            event.event.output_artifacts = Artifacts::try_from(references.clone()).unwrap_or_default();
        }
        let mut body = call.body(&result);
        let hash = payload_hash(&body).ok();
        event.event.response_hash_sha256 = hash;
        if let (Some(hash), Some(Value::Null)) = (hash, body.get("response_hash_sha256")) {
            body["response_hash_sha256"] = json!(hash.to_string());
        }
        let answered = Answered { outcome, body };
        let mut ended = self.ended(status, &result, call, hash);
        ended.answer = serde_json::to_value(&answered).ok();
        let change = Change::End {
            org: call.org,
            run_id: call.run_id.clone(),
            instance: Some(instance.to_owned()),
            ended: Box::new(ended),
        };
        let also = also(call).map(|action| self.scribe.outcome(call, action, refused.as_ref(), versions));
        let events = [event].into_iter().chain(also).collect();
        (GateWrite { change, artifacts: kept.into_iter().collect(), events }, answered)
    }

    fn ended(
        &self,
        status: RunStatus,
        result: &CallResult,
        call: &Call,
        response_hash: Option<ledger::Hash>,
    ) -> Ended {
        let (outcome, error, outputs, code) = match result {
            CallResult::Done(_, references) => {
                ("success".to_owned(), None, json!(references), Outcome::Success)
            }
            CallResult::Refused(refusal) => {
                let error = json!({
                    "error_code": refusal.code,
                    "message": refusal.message,
                    "retryable": refusal.retryable,
                });
                (
                    refusal.message.chars().take(200).collect(),
                    Some(error),
                    json!([]),
                    Outcome::Failed(refusal.code),
                )
            }
        };
        let answered = Answered { outcome: code, body: call.body(result) };
        Ended {
            status,
            outcome,
            error,
            answer: serde_json::to_value(&answered).ok(),
            response_hash: response_hash.map(|hash| hash.to_string()),
            outputs: json!({"artifact_refs": outputs}),
            at: self.scribe.now(),
        }
    }
}

/// What else a call is, beside a call of a tool.
fn also(call: &Call) -> Option<ActionType> {
    match call.kind() {
        RunKind::Export => Some(ActionType::Export),
        RunKind::Override => Some(ActionType::Override),
        RunKind::DbWrite => Some(ActionType::DbWrite),
        _ => None,
    }
}
