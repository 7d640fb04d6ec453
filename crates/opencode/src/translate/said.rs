//! How much of a text has been said, without keeping the text: a part may be long, and there are many.

/// A text's length and fingerprint (FNV-1a). A collision could only mislead about the sandbox's own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Said {
    length: usize,
    print: u64,
}

impl Said {
    pub(super) const NOTHING: Self = Self { length: 0, print: 0xcbf2_9ce4_8422_2325 };

    pub(super) fn of(text: &str) -> Self {
        let mut said = Self::NOTHING;
        said.extend(text);
        said
    }

    pub(super) fn len(&self) -> usize {
        self.length
    }

    pub(super) fn extend(&mut self, more: &str) {
        self.length += more.len();
        self.print = more
            .bytes()
            .fold(self.print, |print, byte| (print ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    }

    /// What of this text is still to be said, or `None` if what was said is not its beginning.
    pub(super) fn rest_of<'a>(&self, text: &'a str) -> Option<&'a str> {
        let (begin, rest) = text.split_at_checked(self.length)?;
        (Self::of(begin) == *self).then_some(rest)
    }
}
