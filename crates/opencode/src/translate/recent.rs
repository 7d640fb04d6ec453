//! Ids that were seen lately. Bounded, because whoever sends them can make up any number, and small, because every
//! live session has some.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};

/// More than any answer has parts.
const MOST: usize = 512;

/// Fingerprints of ids, the oldest first. They depend on a secret of this process, so two ids with the same one cannot
/// be made on purpose.
#[derive(Debug, Default)]
pub(super) struct Recent {
    prints: VecDeque<u64>,
    secret: RandomState,
}

impl Recent {
    pub(super) fn contains(&self, id: &str) -> bool {
        self.prints.contains(&self.secret.hash_one(id))
    }

    /// Whether it is new. The oldest is forgotten where there is no room.
    pub(super) fn insert(&mut self, id: &str) -> bool {
        let print = self.secret.hash_one(id);
        if self.prints.contains(&print) {
            return false;
        }
        if self.prints.len() >= MOST {
            self.prints.pop_front();
        }
        self.prints.push_back(print);
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
        assert_eq!(recent.prints.len(), MOST);
    }
}
