//! The pools from which callers and agents take slots and memory, with the limits derived from the settings.

use std::sync::Arc;

use clock::Clock;
use shares::{Pool, PoolLimits, Quota, Rate, RateLimits};

use crate::config::Config;

/// All pools of a gateway.
pub struct Shares {
    /// Requests in flight.
    pub requests: Arc<Pool>,
    /// Model requests in flight.
    pub model_requests: Arc<Pool>,
    /// Memory that callers and agents occupy in the gateway: bodies, frames, history pages.
    pub memory: Arc<Pool>,
    /// Memory for bodies of unauthenticated senders.
    pub anonymous_memory: Arc<Pool>,
    /// Device logins of a client: starting and answering them, and polls with codes that nobody waits with.
    pub device_logins: Rate,
    /// Device logins of all clients behind one proxy.
    pub proxied_device_logins: Rate,
}

/// A person starts and answers a few. An attacker who guesses codes gets no further.
const DEVICE_LOGINS: RateLimits = RateLimits {
    name: "device logins",
    session: Quota { per_minute: 20, burst: 20 },
    org: Quota { per_minute: 200, burst: 200 },
    address: Quota { per_minute: 120, burst: 60 },
};

/// Enough for ten clients that use up their own rate.
const PROXIED_DEVICE_LOGINS: RateLimits = RateLimits {
    name: "device logins behind one proxy",
    address: Quota { per_minute: 1200, burst: 600 },
    ..DEVICE_LOGINS
};

const MIB: u64 = 1024 * 1024;

impl Shares {
    /// The limits derived from the settings.
    pub fn limits(config: &Config) -> [PoolLimits; 4] {
        let (requests, model) = (config.max_connections as u64, config.model_requests as u64);
        let memory = config.shared_memory_mib as u64 * MIB;
        let slots = |name, total: u64, per_session| PoolLimits { name, unit: "", total, per_session };
        let bytes = |name, total, per_session| PoolLimits { name, unit: "bytes", total, per_session };
        [
            slots("requests", requests, requests.min(256)),
            slots("model requests", model, model.min(16)),
            bytes("memory", memory, memory / 8),
            bytes("memory before login", memory / 64, 0),
        ]
    }

    pub fn new(config: &Config, clock: &Clock) -> Self {
        let [requests, model_requests, memory, anonymous_memory] = Self::limits(config).map(Pool::new);
        let device_logins = Rate::new(DEVICE_LOGINS, clock.clone());
        let proxied_device_logins = Rate::new(PROXIED_DEVICE_LOGINS, clock.clone());
        Self { requests, model_requests, memory, anonymous_memory, device_logins, proxied_device_logins }
    }
}
