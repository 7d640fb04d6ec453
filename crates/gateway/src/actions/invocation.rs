//! Invocations: an agent requests an action, the gate decides, and a person approves or denies what needs approval.
//! Everybody who watches the session gets a message when an invocation waits and when it ends.

use chrono::{DateTime, Utc};
use gate::{
    ActionRequest, Approval, ApprovalError, CallOutcome, CallRequest, CallResult, Denial, Output, RunRequest,
    SourceError, Tool, ToolScope,
};
use proto::http::{Invocation as WireInvocation, InvokeAction};
use proto::socket::{ActionOutcome, ServerMessage};
use proto::{ActionMode, InvocationId, InvocationStatus, OrgId, SessionStatus, ToolErrorCode};
use serde_json::Value;
use shares::{OverShare, Party};
use std::sync::Arc;
use store::{Chooser, DisabledAction, Invocation, StoreError};
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::audience::lane;
use super::{ActionCaller, Actions};
use crate::hub::open_approval;
use crate::sources::tool_name;

/// The reason why an action was not invoked. Nothing was executed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ActionError {
    #[error("{0}")]
    Unknown(String),
    /// The session's creator has disabled it.
    #[error("This {0} is disabled by user preferences")]
    Disabled(&'static str),
    #[error(transparent)]
    Source(#[from] SourceError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Actions {
    /// Takes one invocation from the share of a caller. One beyond the share is counted in the ledger.
    pub(crate) fn take(&self, caller: &ActionCaller) -> Result<(), OverShare> {
        let take_from_org = || self.invocations_of_org.take(Party::org(caller.org()), 1);
        let taken = self.invocations.take_with(caller.party(), take_from_org);
        taken.inspect_err(|_| self.gate.count_unrecorded(caller.org(), caller.actor().0))
    }

    /// Invokes an action. The invocation is `None` if it could not be recorded.
    pub(crate) async fn invoke(
        &self,
        caller: &ActionCaller,
        request: InvokeAction,
    ) -> Result<(CallResult, Option<Invocation>), ActionError> {
        let InvokeAction { integration, action, params } = request;
        let scope = caller.scope();
        self.check_enabled(scope.org, caller.chooser(), (&integration, &action)).await?;
        let tool = self.find(scope, &integration, &action).await?;
        let id = InvocationId::from(self.rng.uuid(self.clock.now()));
        let name = tool_name(&integration, &action);
        let run = RunRequest {
            parent: scope.session.and_then(|session| self.gate.turn_of(session)),
            ..RunRequest::new_call(id.uuid(), Some(id.to_string()))
        };
        let action = ActionRequest { id, integration, action, key: caller.key() };
        let names = (lane(tool.risk()), name.as_str());
        let call = CallRequest::of_action(caller.of_call(), names, Value::Object(params), run, action);
        let result = self.gate.call(call).await;
        let invocation = self.store.invocation(scope.org, id).await?;
        Ok((result, invocation))
    }

    /// Tells everybody who watches a session about the calls that begin to wait, until the gateway closes.
    pub(crate) async fn announce_waiting(&self, closing: &CancellationToken) {
        let mut calls = self.gate.waiting_calls();
        loop {
            let received = tokio::select! {
                received = calls.recv() => received,
                () = closing.cancelled() => return,
            };
            match received {
                Ok((org, id)) => match self.store.invocation(org, id).await {
                    Ok(found) => found.iter().for_each(|waiting| self.announce_request(waiting)),
                    Err(error) => tracing::warn!(%error, "a waiting call could not be announced"),
                },
                Err(RecvError::Lagged(missed)) => tracing::warn!(missed, "waiting calls were not announced"),
                Err(RecvError::Closed) => return,
            }
        }
    }

    /// Approves an invocation. It is executed at once, or when its caller repeats it; the first of two people who must
    /// approve leaves it waiting.
    pub(crate) async fn approve(
        self: &Arc<Self>,
        org: OrgId,
        id: InvocationId,
        approval: Approval,
    ) -> Result<(CallResult, Option<Invocation>), ApprovalError> {
        let actions = self.clone();
        to_the_end(async move { actions.approve_and_tell(org, id, &approval).await }).await
    }

    async fn approve_and_tell(
        &self,
        org: OrgId,
        id: InvocationId,
        approval: &Approval,
    ) -> Result<(CallResult, Option<Invocation>), ApprovalError> {
        self.check_requester(org, id).await?;
        let result = self.gate.approve(org, id, approval).await?;
        let invocation = self.store.invocation(org, id).await?;
        if let Some(done) = &invocation {
            if done.status(self.clock.now()) == InvocationStatus::Pending {
                // The first of two people has approved: everybody sees who, and with which parameters.
                self.announce_request(done);
                return Ok((result, invocation));
            }
            let completed = |outcome| ServerMessage::ActionCompleted { invocation_id: id, outcome };
            let message = match result.outcome {
                CallOutcome::Success => completed(ActionOutcome::Completed { result: result_of(done) }),
                CallOutcome::Waiting(_) => {
                    let status = InvocationStatus::Approved;
                    ServerMessage::ActionApprovalResult {
                        invocation_id: id,
                        status,
                        approved_by: approval.by,
                    }
                }
                _ => completed(ActionOutcome::Failed { error: result.text().to_owned() }),
            };
            self.broadcast(done, message);
        }
        Ok((result, invocation))
    }

    /// A request of a session that was stopped or deleted has expired, and so has one of a key that was revoked. One of an
    /// action that was disabled meanwhile is not executed.
    async fn check_requester(&self, org: OrgId, id: InvocationId) -> Result<(), ApprovalError> {
        let found = self.store.invocation(org, id).await?.ok_or(ApprovalError::NotFound)?;
        let pending = found.status(self.clock.now()) == InvocationStatus::Pending;
        let ended = match (found.session_id, found.key_id) {
            (Some(session), _) if pending => {
                let record = self.store.session_any(session).await?;
                record.is_none_or(|record| record.status == SessionStatus::Stopped)
            }
            (None, Some(key)) if pending => !self.store.is_key_valid(org, key).await?,
            _ => false,
        };
        if ended {
            return Err(ApprovalError::Expired);
        }
        let chooser = match (found.session_id, found.key_id) {
            (Some(session), _) => Chooser::CreatorOf(session),
            (None, Some(key)) => Chooser::OwnerOf(key),
            (None, None) => return Ok(()),
        };
        match self.check_enabled(org, chooser, (&found.integration, &found.action)).await {
            Err(disabled @ ActionError::Disabled(_)) if pending => {
                Err(ApprovalError::Changed(disabled.to_string()))
            }
            Err(ActionError::Store(error)) => Err(error.into()),
            _ => Ok(()),
        }
    }

    pub(crate) async fn deny(
        self: &Arc<Self>,
        org: OrgId,
        id: InvocationId,
        denial: Denial,
    ) -> Result<Option<Invocation>, ApprovalError> {
        let actions = self.clone();
        to_the_end(async move { actions.deny_and_tell(org, id, &denial).await }).await
    }

    async fn deny_and_tell(
        &self,
        org: OrgId,
        id: InvocationId,
        denial: &Denial,
    ) -> Result<Option<Invocation>, ApprovalError> {
        self.gate.deny(org, id, denial).await?;
        let invocation = self.store.invocation(org, id).await?;
        if let Some(denied) = &invocation {
            let status = InvocationStatus::Denied;
            let message =
                ServerMessage::ActionApprovalResult { invocation_id: id, status, approved_by: denial.by };
            self.broadcast(denied, message);
        }
        Ok(invocation)
    }

    /// Refuses an action that a user has disabled.
    pub(crate) async fn check_enabled(
        &self,
        org: OrgId,
        chooser: Chooser,
        (source, action): (&str, &str),
    ) -> Result<(), ActionError> {
        let key = format!("{source}:{action}");
        match self.store.disabled_action(org, chooser, &key).await? {
            None => Ok(()),
            Some(DisabledAction { action: None, .. }) => Err(ActionError::Disabled("integration")),
            Some(DisabledAction { action: Some(_), .. }) => Err(ActionError::Disabled("action")),
        }
    }

    async fn find(&self, scope: ToolScope, source: &str, action: &str) -> Result<Arc<dyn Tool>, ActionError> {
        let (policy, name) = (self.gate.policy(), tool_name(source, action));
        let found = gate::Sources::find(self.sources.as_ref(), &policy, scope, &name).await?;
        // Only actions have definitions; the platform's own tools are not invoked this way.
        if let Some(tool) = found.filter(|tool| tool.definition().is_some()) {
            return Ok(tool);
        }
        Err(ActionError::Unknown(self.sources.explain_missing(&policy, scope, (source, action)).await))
    }

    /// Tells everybody who watches the session that an invocation waits.
    fn announce_request(&self, invocation: &Invocation) {
        if invocation.status(self.clock.now()) != InvocationStatus::Pending {
            return;
        }
        let message = ServerMessage::ActionApprovalRequest(open_approval(invocation));
        self.broadcast(invocation, message);
    }

    /// Broadcasts to the session, without waiting: a session that cannot be reached still has its invocation.
    fn broadcast(&self, invocation: &Invocation, message: ServerMessage) {
        let Some(session) = invocation.session_id else { return };
        let hubs = self.hubs.clone();
        tokio::spawn(async move {
            let sent = async { hubs.open(session).await?.broadcast(message).await };
            if let Err(error) = sent.await {
                tracing::warn!(%error, %session, "an invocation could not be broadcast");
            }
        });
    }
}

/// Carries out a decision in a task of its own. A person who disconnects drops the future of the request, and once the
/// decision is written nobody else would execute the call and tell those who watch.
async fn to_the_end<T: Send + 'static>(
    decision: impl Future<Output = Result<T, ApprovalError>> + Send + 'static,
) -> Result<T, ApprovalError> {
    let decided = tokio::spawn(decision.in_current_span()).await;
    decided.unwrap_or_else(|_| Err(ApprovalError::Unavailable("it ended unexpectedly".to_owned())))
}

