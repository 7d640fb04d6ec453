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

/// Who takes part in the approval of a request.
#[derive(Clone, Copy, Debug)]
pub struct Participants {
    /// The person on whose behalf the call was requested.
    pub requester: Option<UserId>,
    pub two_person: bool,
    pub first_approved_by: Option<UserId>,
}

impl Participants {
    /// Whether this owner or admin may approve the request as it is. Any of them may deny it.
    pub fn may_approve(&self, by: UserId) -> Result<(), ApprovalError> {
        match self {
            Self { two_person: true, requester, .. } if *requester == Some(by) => {
                Err(ApprovalError::OwnRequest)
            }
            Self { two_person: true, first_approved_by, .. } if *first_approved_by == Some(by) => {
                Err(ApprovalError::ApprovedBefore)
            }
            _ => Ok(()),
        }
    }
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
        let two_person = invocation.two_person || mode.is_some_and(|mode| mode.two_person);
        // An approval is for the arguments that its approver has seen: an edit replaces the first one.
        let first_approved_by = invocation.first_approved_by.filter(|_| approval.params.is_none());
        let requester = if two_person { self.requester(waiting).await? } else { None };
        Participants { requester, two_person, first_approved_by }.may_approve(approval.by)?;
        if !two_person {
            return Ok(ApprovalTurn::Last);
        }
        match first_approved_by {
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
