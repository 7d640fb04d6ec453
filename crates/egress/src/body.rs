//! Bodies on their way through: never held, never longer than announced, and written with framing of our own, so
//! that chunk extensions, trailers and creative chunk sizes end here.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

use crate::fields::{Framing, HeadError, end_of_head};

/// The longest line with the size of a chunk.
const MAX_CHUNK_LINE: usize = 256;
/// All trailers together.
const MAX_TRAILERS: usize = 8 * 1024;

#[derive(Debug)]
pub(crate) enum BodyError {
    /// The sender broke off.
    Source,
    /// The receiver broke off.
    Sink,
    /// The sender's framing is broken.
    Malformed,
    TooLong,
}

/// Carries one body over, from the sender's framing to `chunked` or plain.
pub(crate) struct Relay<'a, R, W> {
    pub(crate) from: &'a mut R,
    pub(crate) to: &'a mut W,
    /// Whether the receiver gets chunks.
    pub(crate) chunked: bool,
    /// How many bytes may still pass.
    pub(crate) left: u64,
}

impl<R: AsyncBufRead + Unpin, W: AsyncWrite + Unpin> Relay<'_, R, W> {
    pub(crate) async fn run(mut self, framing: Framing) -> Result<(), BodyError> {
        match framing {
            Framing::None => return Ok(()),
            Framing::Length(length) => self.exactly(length).await?,
            Framing::Chunked => self.chunks().await?,
            Framing::UntilClose => while self.piece(u64::MAX).await? > 0 {},
        }
        if self.chunked {
            self.write(b"0\r\n\r\n").await?;
        }
        Ok(())
    }

    async fn chunks(&mut self) -> Result<(), BodyError> {
        loop {
            let line = self.line(MAX_CHUNK_LINE).await?;
            let size = chunk_size(&line).ok_or(BodyError::Malformed)?;
            if size == 0 {
                return self.drop_trailers().await;
            }
            self.exactly(size).await?;
            if !self.line(2).await?.is_empty() {
                return Err(BodyError::Malformed);
            }
        }
    }

    async fn drop_trailers(&mut self) -> Result<(), BodyError> {
        let mut left = MAX_TRAILERS;
        loop {
            let length = self.line(left).await?.len();
            if length == 0 {
                return Ok(());
            }
            left -= length;
        }
    }

    async fn exactly(&mut self, length: u64) -> Result<(), BodyError> {
        let mut missing = length;
        while missing > 0 {
            match self.piece(missing).await? {
                0 => return Err(BodyError::Source),
                passed => missing -= passed,
            }
        }
        Ok(())
    }

    /// Passes on what is there, at most `most` bytes; 0 at the end of the stream.
    async fn piece(&mut self, most: u64) -> Result<u64, BodyError> {
        let there = self.from.fill_buf().await.map_err(|_| BodyError::Source)?;
        let length = there.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let passed = length as u64;
        self.left = self.left.checked_sub(passed).ok_or(BodyError::TooLong)?;
        if length > 0 {
            let data = &there[..length];
            let written = if self.chunked {
                let chunk = [format!("{length:x}\r\n").as_bytes(), data, b"\r\n"].concat();
                write(self.to, &chunk).await
            } else {
                write(self.to, data).await
            };
            written.map_err(|_| BodyError::Sink)?;
        }
        self.from.consume(length);
        Ok(passed)
    }

    /// One line without its end, which counts for `most`.
    async fn line(&mut self, most: usize) -> Result<Vec<u8>, BodyError> {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let there = self.from.fill_buf().await.map_err(|_| BodyError::Source)?;
            if there.is_empty() {
                return Err(BodyError::Source);
            }
            let end = there.iter().position(|byte| *byte == b'\n').map_or(there.len(), |at| at + 1);
            if line.len() + end > most {
                return Err(BodyError::Malformed);
            }
            line.extend_from_slice(&there[..end]);
            self.from.consume(end);
        }
        line.strip_suffix(b"\r\n").map(<[u8]>::to_vec).ok_or(BodyError::Malformed)
    }

    async fn write(&mut self, data: &[u8]) -> Result<(), BodyError> {
        write(self.to, data).await.map_err(|_| BodyError::Sink)
    }
}

/// Writes and flushes: a stream may buffer, and whoever waits for an event must not wait for the next one.
async fn write(to: &mut (impl AsyncWrite + Unpin), data: &[u8]) -> io::Result<()> {
    to.write_all(data).await?;
    to.flush().await
}

/// Hexadecimal digits alone, then nothing or an extension.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?;
    let fine = !digits.is_empty() && digits.len() <= 15 && digits.iter().all(u8::is_ascii_hexdigit);
    let text = str::from_utf8(digits).ok().filter(|_| fine)?;
    u64::from_str_radix(text, 16).ok()
}

/// Reads up to the end of a head and not a byte further. `None` when the stream ends before it begins.
pub(crate) async fn read_head(
    from: &mut (impl AsyncBufRead + Unpin),
    most: usize,
) -> Result<Option<Vec<u8>>, HeadError> {
    let mut head = Vec::new();
    loop {
        let there = from.fill_buf().await.map_err(|_| HeadError::Incomplete)?;
        if there.is_empty() {
            return if head.is_empty() { Ok(None) } else { Err(HeadError::Incomplete) };
        }
        let (before, length) = (head.len(), there.len());
        head.extend_from_slice(there);
        let end = end_of_head(&head, before)?;
        if end.unwrap_or(head.len()) > most {
            return Err(HeadError::TooLong);
        }
        from.consume(end.map_or(length, |end| end - before));
        if let Some(end) = end {
            head.truncate(end);
            return Ok(Some(head));
        }
    }
}
