//! One call, from the question to the answer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use policy::{Verdict, Versions, decide};
use proto::{OrgId, ToolErrorCode};
use store::{GateWrite, Written};

use super::call::{Answered, Call, Refusal};
use super::known::{Known, Underway};
use super::question::{Question, Undecidable};
use super::record::Prepared;
use super::{Gate, Permit};
use crate::app::AppState;
use crate::crash_point;
use crate::sources::{self, Failure, Outside, Tool, Within, Work};

/// So often a call is decided about anew because its parent ended in between: it ends once.
const LOOKS: u32 = 3;
/// Between two attempts to write down what has happened.
const AGAIN: Duration = Duration::from_millis(500);

impl Gate {
    /// Does a call, or gives the answer that it was given before. It goes on when whoever asked goes away.
    pub(crate) async fn call(app: &AppState, call: Call) -> Answered {
        Self::submit(app, call, None).await
    }

    /// Like [`Gate::call`], with an effect that owns what no call can hold, such as a request body. The tool that the call
    /// names is decided about and checked as always; the effect replaces only its execution, and is dropped with the call.
    pub(crate) async fn call_with(app: &AppState, call: Call, effect: Box<dyn Outside>) -> Answered {
        Self::submit(app, call, Some(effect)).await
    }

    async fn submit(app: &AppState, call: Call, effect: Option<Box<dyn Outside>>) -> Answered {
        let gate = app.gate.clone();
        if let Some(answered) = gate.answers.find(&call.key(), &call.question()) {
            return answered;
        }
        let key = call.key();
        let (inside, asked) = (app.clone(), call.clone());
        let work = async move { perform(&inside, asked, effect.as_deref()).await }.boxed().shared();
        let Some(work) = gate.join(&key, &call, work) else {
            return told(&call, gate.conflict(&call).await);
        };
        // From the first look on, or a caller that hangs up would leave a call that nobody executes.
        let done = tokio::spawn(async move {
            let at_work = AtWork { gate, key, work };
            at_work.work.clone().await
        });
        done.await.unwrap_or_else(|_| Answered::unrecorded(&call, Refusal::unknown()))
    }
}

