//! One call, from the request to the result: judge, claim, execute, record.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use clock::crash_point;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use ledger::Redactor;
use policy::Versions;
use proto::{OrgId, ToolErrorCode};
use store::{GateWrite, Run, StoreError, Written};

use crate::existing_run::{ExistingRun, TakeOver, stored_result};
use crate::judgement::{JudgedCall, Judgement, Undecidable};
use crate::record::{HIDDEN_PARAMETERS, Prepared, Success, hides_parameters};
use crate::repeated_call::Repeated;
use crate::request::{CallRequest, Fingerprint};
use crate::result::{CallOutcome, CallResult, CallShare, Refusal};
use crate::secrets::{redact_failure, redact_output};
use crate::tool::{Failure, Outside, Tool, Within, Work};
use crate::{Gate, Permit};

/// The maximum number of judgements per call. If the parent run ends between judgement and claim, the call is judged
/// again; a parent can end only once.
const MAX_JUDGEMENTS: u32 = 3;
/// The maximum number of attempts to take over an orphaned call, or to find out which instance was faster.
const MAX_TAKE_OVERS: u32 = 3;
/// The delay between attempts to record an effect that has happened.
const RETRY_DELAY: Duration = Duration::from_millis(500);
const UNREAD_SECRETS: &str =
    "the secrets that an answer must not contain cannot be read, so nothing was done";

type Execution = Shared<BoxFuture<'static, CallResult>>;

/// A call that this instance executes: its fingerprint, and the future of its result.
pub(crate) struct InFlight {
    fingerprint: Fingerprint,
    execution: Execution,
}

/// The outcome of a claim.
enum ClaimOutcome {
    /// This instance executes the call, or has executed it in the same transaction.
    Ours,
    /// A run with this id exists.
    Exists(Box<Run>),
    /// The facts of the judgement have changed before the claim.
    Stale,
    Failed(StoreError),
}

impl Gate {
    /// Executes a call, or returns the result of an earlier execution. The call continues if its caller disconnects.
    pub async fn call(self: &Arc<Self>, request: CallRequest) -> CallResult {
        self.submit(request, None).await
    }

    /// Like [`Gate::call`], with an effect that owns data no request can hold, such as a request body. The tool that
    /// the request names is judged and checked as always; the effect replaces only its execution, and is dropped with
    /// the call.
    pub async fn call_with(self: &Arc<Self>, request: CallRequest, effect: Box<dyn Outside>) -> CallResult {
        self.submit(request, Some(effect)).await
    }

    async fn submit(self: &Arc<Self>, request: CallRequest, effect: Option<Box<dyn Outside>>) -> CallResult {
        let (key, fingerprint) = (request.key(), request.fingerprint());
        if let Some(result) = self.calls.recent.get(&key, &fingerprint) {
            return result;
        }
        let (gate, request) = (self.clone(), Arc::new(request));
        let inside = (self.clone(), request.clone());
        let execution =
            async move { perform(&inside.0, &inside.1, effect.as_deref()).await }.boxed().shared();
        let Some(execution) = gate.join(&key, fingerprint, execution) else {
            return gate.conflict(&JudgedCall::unjudged(&request)).await;
        };
        // The call runs in its own task from the start, so that a caller that disconnects cannot leave a claimed call
        // unexecuted.
        let done = tokio::spawn(async move {
            let in_flight = InFlightGuard { gate, key, execution };
            in_flight.execution.clone().await
        });
        done.await.unwrap_or_else(|_| CallResult::unrecorded(&request, &Refusal::unknown()))
    }

    /// Registers an execution, or joins the same call in flight. `None` if a different call is in flight under this id.
    fn join(
        &self,
        key: &(OrgId, String),
        fingerprint: Fingerprint,
        execution: Execution,
    ) -> Option<Execution> {
        let mut in_flight = self.calls.in_flight.lock();
        match in_flight.get(key) {
            Some(found) if found.fingerprint != fingerprint => None,
            Some(found) => Some(found.execution.clone()),
            None => {
                let new = InFlight { fingerprint, execution: execution.clone() };
                in_flight.insert(key.clone(), new);
                Some(execution)
            }
        }
    }
}

