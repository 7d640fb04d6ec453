//! Counts how often a fault was produced per conversation, so that a retry can succeed.

use std::num::NonZeroUsize;

use lru::LruCache;
use parking_lot::Mutex;

/// How many conversation steps are remembered; the least recent is forgotten first and would then fail again.
const MAX_REMEMBERED: NonZeroUsize = NonZeroUsize::MIN.saturating_add(9_999);

#[derive(Debug)]
pub(crate) struct Faults {
    counts: Mutex<LruCache<String, u32>>,
}

impl Default for Faults {
    fn default() -> Self {
        Self { counts: Mutex::new(LruCache::new(MAX_REMEMBERED)) }
    }
}

impl Faults {
    /// Whether the fault `key` should happen now. `None` for `times` means always.
    pub(crate) fn should_fail(&self, key: String, times: Option<u32>) -> bool {
        let Some(times) = times else { return true };
        let mut counts = self.counts.lock();
        let count = counts.get_or_insert_mut(key, || 0);
        *count = count.saturating_add(1);
        *count <= times
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_happens_the_given_number_of_times_per_key() {
        let faults = Faults::default();
        let strikes =
            |key: &str| (0..4).map(|_| faults.should_fail(key.to_owned(), Some(2))).collect::<Vec<_>>();
        assert_eq!(strikes("a"), [true, true, false, false]);
        assert_eq!(strikes("b"), [true, true, false, false]);
        assert!((0..9).all(|_| faults.should_fail("a".to_owned(), None)));
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_entry_is_dropped() {
        let faults = Faults::default();
        let most = MAX_REMEMBERED.get();
        for key in 0..=most {
            faults.should_fail(key.to_string(), Some(1));
        }
        assert_eq!(faults.counts.lock().len(), most);
        assert!(!faults.should_fail(most.to_string(), Some(1)), "the newest must be remembered");
        assert!(faults.should_fail("0".to_owned(), Some(1)), "the oldest must be forgotten");
    }
}
