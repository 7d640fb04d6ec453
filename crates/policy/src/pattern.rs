//! Names with `*` wildcards.

use std::fmt;

use crate::error::Mistake;
use crate::fields::LocatedText;

/// Names need no more wildcards, and the limit keeps matching fast.
const MAX_STARS: usize = 4;

/// A name in which `*` matches any characters, including none: `linear:*`, `*.read`, `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern(String);

impl Pattern {
    pub(crate) fn new(found: &LocatedText) -> Result<Self, Mistake> {
        if found.text.matches('*').count() > MAX_STARS {
            return Err(Mistake::new(found.line, format!("a name may contain at most {MAX_STARS} `*`")));
        }
        Ok(Self(found.text.clone()))
    }

    pub(crate) fn branches_and_tags() -> Vec<Self> {
        ["refs/heads/*", "refs/tags/*"].map(|pattern| Self(pattern.to_owned())).into()
    }

    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = name.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        // Matching each part as far left as possible leaves the most text for the parts after it.
        for part in parts {
            match rest.find(part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern(pattern.to_owned()).matches(name)
    }

    #[test]
    fn a_star_matches_any_characters() {
        for (pattern, name) in [
            ("a", "a"),
            ("*", ""),
            ("*", "x:y"),
            ("a*", "a"),
            ("a:*", "a:b"),
            ("*:*", ":"),
            ("*b*d", "abcd"),
            ("a*a", "aa"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("a", "A"),
            ("a", "ab"),
            ("a", ""),
            ("a:*", "a"),
            ("*:*", "ab"),
            ("a*a", "a"),
            ("*ab", "aba"),
            ("", "a"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    /// The obvious implementation, which is too slow for hostile names.
    fn matches_naively(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=name.len()).any(|skipped| matches_naively(rest, &name[skipped..])),
            ([a, pattern @ ..], [b, name @ ..]) => a == b && matches_naively(pattern, name),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn matches_like_the_naive_implementation(pattern in "[ab*]{0,6}", name in "[ab]{0,8}") {
            prop_assert_eq!(matches(&pattern, &name), matches_naively(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