/// An invocation as clients see it at this time.
pub(crate) fn shown_invocation(invocation: &Invocation, now: DateTime<Utc>) -> WireInvocation {
    let status = invocation.status(now);
    let run = &invocation.run;
    let answer = answer_of(invocation);
    let text = answer.as_ref().map(|answer| gate::shown_text(answer.text()));
    let failed = matches!(status, InvocationStatus::Failed | InvocationStatus::Unknown);
    let denied = status == InvocationStatus::Denied;
    let duration = run.completed_at.zip(run.started_at).map(|(end, start)| (end - start).num_milliseconds());
    let approved = invocation.decided_by.is_some();
    WireInvocation {
        id: invocation.id,
        session_id: invocation.session_id,
        organization_id: invocation.org_id,
        integration_id: invocation.integration_id,
        integration: invocation.integration.clone(),
        action: invocation.action.clone(),
        risk_level: invocation.risk,
        mode: invocation.mode,
        mode_source: invocation.mode_source,
        mode_reason: invocation.mode_reason.clone(),
        params: invocation.params.clone(),
        edited: invocation.edited_hash.is_some(),
        request_hash: invocation.request_hash().filter(|_| status == InvocationStatus::Pending).cloned(),
        status,
        result: result_of(invocation),
        error: text.filter(|_| failed),
        denied_reason: denied.then(|| denied_reason(invocation, answer.as_ref())),
        duration_ms: duration.and_then(|duration| u64::try_from(duration).ok()),
        two_person: invocation.two_person,
        first_approved_by: invocation.first_approved_by,
        first_approved_at: invocation.first_approved_at,
        approved_by: invocation.decided_by,
        approved_at: invocation.decided_at.filter(|_| approved),
        completed_at: run.completed_at,
        expires_at: invocation.expires_at,
        created_at: invocation.created_at,
    }
}

