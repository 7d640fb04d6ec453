//! Text of limited length. The contract limits every field of an event, and this type enforces it.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

/// Text of `MIN` to `MAX` characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Text<const MIN: usize, const MAX: usize>(String);

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a text of {min} to {max} characters, found {found}")]
pub struct TextError {
    min: usize,
    max: usize,
    found: usize,
}

impl<const MIN: usize, const MAX: usize> Text<MIN, MAX> {
    pub fn new(text: impl Into<String>) -> Result<Self, TextError> {
        let text = text.into();
        // Count characters only if the byte length does not decide; most texts are far from their limits.
        let found =
            if text.len() <= MAX && text.len() >= MIN * 4 { text.len() } else { text.chars().count() };
        if (MIN..=MAX).contains(&found) {
            Ok(Self(text))
        } else {
            Err(TextError { min: MIN, max: MAX, found })
        }
    }

    /// Truncates the text, or pads it with dots, to fit the limits. For names that must never keep an event
    /// from being written.
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
    /// Truncates the text to the limit and marks the cut with `…`.
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
    fn limits_count_characters_not_bytes() {
        assert!(Text::<3, 5>::new("ab").is_err());
        assert!(Text::<3, 5>::new("äöü").is_ok());
        assert!(Text::<3, 5>::new("äöüäö").is_ok());
        assert_eq!(
            Text::<3, 5>::new("abcdef").unwrap_err().to_string(),
            "expected a text of 3 to 5 characters, found 6"
        );
        assert!(Text::<3, 5>::new("ää").is_err());
    }

    #[test]
    fn fit_keeps_both_limits() {
        for (text, expected) in [("", "..."), ("ä", "ä.."), ("äöü", "äöü"), ("äöüäöü", "äöüäö")]
        {
            let made = Text::<3, 5>::fit(text);
            assert_eq!(made.as_str(), expected);
            assert!(Text::<3, 5>::new(made.as_str()).is_ok());
        }
    }

    #[test]
    fn cut_keeps_the_limit_and_marks_the_cut() {
        assert_eq!(Text::<0, 4>::cut("äöüä").as_str(), "äöüä");
        assert_eq!(Text::<0, 4>::cut("äöüäö").as_str(), "äöü…");
        assert_eq!(Text::<0, 4>::cut("").as_str(), "");
    }
}