/// Keeps a call registered as in flight until it is dropped, however the call ends.
struct InFlightGuard {
    gate: Arc<Gate>,
    key: (OrgId, String),
    execution: Execution,
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let mut in_flight = self.gate.calls.in_flight.lock();
        // Another call may have been registered under this id since.
        if in_flight.get(&self.key).is_some_and(|found| found.execution.ptr_eq(&self.execution)) {
            in_flight.remove(&self.key);
        }
    }
}

async fn perform(gate: &Gate, request: &Arc<CallRequest>, effect: Option<&dyn Outside>) -> CallResult {
    for _ in 0..MAX_JUDGEMENTS {
        let judgement = match gate.judge(request).await {
            Ok(judgement) => judgement,
            Err(error @ Undecidable::Source(_)) => return answer_unjudged(gate, request, &error).await,
            Err(error) => return unavailable(request, &error),
        };
        count(&judgement);
        crash_point("gate-decided");
        if let Some(result) = act(gate, &judgement, effect).await {
            return result;
        }
    }
    let changing = "the run that the call belongs to changes all the time";
    CallResult::unrecorded(request, &Refusal::new(ToolErrorCode::DependencyDown, changing))
}

/// Handles a request that cannot be judged, for example because a source does not answer. A call that has already ended
/// still gets its stored result.
async fn answer_unjudged(gate: &Gate, request: &Arc<CallRequest>, error: &Undecidable) -> CallResult {
    match gate.store.run(request.caller.org, &request.run.id).await {
        Ok(Some(run)) if run.status.is_terminal() => follow(gate, &JudgedCall::unjudged(request), run).await,
        _ => unavailable(request, error),
    }
}

fn count(judgement: &Judgement) {
    let name = match judgement.verdict.outcome {
        policy::Outcome::Allow => "allow",
        policy::Outcome::Ask => "ask",
        policy::Outcome::Deny => "deny",
    };
    metrics::counter!("proliferate_gate_verdicts_total", "verdict" => name).increment(1);
}

/// Carries out the decision. `None` if the facts of the judgement have changed in between.
async fn act(gate: &Gate, judgement: &Judgement, effect: Option<&dyn Outside>) -> Option<CallResult> {
    let request = &judgement.call.request;
    let waits = waits(judgement, effect.is_some());
    let refusal = refusal(judgement, waits);
    let share = if refusal.is_some() { gate.take_refusal(request) } else { gate.take_allowed(request) };
    if let Err(over) = share {
        // A retry of a recorded call gets its result even if the caller's share is used up.
        return Some(match gate.store.run(request.caller.org, &request.run.id).await {
            Ok(Some(run)) => follow(gate, &judgement.call, run).await,
            _ => gate.refuse_unrecorded(request, &over),
        });
    }
    match (refusal, judgement.tool.as_deref()) {
        (None, Some(tool)) if waits => match effect.filter(|_| tool.needs_caller()) {
            None => request_approval(gate, judgement).await,
            Some(effect) => repeat_or_request(gate, judgement, (tool, effect)).await,
        },
        (Some(refusal), _) => record_ended(gate, judgement, Err(refusal)).await,
        (None, None) => Some(CallResult::unrecorded(request, &Refusal::unknown())),
        (None, Some(tool)) => match tool.work() {
            Work::Within(_) if effect.is_some() => {
                let problem = "this tool brings its own effect; nothing was done";
                let refusal = Refusal::new(ToolErrorCode::InvalidRequest, problem);
                record_ended(gate, judgement, Err(refusal)).await
            }
            Work::Within(within) => {
                record_ended(gate, judgement, prepare(&judgement.call, tool, within).await).await
            }
            Work::Outside(outside) => {
                let written = gate.store.gate_write(gate.claim(judgement)).await;
                let outside = effect.unwrap_or(outside);
                match claimed(written) {
                    ClaimOutcome::Ours => {
                        let Judgement { call, versions, .. } = judgement;
                        Some(execute(gate, call, Execute { tool, outside, versions }).await)
                    }
                    other => resolve_unclaimed(gate, &judgement.call, other).await,
                }
            }
        },
    }
}

