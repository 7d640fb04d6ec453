//! Tracks how much of a text was emitted without storing it: parts may be long and numerous.

/// A text's length and FNV-1a hash. A collision would only affect the sandbox's own text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EmittedText {
    length: usize,
    hash: u64,
}

impl EmittedText {
    pub(super) const EMPTY: Self = Self { length: 0, hash: 0xcbf2_9ce4_8422_2325 };

    pub(super) fn from_text(text: &str) -> Self {
        let mut emitted = Self::EMPTY;
        emitted.extend(text);
        emitted
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn extend(&mut self, more: &str) {
        self.length += more.len();
        self.hash = more
            .bytes()
            .fold(self.hash, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    }

    /// The rest of `text` that is not emitted yet, or `None` if the emitted text is not a prefix of it.
    pub(super) fn unemitted_part<'a>(&self, text: &'a str) -> Option<&'a str> {
        let (begin, rest) = text.split_at_checked(self.length)?;
        (Self::from_text(begin) == *self).then_some(rest)
    }
}
