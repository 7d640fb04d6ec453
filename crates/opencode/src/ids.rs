//! The ids that we give to prompts, so that a prompt which is sent twice is one turn.
//!
//! OpenCode takes any message id that begins with `msg` and any part id that begins with `prt`, and sorts by
//! them: an id must be greater than those it made before, so ours are made as it makes its own.

use clock::Rng;

/// Letters after the time; OpenCode's own count.
const RANDOM: usize = 14;
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The ids of one prompt. Keep them with the prompt and use the same ones whenever it is sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptIds {
    pub message: String,
    /// One for each part.
    pub parts: Vec<String>,
}

impl PromptIds {
    /// Ids for a prompt made at `now`, in milliseconds since 1970.
    pub fn new(now: i64, parts: usize, rng: &Rng) -> Self {
        let part = |number: usize| id("prt", now, number + 1, rng);
        Self { message: id("msg", now, 1, rng), parts: (0..parts).map(part).collect() }
    }
}

/// What of an id was by chance, and does not depend on when it was made.
pub fn letters(id: &str) -> &str {
    &id[id.len().saturating_sub(RANDOM)..]
}

/// Twelve hexadecimal digits of milliseconds and a counter, then letters by chance.
fn id(kind: &str, now: i64, counter: usize, rng: &Rng) -> String {
    let moment = (now.unsigned_abs() << 12).wrapping_add(counter as u64) & 0xffff_ffff_ffff;
    let letters: String =
        rng.bytes::<RANDOM>().map(|byte| LETTERS[byte as usize % LETTERS.len()] as char).iter().collect();
    format!("{kind}_{moment:012x}{letters}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message id that OpenCode 1.18.33 made, and when it made it.
    const THEIRS: (&str, i64) = ("msg_1dd053035001Zgjy8Rmg7AzbkP", 1_794_709_467_189);

    #[test]
    fn ids_look_like_those_of_opencode_and_sort_among_them() {
        let rng = Rng::seeded(1);
        let at = |now| PromptIds::new(now, 1, &rng).message;
        assert_eq!(at(THEIRS.1)[..16], THEIRS.0[..16]);
        assert_eq!(at(THEIRS.1).len(), THEIRS.0.len());
        assert!(at(THEIRS.1 - 1).as_str() < THEIRS.0 && THEIRS.0 < at(THEIRS.1 + 1).as_str());
    }

    #[test]
    fn parts_sort_in_their_order_and_no_two_ids_are_the_same() {
        let rng = Rng::seeded(2);
        let ids = PromptIds::new(THEIRS.1, 100, &rng);
        assert!(ids.parts.is_sorted());
        assert!(ids.parts.iter().all(|part| part.starts_with("prt_")));
        assert_ne!(ids, PromptIds::new(THEIRS.1, 100, &rng));
    }
}