/// Prepares the effect of a tool within the database. If this fails, nothing has been changed yet.
async fn prepare(call: &JudgedCall, tool: &dyn Tool, within: &dyn Within) -> Prepared {
    let preparing = AssertUnwindSafe(within.prepare(&call.request)).catch_unwind();
    match tokio::time::timeout(tool.timeout(), preparing).await {
        Ok(Ok(prepared)) => prepared.map_err(Refusal::from),
        Ok(Err(_)) => Err(Refusal::new(ToolErrorCode::ToolError, "the tool panicked; nothing was done")),
        Err(_) => Err(Failure::Timeout.into()),
    }
}

/// Writes a call that ends with its claim, in one transaction.
async fn record_ended(gate: &Gate, judgement: &Judgement, prepared: Prepared) -> Option<CallResult> {
    let request = &judgement.call.request;
    let (write, mut result) = gate.claim_ended(judgement, prepared);
    let mut written = gate.store.gate_write(write).await;
    if matches!(written, Ok(Written::Gone)) {
        let gone = Refusal::new(ToolErrorCode::ToolError, "What this would change does not exist any more.");
        let (write, refused) = gate.claim_ended(judgement, Err(gone));
        (written, result) = (gate.store.gate_write(write).await, refused);
    }
    match claimed(written) {
        ClaimOutcome::Ours => {
            crash_point("gate-settled");
            gate.calls.recent.insert(request.key(), request.fingerprint(), &result);
            Some(result)
        }
        other => resolve_unclaimed(gate, &judgement.call, other).await,
    }
}

fn claimed(written: Result<Written, StoreError>) -> ClaimOutcome {
    match written {
        Ok(Written::Done) => ClaimOutcome::Ours,
        Ok(Written::Known(run)) => ClaimOutcome::Exists(run),
        Ok(
            Written::ParentInactive
            | Written::NotYours
            | Written::Gone
            | Written::Overdue
            | Written::TooManyWaiting,
        ) => ClaimOutcome::Stale,
        Err(error) => ClaimOutcome::Failed(error),
    }
}

async fn resolve_unclaimed(gate: &Gate, call: &JudgedCall, claimed: ClaimOutcome) -> Option<CallResult> {
    match claimed {
        ClaimOutcome::Ours | ClaimOutcome::Stale => None,
        ClaimOutcome::Exists(run) => Some(follow(gate, call, *run).await),
        // If the claim cannot be recorded, the call is not executed.
        ClaimOutcome::Failed(error) => Some(unavailable(&call.request, &error.into())),
    }
}

/// The result of a call whose run already exists.
async fn follow(gate: &Gate, call: &JudgedCall, mut run: Run) -> CallResult {
    let request = &call.request;
    for _ in 0..MAX_TAKE_OVERS {
        let orphan = match gate.resolve(request, run).await {
            Ok(ExistingRun::Conflict) => return gate.conflict(call).await,
            Ok(ExistingRun::Answered(result)) => return *result,
            Ok(ExistingRun::Unresolved(refusal)) => return CallResult::unrecorded(request, &refusal),
            Ok(ExistingRun::Orphaned(run)) => run,
            Err(error) => return unavailable(request, &error),
        };
        match gate.take_over(request, *orphan).await {
            Ok(TakeOver::Execute { call, tool, versions }) => {
                let Work::Outside(outside) = tool.work() else {
                    return CallResult::unrecorded(request, &Refusal::unknown());
                };
                let execute_again = Execute { tool: tool.as_ref(), outside, versions: &versions };
                return execute(gate, &call, execute_again).await;
            }
            Ok(TakeOver::LookAgain) => {}
            Err(error) => return unavailable(request, &error),
        }
        match gate.store.run(request.caller.org, &request.run.id).await {
            Ok(Some(found)) => run = found,
            Ok(None) => return CallResult::unrecorded(request, &Refusal::unknown()),
            Err(error) => return unavailable(request, &error.into()),
        }
    }
    CallResult::unrecorded(request, &Refusal::unknown())
}

