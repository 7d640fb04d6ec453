//! The global safety lock as this instance last read it. It fails closed: while it cannot be read, no call is executed.

use std::sync::Weak;
use std::time::Duration;

use clock::Clock;
use parking_lot::Mutex;
use store::{Store, StoreError};
use tokio::time::MissedTickBehavior;

use super::Gate;

/// The polling interval, so that an operator's change takes effect within a second.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum age of a reading. The lock may have been engaged since an older one.
const MAX_READING_AGE: Duration = Duration::from_secs(2);

/// The last reading of the lock.
pub(crate) struct SafetyLockReading {
    /// Always the system clock, even if the rest of the gate uses another one, because this is about real time.
    clock: Clock,
    last: Mutex<Option<Reading>>,
}

#[derive(Clone, Copy)]
struct Reading {
    engaged: bool,
    /// The time at which the lock was read, by the clock above.
    at: Duration,
}

/// The lock could not be read for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the safety lock could not be read for 2 seconds, so no call is executed")]
pub(crate) struct LockUnread;

impl SafetyLockReading {
    pub(crate) fn new() -> Self {
        Self { clock: Clock::system(), last: Mutex::new(None) }
    }

    /// Whether the lock is engaged.
    pub(crate) fn is_engaged(&self) -> Result<bool, LockUnread> {
        let last = *self.last.lock();
        let fresh = last.filter(|last| self.clock.elapsed().saturating_sub(last.at) <= MAX_READING_AGE);
        fresh.map(|last| last.engaged).ok_or(LockUnread)
    }

    pub(crate) async fn read(&self, store: &Store) -> Result<(), StoreError> {
        let at = self.clock.elapsed();
        let engaged = store.safety_lock().await?.is_some_and(|lock| lock.locked);
        *self.last.lock() = Some(Reading { engaged, at });
        Ok(())
    }
}

/// Polls the lock for as long as the gate exists. This task does nothing else, so that nothing that hangs elsewhere can
/// delay it.
pub async fn follow_lock(gate: Weak<Gate>) {
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Some(gate) = gate.upgrade() else { return };
        if let Err(error) = gate.lock.read(&gate.store).await {
            tracing::error!(%error, "the safety lock cannot be read; calls are refused while that lasts");
        }
    }
}