/// A call is at work until this is dropped, however it ends.
struct AtWork {
    gate: Arc<Gate>,
    key: (OrgId, String),
    work: Underway,
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.gate.leave(&self.key, &self.work);
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
pub(super) struct Decided {
    pub(super) question: Question,
    pub(super) verdict: Verdict,
    pub(super) versions: Versions,
    tool: Option<Arc<dyn Tool>>,
}

async fn perform(app: &AppState, call: Call, effect: Option<&dyn Outside>) -> Answered {
    let mut call = call;
    for _ in 0..LOOKS {
        let decided = match decide_about(app, &mut call).await {
            Ok(decided) => decided,
            Err(error) => return down(&call, &error),
        };
        crash_point("gate-decided");
        if let Some(answered) = act(app, &call, &decided, effect).await {
            return answered;
        }
    }
    let changing = "the run that the call belongs to changes all the time";
    Answered::unrecorded(&call, Refusal::new(ToolErrorCode::DependencyDown, changing))
}

/// Does what was decided. `None`: what it was decided by has changed in between.
async fn act(
    app: &AppState,
    call: &Call,
    decided: &Decided,
    effect: Option<&dyn Outside>,
) -> Option<Answered> {
    let gate = &app.gate;
    let claim = match (refused(call, decided), decided.tool.as_deref()) {
        (Some(refusal), _) => match gate.take_refusal(call) {
            Ok(()) => gate.claim_ended(call, decided, Err(refusal)),
            Err(over) => {
                let before = answered_before(app, call).await;
                return Some(before.unwrap_or_else(|| gate.refuse_unrecorded(call, &over)));
            }
        },
        (None, None) => return Some(Answered::unrecorded(call, Refusal::unknown())),
        (None, Some(tool)) => match tool.work() {
            Work::Outside(outside) => {
                let outside = effect.unwrap_or(outside);
                let written = gate.store.gate_write(gate.claim(call, decided)).await;
                return match claimed(app, call, written).await {
                    Claimed::Ours => Some(execute(app, call, (tool, outside), &decided.versions).await),
                    Claimed::Answered(answered) => Some(answered),
                    Claimed::Not => None,
                };
            }
            Work::Within(within) => gate.claim_ended(call, decided, prepare(app, call, (tool, within)).await),
        },
    };
    write_ended(app, call, decided, claim).await
}

/// The answer of a call that came before, for one that is not written down.
async fn answered_before(app: &AppState, call: &Call) -> Option<Answered> {
    let run = app.gate.store.run(call.org, &call.run_id).await.ok()??;
    Some(told(call, app.gate.judge_known(app, call, run).await))
}

/// What a tool within would do. It has changed nothing yet, so if it fails nothing has happened.
async fn prepare(app: &AppState, call: &Call, (tool, within): (&dyn Tool, &dyn Within)) -> Prepared {
    let preparing = AssertUnwindSafe(within.prepare(app, call)).catch_unwind();
    match tokio::time::timeout(tool.timeout(), preparing).await {
        Ok(Ok(prepared)) => prepared.map_err(refusal_of),
        Ok(Err(_)) => Err(Refusal::new(ToolErrorCode::ToolError, "the tool fell over; nothing was done")),
        Err(_) => Err(refusal_of(Failure::Timeout)),
    }
}

/// Writes a call that is claimed, decided, done and told in one transaction.
async fn write_ended(
    app: &AppState,
    call: &Call,
    decided: &Decided,
    (write, answered): (GateWrite, Answered),
) -> Option<Answered> {
    let (gate, store) = (&app.gate, &app.gate.store);
    let (written, answered) = match store.gate_write(write).await {
        Ok(Written::Gone) => {
            let gone = "What this would change does not exist any more.";
            let refusal = Refusal::new(ToolErrorCode::ToolError, gone);
            let (write, answered) = gate.claim_ended(call, decided, Err(refusal));
            (store.gate_write(write).await, answered)
        }
        written => (written, answered),
    };
    match claimed(app, call, written).await {
        Claimed::Ours => {
            crash_point("gate-settled");
            gate.answers.keep(call.key(), call.question(), &answered);
            Some(answered)
        }
        Claimed::Answered(answered) => Some(answered),
        Claimed::Not => None,
    }
}

/// What a claim came to.
enum Claimed {
    Ours,
    Answered(Answered),
    Not,
}

async fn claimed(app: &AppState, call: &Call, written: Result<Written, store::StoreError>) -> Claimed {
    match written {
        Ok(Written::Done) => Claimed::Ours,
        Ok(Written::Known(run)) => Claimed::Answered(told(call, app.gate.judge_known(app, call, *run).await)),
        // The parent ended after it was looked at: look again.
        Ok(Written::ParentInactive | Written::NotYours | Written::Gone) => Claimed::Not,
        // No audit, no effect.
        Err(error) => Claimed::Answered(down(call, &error.into())),
    }
}

async fn decide_about(app: &AppState, call: &mut Call) -> Result<Decided, Undecidable> {
    let gate = &app.gate;
    let policy = gate.rules.policy();
    let tool = sources::find(&policy, &call.tool, &call.operation);
    let question = gate.question(call, tool.as_deref()).await?;
    call.above = question.above().map(|run| run.run_id.clone());
    call.writes = tool.as_ref().and_then(|tool| tool.writes().cloned());
    // Only in a lane that breaks the glass is a ticket one.
    let breaks = policy.lane(&call.lane).is_some_and(|lane| lane.override_minutes.is_some());
    call.ticket = call.ticket.take().filter(|_| breaks);
    let verdict = decide(&policy, &question.request);
    let name = if verdict.outcome == policy::Outcome::Allow { "allow" } else { "deny" };
    metrics::counter!("proliferate_gate_verdicts_total", "verdict" => name).increment(1);
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
pub(super) async fn execute(
    app: &AppState,
    call: &Call,
    (tool, outside): (&dyn Tool, &dyn Outside),
    versions: &Versions,
) -> Answered {
    crash_point("gate-claimed");
    let permit = Permit::new(call.org, &call.run_id);
    let executing = AssertUnwindSafe(outside.execute(app, &permit, call)).catch_unwind();
    let result = tokio::time::timeout(tool.timeout(), executing).await;
    drop(permit);
    crash_point("gate-executed");
    let result = match result {
        Ok(Ok(Ok(output))) => Ok(output),
        Ok(Ok(Err(failure))) => Err(refusal_of(failure)),
        // It fell over, perhaps after its effect.
        Ok(Err(_)) => Err(Refusal::unknown()),
        Err(_) => Err(refusal_of(if outside.replay_safe() { Failure::Timeout } else { Failure::Late })),
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
            Ok(Written::Done) => {
                app.gate.answers.keep(call.key(), call.question(), &answered);
                return answered;
            }
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
        Failure::Late => {
            let message = "the tool did not answer in time: whether it took effect is unknown";
            Refusal { retryable: false, ..Refusal::new(ToolErrorCode::ToolTimeout, message) }
        }
        Failure::Down(message) => Refusal::new(ToolErrorCode::DependencyDown, message),
        Failure::Described(failure, data) => Refusal { data: Some(data), ..refusal_of(*failure) },
    }
}

fn down(call: &Call, error: &Undecidable) -> Answered {
    tracing::error!(%error, run = %call.run_id, "a call was not executed: it could not be decided or recorded");
    let message = match error {
        Undecidable::Store(_) => "the call could not be recorded, so nothing was done".to_owned(),
        Undecidable::Lock(unread) => unread.to_string(),
    };
    Answered::unrecorded(call, Refusal::new(ToolErrorCode::DependencyDown, message))
}
