//! Names with `*` in them.

use std::fmt;

use crate::error::Mistake;
use crate::fields::Located;

/// More stars have no use in a name, and would only make matching slow.
const MAX_STARS: usize = 4;

/// A name in which `*` stands for any letters, also none: `linear:*`, `*.read`, `*`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern(String);

impl Pattern {
    pub(crate) fn new(found: &Located) -> Result<Self, Mistake> {
        if found.text.matches('*').count() > MAX_STARS {
            return Err(Mistake::new(found.line, format!("a name may hold at most {MAX_STARS} stars")));
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
        // The leftmost place for each part leaves the most for the parts after it.
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
    fn a_star_stands_for_any_letters() {
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

    /// The obvious way, too slow for hostile names.
    fn slowly(pattern: &[u8], name: &[u8]) -> bool {
        match (pattern, name) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=name.len()).any(|skipped| slowly(rest, &name[skipped..])),
            ([a, pattern @ ..], [b, name @ ..]) => a == b && slowly(pattern, name),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn it_matches_as_the_obvious_way_does(pattern in "[ab*]{0,6}", name in "[ab]{0,8}") {
            prop_assert_eq!(matches(&pattern, &name), slowly(pattern.as_bytes(), name.as_bytes()));
        }
    }
}