/// Why an invocation was denied: by a person, by a mode that is wrong, or else by policy. A reason of a mode that does not
/// deny, such as a changed definition, explains why a person was asked.
fn denied_reason(invocation: &Invocation, answer: Option<&CallResult>) -> String {
    if invocation.decided_by.is_none() {
        let of_mode = invocation.mode_reason.as_deref().filter(|_| invocation.mode == ActionMode::Deny);
        return of_mode.unwrap_or("policy").to_owned();
    }
    let said = answer.and_then(|answer| gate::denial_reason(answer.text()));
    said.map_or_else(|| "denied".to_owned(), |reason| format!("denied: {}", gate::shown_text(reason)))
}

fn answer_of(invocation: &Invocation) -> Option<CallResult> {
    serde_json::from_value(invocation.run.answer.clone()?).ok()
}

/// The result of an invocation that completed, redacted and truncated.
fn result_of(invocation: &Invocation) -> Value {
    let answer = answer_of(invocation).filter(|answer| answer.outcome == CallOutcome::Success);
    let Some(answer) = answer else { return Value::Null };
    let artifacts = answer.reply.output_artifacts;
    // A call of the contract has no output of its own; its reply refers to artifacts.
    answer.output.map_or_else(|| Value::Array(artifacts), |output| gate::shown(&value_of(output)))
}

/// The value that a tool returned: what it calls its `response`, or else all of its data, or else its text.
fn value_of(output: Output) -> Value {
    match output.data {
        None => Value::String(output.text),
        Some(mut data) if data.len() == 1 => match data.remove("response") {
            Some(response) => response,
            None => Value::Object(data),
        },
        Some(data) => Value::Object(data),
    }
}

/// Whether a call failed because its parameters were invalid.
pub(crate) fn is_invalid(result: &CallResult) -> bool {
    result.outcome == CallOutcome::Failed(ToolErrorCode::InvalidRequest)
}
