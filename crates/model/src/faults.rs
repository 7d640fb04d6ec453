//! Counts how often a fault was produced per conversation, so that a retry can succeed.

use std::collections::{HashMap, VecDeque};

use parking_lot::Mutex;

/// How many conversation steps are remembered; the oldest is forgotten first and would then fail again.
const MAX_REMEMBERED: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Faults {
    state: Mutex<FaultCounts>,
}

#[derive(Debug, Default)]
struct FaultCounts {
    counts: HashMap<String, u32>,
    order: VecDeque<String>,
}

impl Faults {
    /// Whether the fault `key` should happen now. `None` for `times` means always.
    pub(crate) fn should_fail(&self, key: String, times: Option<u32>) -> bool {
        let Some(times) = times else { return true };
        let mut state = self.state.lock();
        if let Some(count) = state.counts.get_mut(&key) {
            *count = count.saturating_add(1);
            return *count <= times;
        }
        if state.order.len() >= MAX_REMEMBERED
            && let Some(oldest) = state.order.pop_front()
        {
            state.counts.remove(&oldest);
        }
        state.order.push_back(key.clone());
        state.counts.insert(key, 1);
        times > 0
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
        for key in 0..=MAX_REMEMBERED {
            faults.should_fail(key.to_string(), Some(1));
        }
        assert_eq!(faults.state.lock().counts.len(), MAX_REMEMBERED);
        assert!(!faults.should_fail(MAX_REMEMBERED.to_string(), Some(1)), "the newest must be remembered");
        assert!(faults.should_fail("0".to_owned(), Some(1)), "the oldest must be forgotten");
    }
}
