//! The rate limit of one sandbox. Every request writes a record, so a sandbox that sends requests faster than
//! records can be stored waits; nobody else is affected.

use std::time::Duration;

use clock::Clock;
use parking_lot::Mutex;

use crate::limits::Limits;

pub(crate) struct RateLimiter {
    clock: Clock,
    /// The interval between requests at the sustained rate.
    each: Duration,
    /// The size of a burst, as the time it takes at the sustained rate.
    ahead: Duration,
    /// The time at which all requests so far would have been sent at the sustained rate.
    through: Mutex<Duration>,
}

impl RateLimiter {
    pub(crate) fn new(limits: &Limits, clock: Clock) -> Self {
        let each = Duration::from_secs(1) / limits.requests_per_second.max(1);
        Self { clock, each, ahead: each * limits.requests_at_once, through: Mutex::default() }
    }

    /// Waits until this request may proceed; waiting requests keep their order.
    pub(crate) async fn acquire(&self) {
        let wait = self.reserve();
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    fn reserve(&self) -> Duration {
        let now = self.clock.elapsed();
        let mut through = self.through.lock();
        *through = now.max(*through) + self.each;
        through.saturating_sub(now).saturating_sub(self.ahead)
    }
}
