//! Shared parts of the two readers of requests: the weight of content in tokens, and numbers with their position in the
//! body.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use axum::body::Bytes;
use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// The largest context window of any model. The length of a document is unknown until the provider unpacks it.
pub(super) const MAX_CONTEXT_TOKENS: i64 = 1_000_000;
/// An upper bound on the tokens that a provider adds for tool use or structured output, and for each tool that it
/// defines itself.
pub(super) const MAX_PREAMBLE_TOKENS: i64 = 1_000;

/// How much a part of a request differs from one token per byte.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weight {
    pub(super) tokens: i64,
    pub(super) documents: bool,
}

impl Weight {
    pub(super) fn of(tokens: i64) -> Self {
        Self { tokens, documents: false }
    }

    fn and(self, other: Self) -> Self {
        Self {
            tokens: self.tokens.saturating_add(other.tokens),
            documents: self.documents || other.documents,
        }
    }

    /// The maximum number of input tokens of a request with this many bytes and this many tokens added by the provider.
    pub(super) fn most_input(self, bytes: usize, added: i64) -> i64 {
        let tokens =
            i64::try_from(bytes).unwrap_or(i64::MAX).saturating_add(self.tokens).saturating_add(added);
        if self.documents { tokens.max(0).saturating_add(MAX_CONTEXT_TOKENS) } else { tokens.max(0) }
    }
}

/// Content that is weighed while it is parsed and then dropped, because a request may have millions of such items.
pub(super) trait Weigh {
    fn weight(&self) -> Result<Weight, String>;
}

/// A list or a plain text of which only the weight is kept.
pub(super) struct Weighed<T> {
    pub(super) weight: Weight,
    _what: PhantomData<T>,
}

impl<'de, T: Weigh + Deserialize<'de>> Deserialize<'de> for Weighed<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let weight = deserializer.deserialize_any(Scale::<T>(PhantomData))?;
        Ok(Self { weight, _what: PhantomData })
    }
}

struct Scale<T>(PhantomData<T>);

impl<'de, T: Weigh + Deserialize<'de>> Visitor<'de> for Scale<T> {
    type Value = Weight;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a list")
    }

    fn visit_str<E>(self, _: &str) -> Result<Weight, E> {
        Ok(Weight::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Weight, A::Error> {
        let mut all = Weight::default();
        while let Some(item) = items.next_element::<T>()? {
            all = all.and(item.weight().map_err(A::Error::custom)?);
        }
        Ok(all)
    }
}

/// The length of a string, without the string itself.
pub(super) struct Length(pub(super) i64);

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Measure;
        impl Visitor<'_> for Measure {
            type Value = Length;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E>(self, text: &str) -> Result<Length, E> {
                Ok(Length(i64::try_from(text.len()).unwrap_or(i64::MAX)))
            }
        }
        deserializer.deserialize_str(Measure)
    }
}

/// A number and its position in the body.
#[derive(Clone, Debug)]
pub(super) struct Number {
    pub(super) value: i64,
    pub(super) place: Range<usize>,
}

impl Number {
    pub(super) fn of(body: &[u8], raw: &RawValue) -> Option<Self> {
        let text = raw.get();
        let value =
            text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().unwrap_or(i64::MAX))?;
        Some(Self { value, place: place(body, raw) })
    }
}

/// The position in the body of a value that was parsed from it.
pub(super) fn place(body: &[u8], raw: &RawValue) -> Range<usize> {
    let start = raw.get().as_ptr().addr() - body.as_ptr().addr();
    start..start + raw.get().len()
}

/// The body with each of these places replaced by a text. The places must not overlap.
pub(super) fn splice(body: &[u8], mut changes: Vec<(Range<usize>, String)>) -> Bytes {
    changes.sort_by_key(|(place, _)| place.start);
    let added: usize = changes.iter().map(|(_, text)| text.len()).sum();
    let mut spliced = Vec::with_capacity(body.len() + added);
    let mut from = 0;
    for (place, text) in changes {
        spliced.extend_from_slice(&body[from..place.start]);
        spliced.extend_from_slice(text.as_bytes());
        from = place.end;
    }
    spliced.extend_from_slice(&body[from..]);
    spliced.into()
}