/// Whether a call waits for approval. A call whose effect only its caller has (`Tool::needs_caller`) waits only if
/// that effect is present.
fn waits(judgement: &Judgement, has_effect: bool) -> bool {
    judgement.verdict.outcome == policy::Outcome::Ask
        && judgement.call.request.action.is_some()
        && judgement.tool.as_ref().is_some_and(|tool| !tool.needs_caller() || has_effect)
}

/// Stores a call until somebody approves it.
async fn request_approval(gate: &Gate, judgement: &Judgement) -> Option<CallResult> {
    let request = &judgement.call.request;
    let id = request.action.as_ref()?.id;
    let Some(claim) = gate.claim_waiting(judgement) else {
        let unsealed = "the request cannot be encrypted while it waits, so nothing was done";
        return Some(CallResult::unrecorded(request, &Refusal::new(ToolErrorCode::DependencyDown, unsealed)));
    };
    match gate.store.gate_write(claim).await {
        Ok(Written::Done) => {
            crash_point("gate-waiting");
            gate.tell_waiting(request.caller.org, id);
            Some(CallResult::waiting(request, id))
        }
        Ok(Written::TooManyWaiting) => {
            let many = "Too many pending approvals. Resolve existing ones first.";
            let refusal = Refusal::new(ToolErrorCode::DependencyDown, many);
            let share = CallShare::WaitingCalls;
            // A decision of a person makes room before that.
            let retry_after = gate.calls.approval_lifetime.as_secs().min(300);
            let outcome = CallOutcome::OverShare { share, retry_after };
            gate.count_unrecorded(request.caller.org, request.caller.actor.clone());
            Some(CallResult { outcome, ..CallResult::refused(request, &refusal) })
        }
        written => resolve_unclaimed(gate, &judgement.call, claimed(written)).await,
    }
}

/// Executes a call whose effect its caller brings, if somebody has approved the same call before. Otherwise it waits, as
/// one request however often it is repeated.
async fn repeat_or_request(
    gate: &Gate,
    judgement: &Judgement,
    (tool, outside): (&dyn Tool, &dyn Outside),
) -> Option<CallResult> {
    let request = &judgement.call.request;
    match gate.redeem(judgement).await {
        Ok(Repeated::Granted { call, versions }) => {
            Some(execute(gate, &call, Execute { tool, outside, versions: &versions }).await)
        }
        Ok(Repeated::Waits(id)) => Some(CallResult::waiting(request, id)),
        Ok(Repeated::New) => request_approval(gate, judgement).await,
        Err(error) => Some(unavailable(request, &error.into())),
    }
}

/// The reason why a call is neither executed nor stored for approval, if any.
fn refusal(judgement: &Judgement, waits: bool) -> Option<Refusal> {
    if judgement.verdict.outcome != policy::Outcome::Allow && !waits {
        return Some(Refusal::new(ToolErrorCode::PolicyDenied, judgement.verdict.reason.clone()));
    }
    let problem = judgement.tool.as_ref()?.check(&judgement.call.request.target.parameters).err();
    let hidden = || (waits && hides_parameters(judgement)).then(|| HIDDEN_PARAMETERS.to_owned());
    Some(Refusal::new(ToolErrorCode::InvalidRequest, problem.or_else(hidden)?))
}

