//! Finds secrets in texts that an agent's translator is about to cut. Whoever removes secrets from the text afterwards would
//! not find half of one.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// How much of a text before and after a cut is searched. Longer than the longest secret in its longest encoding.
const WINDOW: usize = 1024 * 1024;

type Find = dyn Fn(&[u8]) -> Vec<Range<usize>> + Send + Sync;

/// The secrets that a session may use. The default finds none.
#[derive(Clone)]
pub struct SecretFinder(Arc<Find>);

impl SecretFinder {
    /// `find` returns the ranges of secrets in a text.
    pub fn new(find: impl Fn(&[u8]) -> Vec<Range<usize>> + Send + Sync + 'static) -> Self {
        Self(Arc::new(find))
    }

    /// The last place up to `at` where the beginning of the text can end without part of a secret.
    pub fn cut_before(&self, text: &str, at: usize) -> usize {
        let found = self.find_around(text, at);
        let mut at = text.floor_char_boundary(at);
        while let Some(secret) = found.iter().find(|secret| secret.start < at && at < secret.end) {
            at = text.floor_char_boundary(secret.start);
        }
        at
    }

    /// The first place from `at` on where the end of the text can begin without part of a secret.
    pub fn cut_after(&self, text: &str, at: usize) -> usize {
        let found = self.find_around(text, at);
        let mut at = text.ceil_char_boundary(at);
        while let Some(secret) = found.iter().find(|secret| secret.start < at && at < secret.end) {
            at = text.ceil_char_boundary(secret.end);
        }
        at
    }

    fn find_around(&self, text: &str, at: usize) -> Vec<Range<usize>> {
        let from = text.floor_char_boundary(at.saturating_sub(WINDOW));
        let to = text.ceil_char_boundary(at.saturating_add(WINDOW).min(text.len()));
        let found = (self.0)(&text.as_bytes()[from..to]);
        found.into_iter().map(|range| range.start + from..range.end + from).collect()
    }
}

impl Default for SecretFinder {
    fn default() -> Self {
        Self::new(|_| Vec::new())
    }
}

impl fmt::Debug for SecretFinder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretFinder")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_cut_goes_through_a_secret() {
        // Two secrets overlap, and the second begins in the middle of a character.
        let text = "äb secret-and-äöü rest";
        let finder = SecretFinder::new(|_| vec![4..14, 12..17]);
        for at in 0..=text.len() {
            let (before, after) = (finder.cut_before(text, at), finder.cut_after(text, at));
            assert!(before <= at && at <= after, "{at}");
            for cut in [before, after] {
                assert!(text.is_char_boundary(cut) && (cut <= 4 || cut >= 17), "{at}: {cut}");
            }
        }
        assert_eq!((finder.cut_before(text, 3), finder.cut_after(text, 19)), (3, 19));
    }

    #[test]
    fn a_secret_far_into_a_long_text_is_found() {
        let text = format!("{}secret{}", "x".repeat(3 * WINDOW), "y".repeat(2 * WINDOW));
        let find = |text: &[u8]| {
            let found = text.windows(6).position(|window| window == b"secret");
            found.map(|at| at..at + 6).into_iter().collect()
        };
        assert_eq!(SecretFinder::new(find).cut_before(&text, 3 * WINDOW + 3), 3 * WINDOW);
    }
}
