//! Ids that were seen lately. Bounded, because whoever sends them can make up any number.

use std::collections::{HashSet, VecDeque};

/// More than any turn or tree of sub-agents has.
const MOST: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Recent {
    ids: HashSet<String>,
    order: VecDeque<String>,
}

impl Recent {
    pub(super) fn contains(&self, id: &str) -> bool {
        self.ids.contains(id)
    }

    /// Whether it is new. The oldest is forgotten where there is no room.
    pub(super) fn insert(&mut self, id: &str) -> bool {
        if !self.ids.insert(id.to_owned()) {
            return false;
        }
        if self.order.len() >= MOST
            && let Some(oldest) = self.order.pop_front()
        {
            self.ids.remove(&oldest);
        }
        self.order.push_back(id.to_owned());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_for_the_newest() {
        let mut recent = Recent::default();
        for number in 0..=MOST {
            assert!(recent.insert(&number.to_string()));
        }
        assert!(!recent.contains("0") && recent.contains("1") && !recent.insert("1"));
        assert_eq!((recent.ids.len(), recent.order.len()), (MOST, MOST));
    }
}
