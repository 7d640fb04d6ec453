//! Ids of prompts: sortable by time, and reproducible from a seed, so that a prompt that is sent twice is one turn.
//!
//! OpenCode sorts its messages by id, and an id must be greater than those before it. So ours have its structure.

use clock::Rng;

/// The number of random characters after the time.
const RANDOM_LENGTH: usize = 14;
const BASE62_DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The id of a prompt that was created at `now`, in milliseconds since the Unix epoch: twelve hexadecimal digits of
/// time, then random characters.
pub fn prompt_id(now: i64, rng: &Rng) -> String {
    let moment = (now.unsigned_abs() << 12).wrapping_add(1) & 0xffff_ffff_ffff;
    let letters =
        rng.bytes::<RANDOM_LENGTH>().map(|byte| BASE62_DIGITS[byte as usize % BASE62_DIGITS.len()] as char);
    format!("msg_{moment:012x}{}", letters.iter().collect::<String>())
}

/// The random part of an id, which does not depend on its time.
pub fn random_part(id: &str) -> &str {
    &id[id.len().saturating_sub(RANDOM_LENGTH)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message id that OpenCode 1.18.33 generated, and its time.
    const OPENCODE_ID: (&str, i64) = ("msg_1dd053035001Zgjy8Rmg7AzbkP", 1_794_709_467_189);

    #[test]
    fn ids_sort_among_those_of_opencode() {
        let rng = Rng::seeded(1);
        let at = |now| prompt_id(now, &rng);
        assert_eq!(at(OPENCODE_ID.1)[..16], OPENCODE_ID.0[..16]);
        assert_eq!(at(OPENCODE_ID.1).len(), OPENCODE_ID.0.len());
        assert!(
            at(OPENCODE_ID.1 - 1).as_str() < OPENCODE_ID.0 && OPENCODE_ID.0 < at(OPENCODE_ID.1 + 1).as_str()
        );
    }

    #[test]
    fn the_random_part_depends_on_the_seed_only() {
        let (one, other) = (prompt_id(1, &Rng::seeded(7)), prompt_id(2, &Rng::seeded(7)));
        assert_ne!(one, other);
        assert_eq!(random_part(&one), random_part(&other));
        assert_ne!(random_part(&one), random_part(&prompt_id(1, &Rng::seeded(8))));
    }
}
