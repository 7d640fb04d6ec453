//! Calls that wait for approval. The request is stored as a run that has not started. A person starts or ends it once,
//! bound to the request and to the tool's definition, after it was judged again under the policy and modes of then.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use clock::crash_point;
use ledger::Text;
use policy::{ActorClass, Claim, Mode, ModeDecision, RunState, Versions, decide};
use proto::{InvocationId, InvocationStatus, JsonObject, OrgId, RunStatus, ToolErrorCode, UserId};
use store::{
    Change, Ended, GateWrite, Invocation, NewEvent, RequestEdit, Run, RunDecision, RunVerdict, SeenRequest,
    StoreError, Written,
};

use crate::Gate;
use crate::approver::ApprovalTurn;
use crate::audit_writer::acting;
use crate::bound_request::check_seen;
use crate::denial::{DENIED_BY_PERSON, Denial, denial_text};
use crate::judgement::{JudgedCall, Judgement, Undecidable};
use crate::pipeline::{Execute, execute};
use crate::result::{CallResult, Refusal};
use crate::tool::{Tool, ToolScope, Work};

/// How many requests of one session may wait.
pub const MAX_WAITING: u64 = 10;
/// How often an approval is checked again because somebody else has approved or edited the request meanwhile.
const MAX_ATTEMPTS: u32 = 3;
/// How many overdue requests are ended at once.
const MAX_EXPIRED_PER_TICK: i64 = 100;

