//! Counts how often a fault was already shown to a conversation, so that a retry can succeed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

/// How many conversation steps are remembered; the oldest is forgotten first and would fail anew.
const MAX_REMEMBERED: usize = 10_000;

#[derive(Debug, Default)]
pub(crate) struct Faults {
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    counts: HashMap<String, u32>,
    order: VecDeque<String>,
}

impl Faults {
    /// Whether the fault named `key` should happen now. `times` of `None` means every time.
    pub(crate) fn strike(&self, key: String, times: Option<u32>) -> bool {
        let Some(times) = times else { return true };
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = shown.counts.get_mut(&key) {
            *count = count.saturating_add(1);
            return *count <= times;
        }
        if shown.order.len() >= MAX_REMEMBERED
            && let Some(oldest) = shown.order.pop_front()
        {
            shown.counts.remove(&oldest);
        }
        shown.order.push_back(key.clone());
        shown.counts.insert(key, 1);
        times > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_strikes_as_often_as_asked_for_each_key() {
        let faults = Faults::default();
        let strikes = |key: &str| (0..4).map(|_| faults.strike(key.to_owned(), Some(2))).collect::<Vec<_>>();
        assert_eq!(strikes("a"), [true, true, false, false]);
        assert_eq!(strikes("b"), [true, true, false, false]);
        assert!((0..9).all(|_| faults.strike("a".to_owned(), None)));
    }

    #[test]
    fn memory_is_bounded_and_the_oldest_goes_first() {
        let faults = Faults::default();
        for key in 0..=MAX_REMEMBERED {
            faults.strike(key.to_string(), Some(1));
        }
        assert_eq!(faults.shown.lock().unwrap().counts.len(), MAX_REMEMBERED);
        assert!(!faults.strike(MAX_REMEMBERED.to_string(), Some(1)), "the newest is still known");
        assert!(faults.strike("0".to_owned(), Some(1)), "the oldest was forgotten");
    }
}
