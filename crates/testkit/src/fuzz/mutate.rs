//! Mutates inputs. It knows the structure of the input, but not its meaning.

use std::ops::Range;

use super::Dice;

/// The structure of an input, for mutations that random bit flips would not produce.
#[derive(Clone, Copy)]
pub struct Shape {
    /// Splits an input into its units: frames, tokens or lines.
    pub units: fn(&[u8]) -> Vec<Range<usize>>,
    /// Sequences that parsers commonly get wrong; inserted anywhere.
    pub dictionary: &'static [&'static str],
    /// Positions of big-endian numbers within a unit, at most four bytes each.
    pub fields: &'static [Range<usize>],
    /// Boundary values for these numbers.
    pub edges: &'static [u32],
    /// Maximum length of an input.
    pub most: usize,
}

impl Shape {
    /// Text that consists of lines, with a dictionary.
    pub const fn text(dictionary: &'static [&'static str], most: usize) -> Self {
        Self { units: lines_of, dictionary, fields: &[], edges: &[], most }
    }
}

/// The ranges of the lines, including their line ends.
pub fn lines_of(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut end = 0;
    let lines = bytes.split_inclusive(|byte| *byte == b'\n').map(|line| {
        let start = end;
        end += line.len();
        start..end
    });
    lines.collect()
}

/// One of the inputs with one to six changes, usually few.
pub(super) fn mutate_input(shape: &Shape, inputs: &[Vec<u8>], dice: &Dice) -> Vec<u8> {
    let mut input = dice.pick(inputs).clone();
    for _ in 0..=dice.below(1 + dice.below(6)) {
        match dice.below(3) {
            0 => change_units(shape, &mut input, inputs, dice),
            1 if !shape.dictionary.is_empty() => insert_word(shape, &mut input, dice),
            _ => change_bytes(&mut input, inputs, dice),
        }
        input.truncate(shape.most);
    }
    input
}

/// Inserts a dictionary entry, or replaces a few bytes with it.
fn insert_word(shape: &Shape, input: &mut Vec<u8>, dice: &Dice) {
    let at = dice.below(input.len() + 1);
    let end = (at + dice.below(6) * dice.below(2)).min(input.len());
    drop(input.splice(at..end, dice.pick(shape.dictionary).bytes()));
}

fn change_bytes(input: &mut Vec<u8>, inputs: &[Vec<u8>], dice: &Dice) {
    let at = dice.below(input.len() + 1);
    let piece = at..at + dice.below((input.len() - at).min(64) + 1);
    match dice.below(9) {
        0 if at < input.len() => input[at] ^= 1 << dice.below(8),
        1 if at < input.len() => input[at] = *dice.pick(&[0, 1, 0x7f, 0x80, 0xfe, 0xff]),
        2 if at < input.len() => input[at] = dice.byte(),
        3 => input.truncate(at),
        4 => drop(input.drain(piece)),
        5 => {
            let again = input[piece].to_vec();
            let to = dice.below(input.len() + 1);
            drop(input.splice(to..to, again));
        }
        6 => drop(input.splice(at..at, (0..dice.below(16)).map(|_| dice.byte()).collect::<Vec<_>>())),
        // Sometimes inserts more data than small buffers can hold.
        7 if dice.below(4) == 0 => drop(input.splice(at..at, vec![b'x'; dice.below(4096)])),
        _ => {
            let other = dice.pick(inputs);
            input.truncate(at);
            input.extend_from_slice(&other[dice.below(other.len() + 1)..]);
        }
    }
}

fn change_units(shape: &Shape, input: &mut Vec<u8>, inputs: &[Vec<u8>], dice: &Dice) {
    let units = (shape.units)(input);
    if units.is_empty() {
        return;
    }
    let (one, two) = (dice.pick(&units).clone(), dice.pick(&units).clone());
    match dice.below(6) {
        0 => drop(input.drain(one)),
        1 => {
            // Usually a few times, sometimes more than any limit allows.
            let times = if dice.below(4) == 0 { dice.below(700) } else { dice.below(4) };
            let many = input[one].repeat(times);
            drop(input.splice(two.end..two.end, many));
        }
        2 => {
            let moved: Vec<u8> = input.drain(one).collect();
            let to = two.start.min(input.len());
            drop(input.splice(to..to, moved));
        }
        3 => {
            let other = dice.pick(inputs);
            let units = (shape.units)(other);
            if let Some(unit) = units.get(dice.below(units.len())) {
                drop(input.splice(one.start..one.start, other[unit.clone()].to_vec()));
            }
        }
        _ => change_field(shape, &mut input[one], dice),
    }
}

fn change_field(shape: &Shape, unit: &mut [u8], dice: &Dice) {
    if shape.fields.is_empty() {
        return;
    }
    let Some(field) = unit.get_mut(dice.pick(shape.fields).clone()) else { return };
    let old = field.iter().fold(0_u32, |number, byte| (number << 8) | u32::from(*byte));
    let new = match dice.below(4) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        _ => dice.pick(shape.edges).wrapping_add(*dice.pick(&[0, 1, u32::MAX])),
    };
    let new = new.to_be_bytes();
    field.copy_from_slice(&new[new.len() - field.len()..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape::text(&["word"], 300);

    #[test]
    fn the_same_seed_gives_the_same_mutations() {
        let inputs = vec![b"one\ntwo\nthree\n".to_vec(), Vec::new()];
        let run = |seed| {
            let dice = Dice::new(seed);
            (0..500).map(|_| mutate_input(&SHAPE, &inputs, &dice)).collect::<Vec<_>>()
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
        assert!(run(3).iter().all(|input| input.len() <= SHAPE.most));
        assert!(run(3).iter().any(|input| input.windows(4).any(|bytes| bytes == b"word")));
    }

    #[test]
    fn lines_include_their_line_ends() {
        assert_eq!(lines_of(b"a\n\nbc"), [0..2, 2..3, 3..5]);
        assert_eq!(lines_of(b""), []);
    }
}
