//! Calls whose effect only their caller has, such as pushes: an approval is a grant, which the same call, repeated, uses
//! up.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use policy::Versions;
use proto::{InvocationId, InvocationStatus};
use store::{Change, GateWrite, RunDecision, RunVerdict, StoreError, Written};

use crate::Gate;
use crate::approvals::WaitingCall;
use crate::judgement::{JudgedCall, Judgement};
use crate::request::{CallRequest, Caller};

/// What a repeated call means, whose effect only its caller has.
pub(crate) enum Repeated {
    /// Somebody approved it, and this instance executes it now.
    Granted {
        call: Box<JudgedCall>,
        versions: Versions,
    },
    /// The same call waits for a decision.
    Waits(InvocationId),
    New,
}

impl Gate {
    /// Finds the same call of the same caller among those that wait. One that was approved starts, once.
    pub(crate) async fn redeem(&self, judgement: &Judgement) -> Result<Repeated, StoreError> {
        let request = &judgement.call.request;
        let Caller { org, session: Some(session), .. } = request.caller else { return Ok(Repeated::New) };
        let at = self.clock.now();
        let hash = request.request_hash.to_string();
        for found in self.store.unstarted_invocations(org, session, at).await? {
            if found.run.request_hash.as_ref() != Some(&hash) {
                continue;
            }
            let Some(run) = self.store.run(org, &found.run_id).await? else { continue };
            let waiting = WaitingCall { invocation: found, run };
            let Ok(stored) = self.bound_request(&waiting) else { continue };
            if !is_same_call(&stored, request) {
                continue;
            }
            if waiting.invocation.status(at) != InvocationStatus::Approved {
                return Ok(Repeated::Waits(waiting.invocation.id));
            }
            if let Some(granted) = self.start_granted(waiting, stored, at).await? {
                return Ok(granted);
            }
        }
        Ok(Repeated::New)
    }

    /// Starts an approved run for the caller that repeats its call. `None` if another one was faster.
    async fn start_granted(
        &self,
        WaitingCall { run, .. }: WaitingCall,
        stored: CallRequest,
        at: DateTime<Utc>,
    ) -> Result<Option<Repeated>, StoreError> {
        let call = JudgedCall {
            case: run.case_id.clone(),
            parent_run_id: run.parent_run_id.clone(),
            started_at: Some(RunDecision::started_at(run.created_at, at)),
            ..JudgedCall::unjudged(&Arc::new(stored))
        };
        let versions = Versions { lanes: run.lanes_version, roles: run.roles_version };
        let event = self.audit.redemption(&call, &versions);
        let verdict = RunVerdict::Redeem { instance: self.instance.id.clone() };
        let decision = RunDecision {
            org: run.org_id,
            run_id: run.run_id,
            by: None,
            at,
            verdict,
            seen: None,
            edit: None,
        };
        let change = Change::Decide(Box::new(decision));
        let written = self.store.gate_write(GateWrite::new(change, vec![event])).await?;
        let granted = Repeated::Granted { call: Box::new(call), versions };
        Ok(matches!(written, Written::Done).then_some(granted))
    }
}

/// Whether a caller repeats exactly what was stored.
fn is_same_call(stored: &CallRequest, repeated: &CallRequest) -> bool {
    (&stored.caller.actor, &stored.caller.role) == (&repeated.caller.actor, &repeated.caller.role)
        && stored.full_name() == repeated.full_name()
        && stored.target.lane == repeated.target.lane
        && stored.target.parameters == repeated.target.parameters
}
