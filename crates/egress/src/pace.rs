//! How fast one sandbox may ask. Every request becomes a record, so one that asks faster than records can be kept waits:
//! that costs it time, and nobody anything else.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use clock::Clock;

use crate::limits::Limits;

pub(crate) struct Pace {
    clock: Clock,
    /// What one request takes of the time.
    each: Duration,
    /// How far requests may be ahead of it.
    ahead: Duration,
    /// When all that were let through would be over, one after the other.
    through: Mutex<Duration>,
}

impl Pace {
    pub(crate) fn new(limits: &Limits, clock: Clock) -> Self {
        let each = Duration::from_secs(1) / limits.requests_per_second.max(1);
        Self { clock, each, ahead: each * limits.requests_at_once, through: Mutex::default() }
    }

    /// Waits until it is this request's turn; those who wait keep their order.
    pub(crate) async fn turn(&self) {
        let wait = self.book();
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
    }

    fn book(&self) -> Duration {
        let now = self.clock.elapsed();
        let mut through = self.through.lock().unwrap_or_else(PoisonError::into_inner);
        *through = now.max(*through) + self.each;
        through.saturating_sub(now).saturating_sub(self.ahead)
    }
}