/// The reason why a request was not approved or denied.
#[derive(Debug, thiserror::Error)]
pub enum ApprovalError {
    #[error("Invocation not found")]
    NotFound,
    /// Somebody has decided before.
    #[error("Cannot decide about an invocation in status: {}", .0.as_str())]
    Decided(InvocationStatus),
    #[error("Invocation has expired")]
    Expired,
    /// The approver is the person on whose behalf the call was requested.
    #[error("Two other owners or admins must approve this action: it was requested on your behalf")]
    OwnRequest,
    #[error("You have approved it already: another owner or admin must approve it too")]
    ApprovedBefore,
    /// The edited parameters are invalid, or the call's parameters cannot be edited.
    #[error("{0}")]
    Invalid(String),
    /// The request is not executed as it was approved: policy is stricter today, or something has changed.
    #[error("{0}")]
    Changed(String),
    #[error("the request could not be judged: {0}")]
    Unavailable(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl From<Undecidable> for ApprovalError {
    fn from(error: Undecidable) -> Self {
        match error {
            Undecidable::Store(error) => Self::Store(error),
            other => Self::Unavailable(other.to_string()),
        }
    }
}

/// A request that waits, and its run.
pub(crate) struct WaitingCall {
    pub(crate) invocation: Invocation,
    pub(crate) run: Run,
}

/// The approval of a request.
#[derive(Clone, Debug)]
pub struct Approval {
    pub by: UserId,
    /// Replaces the parameters of the request.
    pub params: Option<JsonObject>,
    /// The hash of the request that the approver has seen ([`Invocation::request_hash`]).
    pub request_hash: Option<String>,
}

/// An approval that counts unless somebody else decides first.
struct CheckedApproval {
    decision: RunDecision,
    event: NewEvent,
    call: JudgedCall,
    tool: Arc<dyn Tool>,
    versions: Versions,
}

/// The end of a run that never started, and the events of the decision and of the call.
struct Unexecuted {
    ended: Ended,
    decision: NewEvent,
    call: NewEvent,
}

impl Gate {
    /// Approves a request and executes it. Of several approvals one executes; the others learn what became of it. The
    /// first of two people who must approve leaves it waiting. Must not be dropped before it ends: once the approval is
    /// written, nobody else executes the call.
    pub async fn approve(
        &self,
        org: OrgId,
        id: InvocationId,
        approval: &Approval,
    ) -> Result<CallResult, ApprovalError> {
        for _ in 0..MAX_ATTEMPTS {
            let waiting = self.waiting_call(org, id).await?;
            let CheckedApproval { decision, event, call, tool, versions } =
                self.check_approval(&waiting, approval).await?;
            let verdict = decision.verdict.clone();
            let _run = self.calls.approved.register((org, decision.run_id.clone()));
            if !self.write_decision(id, decision, vec![event]).await? {
                continue;
            }
            crash_point("gate-approved");
            return Ok(match verdict {
                RunVerdict::Start { .. } => self.execute_approved(&call, tool.as_ref(), &versions).await,
                RunVerdict::FirstApproval => CallResult::waiting(&call.request, id),
                _ => CallResult::granted(&call.request, id),
            });
        }
        Err(ApprovalError::Changed("Others decide about this request at the same time: try again".to_owned()))
    }

    /// Judges a request again, with the parameters that the approver has edited, if any.
    async fn check_approval(
        &self,
        waiting: &WaitingCall,
        approval: &Approval,
    ) -> Result<CheckedApproval, ApprovalError> {
        let stored = self.bound_request(waiting)?;
        check_seen(&waiting.invocation, approval)?;
        let edited = approval.params.clone().map(|params| stored.with_parameters(params));
        let is_edited = edited.is_some();
        let request = Arc::new(edited.unwrap_or(stored));
        let judgement = self.judge_now(&request).await?;
        let tool = self.still_allowed(&judgement, waiting, is_edited)?;
        let edit = is_edited.then(|| self.edited_request(waiting, &judgement)).transpose()?;
        let turn = self.approval_turn(waiting, judgement.asked.mode.as_ref(), approval).await?;
        let at = self.clock.now();
        let Run { case_id, parent_run_id, created_at, lanes_version, roles_version, .. } =
            waiting.run.clone();
        let call = JudgedCall {
            case: case_id,
            parent_run_id,
            started_at: Some(RunDecision::started_at(created_at, at)),
            ..judgement.call
        };
        let (verdict, mut event) = match turn {
            ApprovalTurn::First => {
                (RunVerdict::FirstApproval, self.audit.first_approval(&call, &judgement.versions))
            }
            ApprovalTurn::Last => {
                let verdict = if tool.needs_caller() {
                    RunVerdict::Grant { until: at + self.calls.approval_lifetime }
                } else {
                    RunVerdict::Start { instance: self.instance.id.clone() }
                };
                (verdict, self.audit.decision(&call, &approved(), &judgement.versions))
            }
        };
        decided_by(&mut event, approval.by);
        event.event.notes = notes(waiting, edit.as_ref(), turn).map(|notes| Text::cut(&notes));
        let Invocation { first_approved_by, edited_hash, .. } = waiting.invocation.clone();
        let decision = RunDecision {
            org: request.caller.org,
            run_id: request.run.id.clone(),
            by: Some(approval.by),
            at,
            verdict,
            seen: Some(SeenRequest { first_approved_by, edited_hash }),
            edit: edit.map(Box::new),
        };
        let versions = Versions { lanes: lanes_version, roles: roles_version };
        Ok(CheckedApproval { decision, event, call, tool, versions })
    }

    async fn execute_approved(&self, call: &JudgedCall, tool: &dyn Tool, versions: &Versions) -> CallResult {
        match tool.work() {
            Work::Outside(outside) => execute(self, call, Execute { tool, outside, versions }).await,
            Work::Within(_) => CallResult::unrecorded(&call.request, &Refusal::unknown()),
        }
    }

    /// Denies a request, which is then never executed. Known secrets are removed from the reason.
    pub async fn deny(&self, org: OrgId, id: InvocationId, denial: &Denial) -> Result<(), ApprovalError> {
        let WaitingCall { run, .. } = self.waiting_call(org, id).await?;
        let Denial { by, reason } = denial;
        let by = *by;
        // Without a reason, a request can be denied while secrets cannot be read.
        let reason = match reason {
            Some(reason) => {
                let redactor = self.secrets.redactor(ToolScope { org, session: run.session_id }).await;
                Some(redactor.map_err(Undecidable::from)?.text(reason.as_str()))
            }
            None => None,
        };
        let at = self.clock.now();
        let text = denial_text(reason.as_deref());
        let Unexecuted { ended, mut decision, call } =
            self.unexecuted(&run, RunStatus::Denied, (DENIED_BY_PERSON, &text), at)?;
        decided_by(&mut decision, by);
        decision.event.notes = reason.map(|reason| Text::cut(&format!("reason: {reason}")));
        let events = vec![decision, call];
        let verdict = RunVerdict::Deny(Box::new(ended));
        let decision =
            RunDecision { org, run_id: run.run_id, by: Some(by), at, verdict, seen: None, edit: None };
        if self.write_decision(id, decision, events).await? {
            return Ok(());
        }
        Err(ApprovalError::Decided(InvocationStatus::Pending))
    }

    /// Ends the requests that nobody decided in time.
    pub(crate) async fn expire_overdue(&self) -> Result<(), StoreError> {
        for overdue in self.store.overdue_invocations(self.clock.now(), MAX_EXPIRED_PER_TICK).await? {
            self.expire(&overdue).await?;
        }
        Ok(())
    }

    async fn expire(&self, waiting: &Invocation) -> Result<(), StoreError> {
        let Invocation { org_id: org, run_id, .. } = waiting;
        let Some(run) = self.store.run(*org, run_id).await? else { return Ok(()) };
        let at = self.clock.now();
        let Ok(unexecuted) = self.unexecuted(&run, RunStatus::Cancelled, ("expired", "expired"), at) else {
            return Ok(());
        };
        let Unexecuted { ended, decision: decided, call } = unexecuted;
        let verdict = RunVerdict::Expire(Box::new(ended));
        let run_id = run_id.clone();
        let decision = RunDecision { org: *org, run_id, by: None, at, verdict, seen: None, edit: None };
        // If somebody decided meanwhile, that decision stands.
        let change = Change::Decide(Box::new(decision));
        self.store.gate_write(GateWrite::new(change, vec![decided, call])).await.map(drop)
    }

    async fn waiting_call(&self, org: OrgId, id: InvocationId) -> Result<WaitingCall, ApprovalError> {
        let invocation = self.store.invocation(org, id).await?.ok_or(ApprovalError::NotFound)?;
        match invocation.status(self.clock.now()) {
            InvocationStatus::Pending => {}
            InvocationStatus::Expired => return Err(ApprovalError::Expired),
            status => return Err(ApprovalError::Decided(status)),
        }
        let run = self.store.run(org, &invocation.run_id).await?.ok_or(ApprovalError::NotFound)?;
        Ok(WaitingCall { invocation, run })
    }

    /// The tool, if policy allows the call today and neither the tool nor the request has changed since.
    fn still_allowed(
        &self,
        judgement: &Judgement,
        waiting: &WaitingCall,
        edited: bool,
    ) -> Result<Arc<dyn Tool>, ApprovalError> {
        let changed = |reason: String| Err(ApprovalError::Changed(reason));
        // The approval answers what the mode asks. The turn that asked may have ended.
        let mode = judgement.asked.mode.clone().map(|decision| match decision.mode {
            Mode::RequireApproval => ModeDecision { mode: Mode::Allow, ..decision },
            Mode::Allow | Mode::Deny => decision,
        });
        let asked = policy::Request { run: RunState::New, mode, ..judgement.asked.clone() };
        let verdict = decide(&self.rules.policy(), &asked);
        if verdict.outcome != policy::Outcome::Allow {
            return changed(format!("Not allowed any more: {}", verdict.reason));
        }
        let Some(tool) = judgement.tool.clone() else {
            return changed("The action does not exist any more".to_owned());
        };
        let current = tool.definition().map(|definition| definition.hash.to_string());
        if current != waiting.invocation.definition_hash {
            return changed("The definition of the action has changed since it was requested".to_owned());
        }
        if edited && tool.needs_caller() {
            let fixed = "The parameters of this call describe what its caller has: they cannot be edited";
            return Err(ApprovalError::Invalid(fixed.to_owned()));
        }
        match tool.check(&judgement.call.request.target.parameters) {
            Ok(()) => Ok(tool),
            Err(problem) if edited => Err(ApprovalError::Invalid(problem)),
            Err(problem) => changed(problem),
        }
    }

    /// Writes a decision. False if the request still waits, but is not what the decision relies on.
    async fn write_decision(
        &self,
        id: InvocationId,
        decision: RunDecision,
        events: Vec<NewEvent>,
    ) -> Result<bool, ApprovalError> {
        let org = decision.org;
        let change = Change::Decide(Box::new(decision));
        match self.store.gate_write(GateWrite::new(change, events)).await? {
            Written::Done => Ok(true),
            Written::Overdue => Err(ApprovalError::Expired),
            _ => match self.decided_before(org, id).await? {
                ApprovalError::Decided(InvocationStatus::Pending) => Ok(false),
                error => Err(error),
            },
        }
    }

    async fn decided_before(&self, org: OrgId, id: InvocationId) -> Result<ApprovalError, StoreError> {
        let found = self.store.invocation(org, id).await?;
        Ok(match found.map(|found| found.status(self.clock.now())) {
            None => ApprovalError::NotFound,
            Some(InvocationStatus::Expired) => ApprovalError::Expired,
            Some(status) => ApprovalError::Decided(status),
        })
    }

    /// `outcome` is recorded with the decision and the run, and `text` is for the caller.
    fn unexecuted(
        &self,
        run: &Run,
        status: RunStatus,
        (outcome, text): (&str, &str),
        at: DateTime<Utc>,
    ) -> Result<Unexecuted, ApprovalError> {
        let call = JudgedCall::of_run(run, None).ok_or(ApprovalError::NotFound)?;
        let versions = Versions { lanes: run.lanes_version.clone(), roles: run.roles_version.clone() };
        let refusal = Refusal::new(ToolErrorCode::PolicyDenied, text);
        let verdict = policy::Verdict {
            outcome: policy::Outcome::Deny,
            rule_id: "approval".to_owned(),
            reason: outcome.to_owned(),
        };
        let mut decision = self.audit.decision(&call, &verdict, &versions);
        decision.event.actor = acting(&gateway());
        let (ended, event) = self.ended_by_gate(&call, refusal, &versions);
        let ended = Ended { status, outcome: outcome.to_owned(), at, ..ended };
        Ok(Unexecuted { ended, decision, call: event })
    }
}

/// What the event of an approval contains nowhere else.
fn notes(waiting: &WaitingCall, edit: Option<&RequestEdit>, turn: ApprovalTurn) -> Option<String> {
    let first_approved_by = waiting.invocation.first_approved_by;
    let before = waiting.invocation.request_hash();
    let edited = edit.map(|RequestEdit { hash, .. }| {
        let before = before.map_or("none", String::as_str);
        format!("the parameters were edited: request sha256 {before} is now {hash}")
    });
    let first = first_approved_by.filter(|_| turn == ApprovalTurn::Last);
    let first = first.map(|first| format!("first approved by {first}"));
    let parts: Vec<_> = edited.into_iter().chain(first).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn approved() -> policy::Verdict {
    policy::Verdict {
        outcome: policy::Outcome::Allow,
        rule_id: "approval".to_owned(),
        reason: "approved by a person; all checks passed again".to_owned(),
    }
}

/// Makes the person who decided the actor of an event.
fn decided_by(event: &mut NewEvent, by: UserId) {
    let actor = Claim { actor_type: ActorClass::Human, actor_id: by.to_string() };
    event.event.actor = acting(&actor);
}

fn gateway() -> Claim {
    Claim { actor_type: ActorClass::System, actor_id: "gateway".to_owned() }
}
