//! Ids for prompts, so that a prompt which is sent twice is only one turn.
//!
//! OpenCode accepts any message id that starts with `msg` and any part id that starts with `prt`, and sorts
//! by them. An id must be greater than those before it, so ours have the same structure as OpenCode's.

use clock::Rng;

/// The number of random characters after the time, as in OpenCode.
const RANDOM_LENGTH: usize = 14;
const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The ids of one prompt. Store them with the prompt and reuse them whenever it is sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromptIds {
    pub message: String,
    /// The part ids, one per part.
    pub parts: Vec<String>,
}

impl PromptIds {
    /// Ids for a prompt created at `now`, in milliseconds since the Unix epoch.
    pub fn new(now: i64, parts: usize, rng: &Rng) -> Self {
        let part = |number: usize| id("prt", now, number + 1, rng);
        Self { message: id("msg", now, 1, rng), parts: (0..parts).map(part).collect() }
    }
}

/// The random part of an id, which does not depend on its time.
pub fn random_part(id: &str) -> &str {
    &id[id.len().saturating_sub(RANDOM_LENGTH)..]
}

/// Twelve hexadecimal digits of milliseconds and a counter, then random characters.
fn id(kind: &str, now: i64, counter: usize, rng: &Rng) -> String {
    let moment = (now.unsigned_abs() << 12).wrapping_add(counter as u64) & 0xffff_ffff_ffff;
    let random_part: String = rng
        .bytes::<RANDOM_LENGTH>()
        .map(|byte| LETTERS[byte as usize % LETTERS.len()] as char)
        .iter()
        .collect();
    format!("{kind}_{moment:012x}{random_part}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message id that OpenCode 1.18.33 generated, and its time.
    const OPENCODE_ID: (&str, i64) = ("msg_1dd053035001Zgjy8Rmg7AzbkP", 1_794_709_467_189);

    #[test]
    fn ids_sort_among_those_of_opencode() {
        let rng = Rng::seeded(1);
        let at = |now| PromptIds::new(now, 1, &rng).message;
        assert_eq!(at(OPENCODE_ID.1)[..16], OPENCODE_ID.0[..16]);
        assert_eq!(at(OPENCODE_ID.1).len(), OPENCODE_ID.0.len());
        assert!(
            at(OPENCODE_ID.1 - 1).as_str() < OPENCODE_ID.0 && OPENCODE_ID.0 < at(OPENCODE_ID.1 + 1).as_str()
        );
    }

    #[test]
    fn part_ids_are_sorted_and_unique() {
        let rng = Rng::seeded(2);
        let ids = PromptIds::new(OPENCODE_ID.1, 100, &rng);
        assert!(ids.parts.is_sorted());
        assert!(ids.parts.iter().all(|part| part.starts_with("prt_")));
        assert_ne!(ids, PromptIds::new(OPENCODE_ID.1, 100, &rng));
    }
}
