//! Reproducible randomness for the fuzzer.

use clock::Rng;

pub struct Dice(Rng);

impl Dice {
    pub fn new(seed: u64) -> Self {
        // Spreads the seeds, because neighbouring ones would start with similar sequences.
        Self(Rng::seeded(seed.wrapping_mul(0x2545_f491_4f6c_dd1d)))
    }

    /// A number below `bound`, or 0 if `bound` is 0.
    pub fn below(&self, bound: usize) -> usize {
        u32::from_le_bytes(self.0.bytes()) as usize % bound.max(1)
    }

    /// One of the items; there must be at least one.
    pub fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    pub(super) fn byte(&self) -> u8 {
        self.0.bytes::<1>()[0]
    }
}