/// How a claimed call is executed.
pub(crate) struct Execute<'a> {
    pub(crate) tool: &'a dyn Tool,
    pub(crate) outside: &'a dyn Outside,
    pub(crate) versions: &'a Versions,
}

/// Executes a claimed call, and records its outcome before the caller learns it.
pub(crate) async fn execute(gate: &Gate, call: &JudgedCall, how: Execute<'_>) -> CallResult {
    crash_point("gate-claimed");
    let outcome = match gate.redactor(&call.request).await {
        Ok(redactor) => attempt(call, &how, redactor).await,
        Err(unread) => {
            tracing::error!(%unread, run = %call.request.run.id, "a claimed call was not executed");
            Err(Refusal::new(ToolErrorCode::DependencyDown, UNREAD_SECRETS))
        }
    };
    crash_point("gate-executed");
    let (write, result) = gate.end(call, &gate.instance.id, outcome, how.versions);
    let result = settle(gate, call, write, result).await;
    crash_point("gate-settled");
    result
}

/// Executes the effect of a call. What an action answers has all known secrets removed before anybody stores or gets it.
async fn attempt(call: &JudgedCall, how: &Execute<'_>, redactor: Redactor) -> Result<Success, Refusal> {
    let Execute { tool, outside, .. } = how;
    let permit = Permit::new(call.request.caller.org, &call.request.run.id, redactor);
    let executing = AssertUnwindSafe(outside.execute(&permit, &call.request)).catch_unwind();
    let timeout = outside.timeout().unwrap_or_else(|| tool.timeout());
    let executed = tokio::time::timeout(timeout, executing).await;
    let redactor = permit.redactor();
    let outcome = match executed {
        Ok(Ok(outcome)) if tool.definition().is_some() => outcome
            .map(|output| redact_output(redactor, &output))
            .map_err(|failure| redact_failure(redactor, failure).into()),
        Ok(Ok(outcome)) => outcome.map_err(Refusal::from),
        // The tool panicked, possibly after its effect.
        Ok(Err(_)) => Err(Refusal::unknown()),
        Err(_) if outside.replay_safe() => Err(Failure::Timeout.into()),
        Err(_) => Err(Failure::Late.into()),
    };
    outcome.map(|output| Success { output, evidence: permit.into_evidence() })
}

/// Records the outcome. The effect has happened, so this retries until it succeeds: no result is returned before it is
/// on disk.
async fn settle(gate: &Gate, call: &JudgedCall, write: GateWrite, result: CallResult) -> CallResult {
    let request = &call.request;
    loop {
        match gate.store.gate_write(write.clone()).await {
            Ok(Written::Done) => {
                gate.calls.recent.insert(request.key(), request.fingerprint(), &result);
                return result;
            }
            // Another instance considered us dead and recorded what it knew. That record stands.
            Ok(_) => {
                return match gate.store.run(request.caller.org, &request.run.id).await {
                    Ok(Some(run)) => stored_result(request, &run),
                    _ => CallResult::unrecorded(request, &Refusal::unknown()),
                };
            }
            Err(error) => {
                tracing::error!(%error, run = %request.run.id, "an outcome could not be recorded yet");
                if gate.closing.is_cancelled() {
                    return CallResult::unrecorded(request, &Refusal::unknown());
                }
                tokio::time::sleep(RETRY_DELAY).await;
            }
        }
    }
}

fn unavailable(request: &CallRequest, error: &Undecidable) -> CallResult {
    tracing::error!(%error, run = %request.run.id, "a call was not executed: it could not be decided or recorded");
    let message = match error {
        Undecidable::Store(_) => "the call could not be recorded, so nothing was done".to_owned(),
        Undecidable::Lock(unread) => unread.to_string(),
        Undecidable::Source(error) => error.to_string(),
        Undecidable::Secrets(_) => UNREAD_SECRETS.to_owned(),
    };
    CallResult::unrecorded(request, &Refusal::new(ToolErrorCode::DependencyDown, message))
}
