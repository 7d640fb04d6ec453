//! Decodes the body of a response that never ends, as its bytes arrive.
//!
//! `hyper` could do this too, but needs 26 KiB per connection and wakes the task twice per chunk. A thousand
//! live sessions have as many of these connections, mostly idle, and users wait for every chunk.

use std::cmp::min;

/// Maximum number of hexadecimal digits in a chunk size.
const MAX_DIGITS: u32 = 15;
/// Maximum length of a chunk extension.
const MAX_EXTENSION: u32 = 1024;

/// How the end of the body is determined, and the current position in it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body {
    Chunked(Chunk),
    /// A body with `Content-Length`: the number of bytes left.
    Counted(u64),
    UntilClosed,
}

/// The position within the chunked encoding.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Chunk {
    Size {
        size: u64,
        digits: u32,
    },
    Extension {
        size: u64,
        left: u32,
    },
    LineFeed {
        size: u64,
    },
    Data {
        left: u64,
    },
    /// The carriage return after the data.
    Return,
    ReturnLineFeed,
    End,
}

/// The bytes are not a valid body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InvalidBody;

impl Body {
    pub(super) const fn chunked() -> Self {
        Self::Chunked(Chunk::NEXT_CHUNK)
    }

    /// Whether the body has ended.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Chunked(Chunk::End) | Self::Counted(0))
    }

    /// Whether the connection may be closed at this point.
    pub(super) fn may_close(&self) -> bool {
        self.is_over() || *self == Self::UntilClosed
    }

    /// Passes the data in these bytes to `data`; the bytes must follow those of the previous call. Ignores
    /// bytes after the end.
    pub(super) fn read(&mut self, mut bytes: &[u8], mut data: impl FnMut(&[u8])) -> Result<(), InvalidBody> {
        while !bytes.is_empty() && !self.is_over() {
            let left = match self {
                Self::UntilClosed => None,
                Self::Counted(left) | Self::Chunked(Chunk::Data { left }) => Some(left),
                Self::Chunked(chunk) => {
                    *chunk = chunk.advance(bytes[0])?;
                    bytes = &bytes[1..];
                    continue;
                }
            };
            let most = left.as_ref().map_or(usize::MAX, |left| usize::try_from(**left).unwrap_or(usize::MAX));
            let (now, later) = bytes.split_at(min(bytes.len(), most));
            data(now);
            bytes = later;
            if let Some(left) = left {
                *left -= now.len() as u64;
            }
            if *self == Self::Chunked(Chunk::Data { left: 0 }) {
                *self = Self::Chunked(Chunk::Return);
            }
        }
        Ok(())
    }
}

impl Chunk {
    const NEXT_CHUNK: Self = Self::Size { size: 0, digits: 0 };

    /// The position after a byte that is not data.
    fn advance(&self, byte: u8) -> Result<Self, InvalidBody> {
        match (self, byte) {
            (Self::Size { size, digits }, byte) if byte.is_ascii_hexdigit() && *digits < MAX_DIGITS => {
                let digit = char::from(byte).to_digit(16).ok_or(InvalidBody)?;
                Ok(Self::Size { size: (size << 4) | u64::from(digit), digits: digits + 1 })
            }
            (Self::Size { digits: 0, .. }, _) => Err(InvalidBody),
            (Self::Size { size, .. }, b';' | b' ' | b'\t') => {
                Ok(Self::Extension { size: *size, left: MAX_EXTENSION })
            }
            (Self::Size { size, .. } | Self::Extension { size, .. }, b'\r') => {
                Ok(Self::LineFeed { size: *size })
            }
            (Self::Extension { size, left: left @ 1.. }, byte) if byte != b'\n' => {
                Ok(Self::Extension { size: *size, left: left - 1 })
            }
            (Self::LineFeed { size: 0 }, b'\n') => Ok(Self::End),
            (Self::LineFeed { size }, b'\n') => Ok(Self::Data { left: *size }),
            (Self::Return, b'\r') => Ok(Self::ReturnLineFeed),
            (Self::ReturnLineFeed, b'\n') => Ok(Self::NEXT_CHUNK),
            _ => Err(InvalidBody),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The data in these pieces, and whether the connection may be closed after them.
    fn read(mut body: Body, pieces: &[&[u8]]) -> Result<(Vec<u8>, bool), InvalidBody> {
        let mut all = Vec::new();
        for piece in pieces {
            body.read(piece, |data| all.extend_from_slice(data))?;
        }
        Ok((all, body.may_close()))
    }

    proptest! {
        #[test]
        fn chunks_are_decoded_wherever_they_are_split(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..70), 0..8),
            extension in "|;[a-z=]{0,9}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..9),
            ends: bool,
        ) {
            let mut sent = Vec::new();
            for chunk in &chunks {
                sent.extend(format!("{:X}{extension}\r\n", chunk.len()).as_bytes());
                sent.extend(chunk);
                sent.extend(b"\r\n");
            }
            if ends {
                sent.extend(b"0\r\n\r\nwhatever follows");
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(sent.len() + 1)).collect();
            cuts.extend([0, sent.len()]);
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &sent[cut[0]..cut[1]]).collect();
            prop_assert_eq!(read(Body::chunked(), &pieces), Ok((chunks.concat(), ends)));
        }
    }

    #[test]
    fn malformed_chunks_are_rejected() {
        let endless_size = "0".repeat(16);
        let endless_extension = format!("1;{}", "x".repeat(2000));
        for sent in [
            "x\r\n",
            "\r\n",
            "-1\r\n",
            "1\n",
            "1\rx",
            "1\r\nab",
            "1\r\na\r\r",
            &endless_size,
            &endless_extension,
        ] {
            assert_eq!(read(Body::chunked(), &[sent.as_bytes()]), Err(InvalidBody), "{sent:.20}");
        }
        assert_eq!(read(Body::chunked(), &[b"fffffffffffffff\r\nabc"]), Ok((b"abc".to_vec(), false)));
    }

    #[test]
    fn bodies_end_after_their_length_or_with_the_connection() {
        assert_eq!(read(Body::Counted(3), &[b"a", b"bcd"]), Ok((b"abc".to_vec(), true)));
        assert_eq!(read(Body::Counted(3), &[b"ab"]), Ok((b"ab".to_vec(), false)));
        assert_eq!(read(Body::UntilClosed, &[b"a", b"b"]), Ok((b"ab".to_vec(), true)));
    }
}
