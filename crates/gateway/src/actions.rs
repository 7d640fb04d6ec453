//! The actions of agents: the catalog that a session sees, invocations, and their approval.

mod catalog;
mod invocation;

use std::sync::Arc;

use clock::{Clock, Rng};
use gate::Gate;
use shares::{Quota, Rate, RateLimits};
use store::Store;

use crate::git::GitService;
use crate::hub::Hubs;
use crate::sources::Registry;

pub(crate) use invocation::{ActionError, is_invalid, shown_invocation};

/// Invocations of one session a minute, and of one organization.
const INVOCATIONS: RateLimits = RateLimits {
    name: "action invocations",
    session: Quota { per_minute: 60, burst: 60 },
    org: Quota { per_minute: 6_000, burst: 6_000 },
    address: Quota { per_minute: 60, burst: 60 },
};

/// What the use cases of actions need.
pub struct Actions {
    store: Store,
    clock: Clock,
    rng: Rng,
    gate: Arc<Gate>,
    sources: Arc<Registry>,
    hubs: Hubs,
    rate: Rate,
}

impl Actions {
    pub(crate) fn new(git: &GitService, sources: Arc<Registry>, hubs: Hubs) -> Self {
        Self {
            store: git.store.clone(),
            rate: Rate::new(INVOCATIONS, git.clock.clone()),
            clock: git.clock.clone(),
            rng: git.rng.clone(),
            gate: git.gate.clone(),
            sources,
            hubs,
        }
    }
}
