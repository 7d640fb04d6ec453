//! The source of random bytes, ids and tokens: the operating system, or a seed in tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// A source of random bytes. Cheap to clone; clones of a seeded one share its sequence.
#[derive(Clone, Debug)]
pub struct Rng(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Seeded(Arc<AtomicU64>),
}

impl Rng {
    /// The operating system's generator, suitable for keys and tokens.
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A reproducible sequence for tests and simulations. Never use it for secrets.
    pub fn seeded(seed: u64) -> Self {
        Self(Source::Seeded(Arc::new(AtomicU64::new(seed))))
    }

    /// `N` random bytes.
    ///
    /// # Panics
    /// If the operating system cannot provide random bytes, because nothing could be secure without them.
    #[expect(clippy::disallowed_methods, reason = "this is the one place that draws random bytes")]
    #[expect(clippy::panic, reason = "a program without randomness must not continue")]
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut out = [0; N];
        match &self.0 {
            Source::System => {
                if let Err(error) = getrandom::fill(&mut out) {
                    panic!("the operating system gave no random bytes: {error}");
                }
            }
            Source::Seeded(state) => {
                for chunk in out.chunks_mut(8) {
                    chunk.copy_from_slice(&splitmix(state).to_le_bytes()[..chunk.len()]);
                }
            }
        }
        out
    }

    /// A version 7 UUID, which sorts by creation time, so that new rows are stored next to each other.
    pub fn uuid(&self, now: DateTime<Utc>) -> Uuid {
        let millis = u64::try_from(now.timestamp_millis()).unwrap_or_default();
        uuid::Builder::from_unix_timestamp_millis(millis, &self.bytes::<10>()).into_uuid()
    }
}

/// One step of `SplitMix64`: good enough for tests, and predictable by design.
fn splitmix(state: &AtomicU64) -> u64 {
    const SPLITMIX_INCREMENT: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut z = state.fetch_add(SPLITMIX_INCREMENT, Ordering::SeqCst).wrapping_add(SPLITMIX_INCREMENT);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        let (a, b, c) = (Rng::seeded(7), Rng::seeded(7), Rng::seeded(8));
        let first = a.bytes::<19>();
        assert_eq!(first, b.bytes::<19>());
        assert_ne!(first, c.bytes::<19>());
        assert_ne!(first, a.bytes::<19>());
    }

    #[test]
    fn ids_are_version_7_and_sort_by_time() {
        let rng = Rng::system();
        let at = |s| DateTime::from_timestamp(s, 0).unwrap();
        let (early, late) = (rng.uuid(at(1_700_000_000)), rng.uuid(at(1_700_000_001)));
        assert_eq!(early.get_version_num(), 7);
        assert!(early < late);
    }
}
