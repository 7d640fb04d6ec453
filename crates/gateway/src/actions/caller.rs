//! Who requests actions: the agent of a session, or a program with an API key of the scope `mcp`, which counts as an agent
//! without a session.

use gate::{Attempt, ToolScope};
use policy::Claim;
use proto::{ApiKeyId, OrgId};
use shares::Party;
use store::{Chooser, Invocation, SandboxSession};

use super::audience::Audience;

#[derive(Clone, Copy, Debug)]
pub(crate) enum ActionCaller {
    Session(SandboxSession),
    Key { id: ApiKeyId, org: OrgId },
}

impl ActionCaller {
    pub(crate) const fn org(&self) -> OrgId {
        match self {
            Self::Session(session) => session.org_id,
            Self::Key { org, .. } => *org,
        }
    }

    /// The actions that the caller can find.
    pub(crate) fn scope(&self) -> ToolScope {
        let session = match self {
            Self::Session(session) => Some(session.id),
            Self::Key { .. } => None,
        };
        ToolScope { org: self.org(), session }
    }

    /// For whom its catalog is.
    pub(crate) fn audience(&self) -> Audience {
        let (agent, role) = self.actor();
        Audience { scope: self.scope(), chooser: self.chooser(), agent, role }
    }

    /// Whose preferences count.
    pub(crate) const fn chooser(&self) -> Chooser {
        match self {
            Self::Session(session) => Chooser::CreatorOf(session.id),
            Self::Key { id, .. } => Chooser::OwnerOf(*id),
        }
    }

    /// The party whose shares the caller uses.
    pub(crate) fn party(&self) -> Party {
        match self {
            Self::Session(session) => Party::session(session.id, session.org_id),
            Self::Key { id, org } => Party::key(*id, *org),
        }
    }

    pub(crate) const fn key(&self) -> Option<ApiKeyId> {
        match self {
            Self::Session(_) => None,
            Self::Key { id, .. } => Some(*id),
        }
    }

    /// Whether this caller requested the invocation.
    pub(crate) fn has_requested(&self, invocation: &Invocation) -> bool {
        match self {
            Self::Session(session) => invocation.session_id == Some(session.id),
            Self::Key { id, .. } => invocation.key_id == Some(*id),
        }
    }

    /// An attempt to call an action, as far as it is known before the request is parsed.
    pub(crate) fn attempt(&self, tool: &str) -> Attempt {
        let (scope, (actor, role), tool) = (self.scope(), self.actor(), Some(tool.to_owned()));
        Attempt {
            org: Some(scope.org),
            session: scope.session,
            actor,
            role,
            lane: None,
            operation: tool.clone(),
            tool,
            run_id: None,
            case: scope.session.map(|session| session.to_string()),
            correlation: None,
            request_hash: None,
        }
    }

    /// The caller of a gate call.
    pub(super) fn of_call(&self) -> gate::Caller {
        let (ToolScope { org, session }, (actor, role)) = (self.scope(), self.actor());
        gate::Caller { org, session, actor, role: role.to_owned() }
    }

    pub(super) fn actor(&self) -> (Claim, &'static str) {
        match self {
            Self::Session(session) => (gate::agent(session.id), gate::agent_role(session.mode()).0),
            Self::Key { id, .. } => gate::key_agent(*id),
        }
    }
}
