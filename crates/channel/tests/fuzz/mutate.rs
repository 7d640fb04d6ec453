//! Makes broken inputs from good ones: repeatable, told the shape of what it breaks, and knowing nothing else of it.
//!
//! A case is named by its number alone, so a finding is repeated by asking for the same number over the same seeds.
//! Any format can be given a [`Shape`]: frames here; tokens, lines or headers elsewhere.

use std::ops::Range;

use clock::Rng;

/// What a mutator must know to break things that a random bit would not.
pub(crate) struct Shape {
    /// Cuts an input into its units.
    pub(crate) units: fn(&[u8]) -> Vec<Range<usize>>,
    /// Where numbers are within a unit, big endian, at most four bytes each.
    pub(crate) fields: &'static [Range<usize>],
    /// Numbers at which something changes.
    pub(crate) edges: &'static [u32],
    /// No input is longer.
    pub(crate) most: usize,
}

pub(crate) struct Mutator<'a> {
    shape: &'a Shape,
    seeds: &'a [Vec<u8>],
}

impl<'a> Mutator<'a> {
    /// There must be at least one seed.
    pub(crate) fn new(shape: &'a Shape, seeds: &'a [Vec<u8>]) -> Self {
        assert!(!seeds.is_empty(), "nothing to begin with");
        Self { shape, seeds }
    }

    /// The input of this number: a seed with one to six changes. The first numbers are the seeds themselves.
    pub(crate) fn case(&self, number: u64, dice: &Dice) -> Vec<u8> {
        if let Some(seed) = usize::try_from(number).ok().and_then(|number| self.seeds.get(number)) {
            return seed.clone();
        }
        let mut input = dice.pick(self.seeds).clone();
        for _ in 0..=dice.below(6) {
            if dice.below(2) == 0 {
                self.change_bytes(&mut input, dice);
            } else {
                self.change_units(&mut input, dice);
            }
            input.truncate(self.shape.most);
        }
        input
    }

    fn change_bytes(&self, input: &mut Vec<u8>, dice: &Dice) {
        let at = dice.below(input.len() + 1);
        let range = at..at + dice.below((input.len() - at).min(64) + 1);
        match dice.below(7) {
            0 if at < input.len() => input[at] ^= 1 << dice.below(8),
            1 if at < input.len() => input[at] = *dice.pick(&[0, 1, 0x7f, 0x80, 0xfe, 0xff]),
            2 => input.truncate(at),
            3 => drop(input.drain(range)),
            4 => {
                let twice = input[range].to_vec();
                drop(input.splice(at..at, twice));
            }
            5 => drop(input.splice(at..at, dice.bytes(16))),
            _ => {
                let other = dice.pick(self.seeds);
                input.truncate(at);
                input.extend_from_slice(&other[dice.below(other.len() + 1)..]);
            }
        }
    }

    fn change_units(&self, input: &mut Vec<u8>, dice: &Dice) {
        let units = (self.shape.units)(input);
        if units.is_empty() {
            return;
        }
        let (one, two) = (dice.pick(&units).clone(), dice.pick(&units).clone());
        match dice.below(6) {
            0 => drop(input.drain(one)),
            1 => {
                // Mostly a few, sometimes more than any bound allows.
                let times = if dice.below(4) == 0 { dice.below(700) } else { dice.below(4) };
                let many = input[one.clone()].repeat(times);
                drop(input.splice(one.end..one.end, many));
            }
            2 => {
                let moved: Vec<u8> = input.drain(one).collect();
                let to = two.start.min(input.len());
                drop(input.splice(to..to, moved));
            }
            3 => {
                let other = dice.pick(self.seeds);
                let units = (self.shape.units)(other);
                if let Some(unit) = units.get(dice.below(units.len().max(1))) {
                    drop(input.splice(one.start..one.start, other[unit.clone()].to_vec()));
                }
            }
            _ => self.change_field(&mut input[one], dice),
        }
    }

    fn change_field(&self, unit: &mut [u8], dice: &Dice) {
        if self.shape.fields.is_empty() {
            return;
        }
        let Some(field) = unit.get_mut(dice.pick(self.shape.fields).clone()) else { return };
        let old = field.iter().fold(0_u32, |number, byte| (number << 8) | u32::from(*byte));
        let new = match dice.below(4) {
            0 => old.wrapping_add(1),
            1 => old.wrapping_sub(1),
            _ => dice.pick(self.shape.edges).wrapping_add(*dice.pick(&[0, 1, u32::MAX])),
        };
        let new = new.to_be_bytes();
        field.copy_from_slice(&new[new.len() - field.len()..]);
    }
}

/// Chance that can be repeated.
pub(crate) struct Dice(Rng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Rng::seeded(seed.wrapping_mul(0x2545_f491_4f6c_dd1d)))
    }

    /// A number below `bound`, which must not be 0.
    pub(crate) fn below(&self, bound: usize) -> usize {
        u32::from_le_bytes(self.0.bytes()) as usize % bound
    }

    pub(crate) fn pick<'a, T>(&self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }

    fn bytes(&self, at_most: usize) -> Vec<u8> {
        (0..self.below(at_most)).map(|_| self.0.bytes::<1>()[0]).collect()
    }
}
