//! The actions of agents: the catalog that a session sees, invocations, and their approval.

mod audience;
mod caller;
mod catalog;
mod invocation;
mod tool_names;
mod tools;

use std::num::NonZeroUsize;
use std::sync::Arc;

use clock::{Clock, Rng};
use gate::Gate;
use lru::LruCache;
use parking_lot::Mutex;
use proto::OrgId;
use shares::{Quota, Rate, RateLimits, Window};
use store::Store;

use crate::git::GitService;
use crate::hub::Hubs;
use crate::sources::Registry;

pub(crate) use audience::Audience;
pub(crate) use caller::ActionCaller;
pub(crate) use invocation::{ActionError, is_invalid, shown_invocation};

const INVOCATIONS_NOUN: &str = "action invocations";
/// The most invocations of one session or API key in any minute.
const PER_MINUTE: usize = 60;

/// The rate limit of the invocations of one organization: half of its limit of calls.
fn invocations_of_org(calls_per_minute: u32) -> RateLimits {
    let per_minute = (calls_per_minute / 2).max(1);
    let quota = Quota { per_minute, burst: per_minute };
    RateLimits { name: INVOCATIONS_NOUN, session: quota, org: quota, address: quota }
}

/// The most names of tools that are kept in memory.
const KEPT_NAMES: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// What the use cases of actions need.
pub struct Actions {
    store: Store,
    clock: Clock,
    rng: Rng,
    gate: Arc<Gate>,
    sources: Arc<Registry>,
    hubs: Hubs,
    invocations: Window,
    invocations_of_org: Rate,
    /// The source and the action of each MCP tool that an organization has listed lately.
    names: Mutex<LruCache<(OrgId, String), (String, String)>>,
}

impl Actions {
    pub(crate) fn new(git: &GitService, sources: Arc<Registry>, hubs: Hubs, calls_per_minute: u32) -> Self {
        Self {
            store: git.store.clone(),
            invocations: Window::new(INVOCATIONS_NOUN, PER_MINUTE, git.clock.clone()),
            invocations_of_org: Rate::new(invocations_of_org(calls_per_minute), git.clock.clone()),
            clock: git.clock.clone(),
            rng: git.rng.clone(),
            gate: git.gate.clone(),
            sources,
            hubs,
            names: Mutex::new(LruCache::new(KEPT_NAMES)),
        }
    }
}
