//! Who may approve a request. With the two-person rule, two different owners or admins approve it, neither of them the
//! person who requested it through a session or an API key.

use policy::ModeDecision;
use proto::{OrgId, Role, UserId};
use store::{Invocation, StoreError};

use crate::Gate;
use crate::approvals::{Approval, ApprovalError, WaitingCall};

/// What an approval amounts to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApprovalTurn {
    /// Another person must approve as well.
    First,
    Last,
}

impl Gate {
    /// Decides what an approval amounts to. The rule counts if it was set when the call was requested, or is set now.
    pub(crate) async fn approval_turn(
        &self,
        waiting: &WaitingCall,
        mode: Option<&ModeDecision>,
        approval: &Approval,
    ) -> Result<ApprovalTurn, ApprovalError> {
        let invocation = &waiting.invocation;
        if !invocation.two_person && !mode.is_some_and(|mode| mode.two_person) {
            return Ok(ApprovalTurn::Last);
        }
        if self.requester(waiting).await? == Some(approval.by) {
            return Err(ApprovalError::OwnRequest);
        }
        // An approval is for the arguments that its approver has seen.
        if approval.params.is_some() {
            return Ok(ApprovalTurn::First);
        }
        match invocation.first_approved_by {
            Some(first) if first == approval.by => Err(ApprovalError::ApprovedBefore),
            Some(first) if self.may_decide(invocation.org_id, first).await? => Ok(ApprovalTurn::Last),
            _ => Ok(ApprovalTurn::First),
        }
    }

    /// The person on whose behalf a call was requested: who made the session, or the owner of the API key.
    async fn requester(&self, waiting: &WaitingCall) -> Result<Option<UserId>, StoreError> {
        let Invocation { org_id: org, session_id, key_id, .. } = &waiting.invocation;
        match (session_id, key_id) {
            (Some(session), _) => {
                Ok(self.store.session_any(*session).await?.and_then(|found| found.created_by))
            }
            (None, Some(key)) => self.store.key_user(*org, *key).await,
            (None, None) => Ok(None),
        }
    }

    /// Whether somebody who approved first may still approve.
    async fn may_decide(&self, org: OrgId, user: UserId) -> Result<bool, StoreError> {
        let member = self.store.member(org, user).await?;
        Ok(member.is_some_and(|member| matches!(member.role, Role::Owner | Role::Admin)))
    }
}
