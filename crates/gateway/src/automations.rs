//! Automations: what starts their runs, and how runs become sessions.

mod firing;
mod prompt;
mod runner;
mod schedule;
mod scheduler;
mod signature;

use clock::{Clock, Rng};
use shares::{Quota, Rate, RateLimits};
use store::Store;
use tokio::sync::Notify;

pub(crate) use firing::FireError;
pub(crate) use runner::{Runner, keep_running};
pub(crate) use schedule::Schedule;
pub(crate) use scheduler::keep_scheduling;
pub(crate) use signature::{Delivery, GENERIC_HEADER as SIGNATURE_HEADER, Rejection, sign, verify};

/// The most bytes of what starts a run. It is written into the sandbox with a little more about the run, so it is smaller
/// than other bodies and than the `triggerContext` of a session.
pub(crate) const MAX_PAYLOAD: usize = 448 * 1024;
/// How many webhooks of an organization are accepted.
const WEBHOOK_RATE_LIMITS: RateLimits = RateLimits {
    name: "webhooks",
    session: Quota { per_minute: 300, burst: 100 },
    org: Quota { per_minute: 300, burst: 100 },
    address: Quota { per_minute: 300, burst: 100 },
};

/// The parts of the gateway that automations use.
pub struct Automations {
    store: Store,
    clock: Clock,
    rng: Rng,
    hooks: Rate,
    /// Notified when a run is queued or ends.
    changed: Notify,
}

impl Automations {
    pub(crate) fn new(store: Store, clock: Clock, rng: Rng) -> Self {
        let hooks = Rate::new(WEBHOOK_RATE_LIMITS, clock.clone());
        Self { store, clock, rng, hooks, changed: Notify::new() }
    }
}
