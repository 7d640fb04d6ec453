//! Capacity for live sessions: which ones are evicted when there are too many.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The activity of a live session as seen from outside its actor. The actor and the registry entry each hold one
/// reference, and so does every caller about to send a command.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    busy: AtomicBool,
    used: AtomicU64,
}

/// A reading of the activity at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Felt {
    /// The session has watchers, a turn, a boot or queued prompts, or a caller is about to send it a command.
    busy: bool,
    /// When the session was last looked up, on the registry's logical clock.
    used: u64,
}

impl Pulse {
    pub(super) fn busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    pub(super) fn used(&self, now: u64) {
        self.used.store(now, Ordering::Relaxed);
    }

    /// Whether anyone besides the actor and the registry holds a reference.
    pub(super) fn is_held(pulse: &Arc<Self>) -> bool {
        Arc::strong_count(pulse) > 2
    }

    pub(super) fn felt(pulse: &Arc<Self>) -> Felt {
        let busy = pulse.busy.load(Ordering::Relaxed) || Self::is_held(pulse);
        Felt { busy, used: pulse.used.load(Ordering::Relaxed) }
    }
}

/// The indexes of the sessions to evict so that `most` stay: the least recently used of those that are not busy. If
/// more than `most` sessions are busy, all of the busy ones stay.
pub(super) fn leaving(all: &[Felt], most: usize) -> Vec<usize> {
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
        fn the_busy_stay_and_of_the_others_the_ones_that_were_used_last(
            all in prop::collection::vec((any::<bool>(), 0..50_u64), 0..40),
            most in 0..40_usize,
        ) {
            let all: Vec<Felt> = all.into_iter().map(|(busy, used)| Felt { busy, used }).collect();
            let gone = leaving(&all, most);
            let stays = |at: &usize| !gone.contains(at);
            let busy = all.iter().filter(|felt| felt.busy).count();
            prop_assert!(gone.iter().all(|at| !all[*at].busy));
            prop_assert_eq!(all.len() - gone.len(), all.len().min(most.max(busy)));
            let last_gone = gone.iter().map(|at| all[*at].used).max();
            let first_idle = (0..all.len()).filter(stays).filter(|at| !all[*at].busy).map(|at| all[at].used).min();
            prop_assert!(last_gone.is_none() || first_idle.is_none() || last_gone <= first_idle);
        }
    }
}
