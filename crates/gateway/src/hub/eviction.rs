//! Eviction: which live sessions leave memory when there are too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The activity of a live session as seen from outside its actor. The actor and the registry entry each hold one
/// reference, and so does every caller about to send a command.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    busy: AtomicBool,
    used: AtomicU64,
}

/// The activity at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ActivityReading {
    /// The session has watchers, a turn, a boot or queued prompts, or a caller is about to send it a command.
    busy: bool,
    /// The time of the session's last lookup, on the registry's logical clock.
    used: u64,
}

impl Activity {
    pub(super) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    pub(super) fn set_used(&self, now: u64) {
        self.used.store(now, Ordering::Relaxed);
    }

    /// Whether anyone besides the actor and the registry holds a reference.
    pub(super) fn is_held(activity: &Arc<Self>) -> bool {
        Arc::strong_count(activity) > 2
    }

    pub(super) fn read(activity: &Arc<Self>) -> ActivityReading {
        let busy = activity.busy.load(Ordering::Relaxed) || Self::is_held(activity);
        ActivityReading { busy, used: activity.used.load(Ordering::Relaxed) }
    }
}

/// The indexes of the sessions to evict so that `most` stay: the least recently used of those that are not busy. If
/// more than `most` sessions are busy, all of the busy ones stay.
pub(super) fn sessions_to_evict(all: &[ActivityReading], most: usize) -> Vec<usize> {
    let mut idle: Vec<usize> = (0..all.len()).filter(|at| !all[*at].busy).collect();
    idle.sort_by_key(|at| all[*at].used);
    idle.truncate(all.len().saturating_sub(most));
    idle
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn eviction_keeps_busy_and_recently_used_sessions(
            all in prop::collection::vec((any::<bool>(), 0..50_u64), 0..40),
            most in 0..40_usize,
        ) {
            let all: Vec<ActivityReading> = all.into_iter().map(|(busy, used)| ActivityReading { busy, used }).collect();
            let evicted = sessions_to_evict(&all, most);
            let stays = |at: &usize| !evicted.contains(at);
            let busy = all.iter().filter(|reading| reading.busy).count();
            prop_assert!(evicted.iter().all(|at| !all[*at].busy));
            prop_assert_eq!(all.len() - evicted.len(), all.len().min(most.max(busy)));
            let last_evicted = evicted.iter().map(|at| all[*at].used).max();
            let first_idle = (0..all.len()).filter(stays).filter(|at| !all[*at].busy).map(|at| all[at].used).min();
            prop_assert!(last_evicted.is_none() || first_idle.is_none() || last_evicted <= first_idle);
        }
    }
}
