//! Room for live sessions: who is let go when there are too many of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What can be felt of a live session from outside. Its actor and its place in the registry hold one; so does everyone who
/// is about to say something to it.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    busy: AtomicBool,
    used: AtomicU64,
}

/// A pulse at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Felt {
    /// It has watchers, a turn, a boot or prompts that wait, or somebody is about to speak to it.
    busy: bool,
    /// When it was last asked for, in uses of all.
    used: u64,
}

impl Pulse {
    pub(super) fn busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    pub(super) fn used(&self, now: u64) {
        self.used.store(now, Ordering::Relaxed);
    }

    /// Whether anybody beside the actor and the registry has it.
    pub(super) fn is_held(pulse: &Arc<Self>) -> bool {
        Arc::strong_count(pulse) > 2
    }

    pub(super) fn felt(pulse: &Arc<Self>) -> Felt {
        let busy = pulse.busy.load(Ordering::Relaxed) || Self::is_held(pulse);
        Felt { busy, used: pulse.used.load(Ordering::Relaxed) }
    }
}

/// The places of those who have to go so that `most` stay: of those that are not busy, the ones that were not asked for
/// the longest. Where more than `most` are busy, all of them stay.
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
