//! What policy is asked about a call: everything established by us, nothing taken from the caller's word.

use policy::{Action, Flag, Grant, ModeDecision, Request, Risk, RunState, Versions, resolve_mode};
use proto::RunStatus;
use store::{Run, StoreError};

use super::Gate;
use super::artifacts::reference;
use super::call::{Call, Door};
use super::lock::LockUnread;
use crate::sources::Tool;

/// Nothing can be decided now, so nothing is done.
#[derive(Debug, thiserror::Error)]
pub(super) enum Undecidable {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Lock(#[from] LockUnread),
}

/// The question, and what was found on the way to it.
pub(super) struct Question {
    pub(super) request: Request,
    /// The run that the call belongs to.
    pub(super) parent: Option<Run>,
    /// The run that the call tries again.
    pub(super) retried: Option<Run>,
}

impl Question {
    /// The run that the call's own run is below. One that does not count is none: it may be somebody else's.
    pub(super) fn above(&self) -> Option<&Run> {
        self.retried.as_ref().or(self.parent.as_ref())
    }
}

impl Gate {
    /// What policy is asked. On the way the call becomes what it really is: of its parent's case, and with references to
    /// artifacts in our own words.
    pub(super) async fn question(
        &self,
        call: &mut Call,
        tool: Option<&dyn Tool>,
    ) -> Result<Question, Undecidable> {
        let (state, parent) = self.parent(call).await?;
        let retried = self.retried(call).await?;
        let lost = call.retry_of.is_some() && retried.is_none();
        let above = retried.as_ref().or(parent.as_ref());
        if let (None, Some(case)) = (&call.case, above.and_then(|run| run.case_id.as_ref())) {
            call.case = Some(case.clone());
            call.scope.insert("case_id".to_owned());
        }
        let request = Request {
            actor: call.actor.clone(),
            claimed: call.claimed.clone(),
            role: call.role.to_owned(),
            lane: call.lane.clone(),
            action: Action::Tool {
                tool_name: call.tool.clone(),
                operation: call.operation.clone(),
                risk: tool.map_or(Risk::Danger, Tool::risk),
                registered: tool.is_some(),
                writes: tool.and_then(Tool::writes).cloned(),
            },
            scope: call.scope.clone(),
            refs: tool.map(|tool| tool.refs(&call.parameters)).unwrap_or_default(),
            flags: self.flags(call, tool).await?,
            run: if lost { RunState::Inactive } else { state },
            demanded: call.demanded.clone(),
            mode: self.mode(call, tool).await?,
            locked: self.lock.is_engaged()?,
            grant: self.grant(call).await?,
        };
        Ok(Question { request, parent, retried })
    }

    /// What the modes say of a tool that they govern: the automation's, the organisation's, or that of its risk.
    async fn mode(&self, call: &Call, tool: Option<&dyn Tool>) -> Result<Option<ModeDecision>, StoreError> {
        let Some((tool, key)) = tool.and_then(|tool| Some((tool, tool.mode_key()?))) else { return Ok(None) };
        let modes = self.store.action_modes_for(call.org, call.session, key.as_str()).await?;
        Ok(Some(resolve_mode(&key, modes.automation.as_ref(), &modes.org, tool.risk())))
    }

    /// The run that a call tries again: it has ended, and was a call of the same tool.
    async fn retried(&self, call: &Call) -> Result<Option<Run>, StoreError> {
        let Some((id, _)) = &call.retry_of else { return Ok(None) };
        let found = self.store.run(call.org, id).await?;
        Ok(found.filter(|run| {
            run.status.is_terminal() && run.tool.as_deref() == Some(&call.tool) && is_of_case(call, run)
        }))
    }

    async fn parent(&self, call: &Call) -> Result<(RunState, Option<Run>), StoreError> {
        let Some(id) = &call.parent else { return Ok((RunState::New, None)) };
        let found = self.store.run(call.org, id).await?.filter(|run| run.status == RunStatus::Running);
        let found = found.filter(|run| run.case_id.is_none() || is_of_case(call, run));
        let state = match &found {
            // It was us who named the turn that a callback belongs to, and that turn has ended since: the callback is
            // decided about as one between two turns.
            None if call.door == Door::Callback => RunState::New,
            None => RunState::Inactive,
            Some(run) => RunState::Active(Versions {
                lanes: run.lanes_version.clone(),
                roles: run.roles_version.clone(),
            }),
        };
        Ok((state, found))
    }

    /// What the call would do beyond its own case. An artifact that does not exist and one of another case are the
    /// same here, or the answer would tell which there are.
    async fn flags(
        &self,
        call: &mut Call,
        tool: Option<&dyn Tool>,
    ) -> Result<std::collections::BTreeSet<Flag>, StoreError> {
        let mut flags: std::collections::BTreeSet<Flag> =
            tool.into_iter().flat_map(|tool| tool.flags().iter().map(|name| Flag::new(*name))).collect();
        // A sandbox's case is its session; saying another one is a look into that.
        if call.session.is_some_and(|own| call.case.as_deref() != Some(own.to_string().as_str())) {
            flags.insert(Flag::cross_case_lookup());
        }
        for given in &mut call.input_artifacts {
            let found = self.store.artifact(call.org, given.artifact_id.as_str()).await?;
            let own = found.filter(|found| {
                found.hash == given.hash_sha256.to_string()
                    && (found.case_id.is_none() || found.case_id == call.case)
            });
            match own.as_ref().and_then(reference) {
                Some(known) => *given = known,
                None => {
                    flags.insert(Flag::cross_case_lookup());
                }
            }
        }
        Ok(flags)
    }

    /// The break-glass grant that the caller holds under the ticket it names.
    async fn grant(&self, call: &Call) -> Result<Option<Grant>, StoreError> {
        let policy = self.rules.policy();
        let breaks = policy.lane(&call.lane).is_some_and(|lane| lane.override_minutes.is_some());
        let user = call.actor.actor_id.parse().ok();
        let (true, Some(ticket), Some(user)) = (breaks, &call.ticket, user) else { return Ok(None) };
        let now = self.clock.now();
        let found = self.store.override_grant(call.org, user, ticket, now).await?;
        Ok(found.map(|grant| Grant {
            ticket: grant.ticket,
            reason: grant.reason,
            from: grant.valid_from.timestamp(),
            until: grant.valid_until.timestamp(),
            now: now.timestamp(),
        }))
    }
}

/// A child belongs to the case of the run above it, also where it does not say so.
fn is_of_case(call: &Call, above: &Run) -> bool {
    call.case.is_none() || above.case_id == call.case
}
