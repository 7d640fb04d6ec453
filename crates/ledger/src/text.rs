//! Text of a limited length: the contract gives every field of an event a limit, and the type holds it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

/// Text of `MIN` to `MAX` characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Text<const MIN: usize, const MAX: usize>(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a text of {min} to {max} characters is needed, and this one has {found}")]
pub struct TextError {
    min: usize,
    max: usize,
    found: usize,
}

impl<const MIN: usize, const MAX: usize> Text<MIN, MAX> {
    pub fn new(text: impl Into<String>) -> Result<Self, TextError> {
        let text = text.into();
        // Characters are counted only where bytes do not decide it: most texts are far from their limits.
        let found =
            if text.len() <= MAX && text.len() >= MIN * 4 { text.len() } else { text.chars().count() };
        if (MIN..=MAX).contains(&found) {
            Ok(Self(text))
        } else {
            Err(TextError { min: MIN, max: MAX, found })
        }
    }

    /// Brings a text within the limits: cut, or filled up with dots. For names that must never be the reason why an
    /// event is not written.
    pub fn fit(text: &str) -> Self {
        let cut = text.chars().take(MAX);
        let missing = MIN.saturating_sub(text.chars().count());
        Self(cut.chain(std::iter::repeat_n('.', missing)).collect())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<const MAX: usize> Text<0, MAX> {
    /// Takes what fits, and marks what it left out.
    pub fn cut(text: &str) -> Self {
        match text.char_indices().nth(MAX) {
            None => Self(text.to_owned()),
            Some(_) => Self(text.chars().take(MAX.saturating_sub(1)).chain(['…']).collect()),
        }
    }
}

impl<const MIN: usize, const MAX: usize> fmt::Debug for Text<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de, const MIN: usize, const MAX: usize> Deserialize<'de> for Text<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limits_are_in_characters() {
        assert!(Text::<3, 5>::new("ab").is_err());
        assert!(Text::<3, 5>::new("äöü").is_ok());
        assert!(Text::<3, 5>::new("äöüäö").is_ok());
        assert_eq!(
            Text::<3, 5>::new("abcdef").unwrap_err().to_string(),
            "a text of 3 to 5 characters is needed, and this one has 6"
        );
        assert!(Text::<3, 5>::new("ää").is_err());
    }

    #[test]
    fn fitting_keeps_both_limits() {
        for (text, fitting) in [("", "..."), ("ä", "ä.."), ("äöü", "äöü"), ("äöüäöü", "äöüäö")]
        {
            let made = Text::<3, 5>::fit(text);
            assert_eq!(made.as_str(), fitting);
            assert!(Text::<3, 5>::new(made.as_str()).is_ok());
        }
    }

    #[test]
    fn cutting_keeps_the_limit_and_shows_itself() {
        assert_eq!(Text::<0, 4>::cut("äöüä").as_str(), "äöüä");
        assert_eq!(Text::<0, 4>::cut("äöüäö").as_str(), "äöü…");
        assert_eq!(Text::<0, 4>::cut("").as_str(), "");
    }
}
