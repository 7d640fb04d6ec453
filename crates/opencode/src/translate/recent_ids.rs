//! Recently seen ids. Bounded, because the sender can invent any number of them, and small, because every
//! live session has several.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};

/// The number of remembered ids, more than any answer has parts.
const MAX_IDS: usize = 512;

/// Hashes of ids, oldest first. They are keyed with a secret of this process, so that collisions cannot be
/// constructed.
#[derive(Debug, Default)]
pub(super) struct RecentIds {
    hashes: VecDeque<u64>,
    secret: RandomState,
}

impl RecentIds {
    pub(super) fn contains(&self, id: &str) -> bool {
        self.hashes.contains(&self.secret.hash_one(id))
    }

    /// Returns whether the id is new. Forgets the oldest id if necessary.
    pub(super) fn insert(&mut self, id: &str) -> bool {
        let hash = self.secret.hash_one(id);
        if self.hashes.contains(&hash) {
            return false;
        }
        if self.hashes.len() >= MAX_IDS {
            self.hashes.pop_front();
        }
        self.hashes.push_back(hash);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_id_is_forgotten_at_the_limit() {
        let mut recent = RecentIds::default();
        for number in 0..=MAX_IDS {
            assert!(recent.insert(&number.to_string()));
        }
        assert!(!recent.contains("0") && recent.contains("1") && !recent.insert("1"));
        assert_eq!(recent.hashes.len(), MAX_IDS);
    }
}
