//! Who asks for something to be done with a session.

use policy::{ActorClass, Claim};
use proto::{AutomationId, OrgId, UserId};

use crate::access::{self, Act, CallerKind};

/// An authenticated caller of a use case.
#[derive(Clone, Debug)]
pub enum Requester {
    /// A member of the organization; `kind` is the member's column in the table of `access`.
    User { id: UserId, kind: CallerKind },
    /// Another program that the operator runs.
    Service { name: String },
    /// An automation of the organization, for which the gateway itself acts.
    Automation(AutomationId),
}

/// The metadata of a request to create or prompt a session.
#[derive(Clone, Debug)]
pub struct RequestContext {
    pub org: OrgId,
    pub requester: Requester,
    /// Requests of one requester with the same key are executed once, and all get the same answer.
    pub idempotency_key: Option<String>,
}

impl Requester {
    pub(super) fn user(&self) -> Option<UserId> {
        match self {
            Self::User { id, .. } => Some(*id),
            Self::Service { .. } | Self::Automation(_) => None,
        }
    }

    /// The id of the user, or the identity of a program, as clients see it.
    pub(super) fn name(&self) -> String {
        self.user().map_or_else(|| self.identity(), |user| user.to_string())
    }

    /// A name that is different for each requester and does not depend on its credential.
    pub(super) fn identity(&self) -> String {
        match self {
            Self::User { id, .. } => format!("user {id}"),
            Self::Service { name } => format!("service {name}"),
            Self::Automation(id) => format!("automation {id}"),
        }
    }

    /// The requester as the ledger records it.
    pub(super) fn actor(&self) -> Claim {
        let (actor_type, actor_id) = match self {
            Self::User { id, .. } => (ActorClass::Human, id.to_string()),
            Self::Service { name } => (ActorClass::System, name.clone()),
            Self::Automation(id) => (ActorClass::System, format!("automation:{id}")),
        };
        Claim { actor_type, actor_id }
    }

    /// Whether the access table allows the act. An automation may do what a service may.
    pub(super) fn may(&self, act: Act, owns: bool) -> bool {
        let kind = match self {
            Self::User { kind, .. } => *kind,
            Self::Service { .. } | Self::Automation(_) => CallerKind::Service,
        };
        access::may(act, kind, owns)
    }
}
