//! The callers of calls that the gateway submits itself: a member who acts at a session, and the gateway on its own.

use policy::{ActorClass, Claim};
use proto::{OrgId, Role, SessionId, UserId};
use store::StoreError;

use crate::request::Caller;
use crate::{Gate, OPERATOR, ORG_ADMIN};

/// The role of the gateway itself, for work that nobody asked for.
pub const SYSTEM: &str = "SYSTEM";

/// The gateway as the caller of a call about a session, for example to save its files before its sandbox ends.
pub fn system_caller(org: OrgId, session: SessionId) -> Caller {
    let actor = Claim { actor_type: ActorClass::System, actor_id: "gateway".to_owned() };
    Caller { org, session: Some(session), actor, role: SYSTEM.to_owned() }
}

impl Gate {
    /// A member as the caller of a call about a session. The role is the present one.
    pub async fn member_caller(
        &self,
        org: OrgId,
        session: SessionId,
        user: UserId,
    ) -> Result<Caller, StoreError> {
        let member = self.store.member(org, user).await?.ok_or(StoreError::Missing("the membership"))?;
        let role = if member.role >= Role::Admin { ORG_ADMIN } else { OPERATOR };
        let actor = Claim { actor_type: ActorClass::Human, actor_id: user.to_string() };
        Ok(Caller { org, session: Some(session), actor, role: role.to_owned() })
    }
}
