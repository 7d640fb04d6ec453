//! Relays bodies without buffering them, never beyond their announced length, and with framing of our own, so that
//! chunk extensions, trailers and unusual chunk sizes are not passed on.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};

use crate::fields::{Framing, HeadError, end_of_head};

/// The longest line that announces a chunk's size.
const MAX_CHUNK_LINE: usize = 256;
/// The total size of all trailers.
const MAX_TRAILERS: usize = 8 * 1024;

#[derive(Debug)]
pub(crate) enum BodyError {
    /// The sender disconnected.
    Source,
    /// The receiver disconnected.
    Sink,
    /// The sender's framing is malformed.
    Malformed,
    TooLong,
}

/// Relays one body, from the sender's framing to `chunked` or identity.
pub(crate) struct Relay<'a, R, W> {
    pub(crate) from: &'a mut R,
    pub(crate) to: &'a mut W,
    /// Whether the receiver gets chunked framing.
    pub(crate) chunked: bool,
    /// How many more bytes are allowed.
    pub(crate) left: u64,
}

impl<R: AsyncBufRead + Unpin, W: AsyncWrite + Unpin> Relay<'_, R, W> {
    pub(crate) async fn run(mut self, framing: Framing) -> Result<(), BodyError> {
        match framing {
            Framing::None => return Ok(()),
            Framing::Length(length) => self.relay_exactly(length).await?,
            Framing::Chunked => self.relay_chunks().await?,
            Framing::UntilClose => while self.relay_available(u64::MAX).await? > 0 {},
        }
        if self.chunked {
            self.write(b"0\r\n\r\n").await?;
        }
        Ok(())
    }

    async fn relay_chunks(&mut self) -> Result<(), BodyError> {
        loop {
            let line = self.read_line(MAX_CHUNK_LINE).await?;
            let size = chunk_size(&line).ok_or(BodyError::Malformed)?;
            if size == 0 {
                return self.drop_trailers().await;
            }
            self.relay_exactly(size).await?;
            if !self.read_line(2).await?.is_empty() {
                return Err(BodyError::Malformed);
            }
        }
    }

    async fn drop_trailers(&mut self) -> Result<(), BodyError> {
        let mut left = MAX_TRAILERS;
        loop {
            let length = self.read_line(left).await?.len();
            if length == 0 {
                return Ok(());
            }
            left -= length;
        }
    }

    async fn relay_exactly(&mut self, length: u64) -> Result<(), BodyError> {
        let mut missing = length;
        while missing > 0 {
            match self.relay_available(missing).await? {
                0 => return Err(BodyError::Source),
                passed => missing -= passed,
            }
        }
        Ok(())
    }

    /// Relays the bytes that are available, at most `most`; returns 0 at the end of the stream.
    async fn relay_available(&mut self, most: u64) -> Result<u64, BodyError> {
        let available = self.from.fill_buf().await.map_err(|_| BodyError::Source)?;
        let length = available.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        let passed = length as u64;
        self.left = self.left.checked_sub(passed).ok_or(BodyError::TooLong)?;
        if length > 0 {
            let data = &available[..length];
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

    /// Reads one line and strips its line end, which counts towards `most`.
    async fn read_line(&mut self, most: usize) -> Result<Vec<u8>, BodyError> {
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let available = self.from.fill_buf().await.map_err(|_| BodyError::Source)?;
            if available.is_empty() {
                return Err(BodyError::Source);
            }
            let end = available.iter().position(|byte| *byte == b'\n').map_or(available.len(), |at| at + 1);
            if line.len() + end > most {
                return Err(BodyError::Malformed);
            }
            line.extend_from_slice(&available[..end]);
            self.from.consume(end);
        }
        line.strip_suffix(b"\r\n").map(<[u8]>::to_vec).ok_or(BodyError::Malformed)
    }

    async fn write(&mut self, data: &[u8]) -> Result<(), BodyError> {
        write(self.to, data).await.map_err(|_| BodyError::Sink)
    }
}

/// Writes and flushes: the stream may buffer, and a client that waits for a server-sent event must get it now.
async fn write(to: &mut (impl AsyncWrite + Unpin), data: &[u8]) -> io::Result<()> {
    to.write_all(data).await?;
    to.flush().await
}

/// Accepts only hexadecimal digits, optionally followed by an extension.
fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?;
    let valid = !digits.is_empty() && digits.len() <= 15 && digits.iter().all(u8::is_ascii_hexdigit);
    let text = str::from_utf8(digits).ok().filter(|_| valid)?;
    u64::from_str_radix(text, 16).ok()
}

/// Reads exactly one head. Returns `None` when the stream ends before its first byte.
pub(crate) async fn read_head(
    from: &mut (impl AsyncBufRead + Unpin),
    most: usize,
) -> Result<Option<Vec<u8>>, HeadError> {
    let mut head = Vec::new();
    loop {
        let available = from.fill_buf().await.map_err(|_| HeadError::Incomplete)?;
        if available.is_empty() {
            return if head.is_empty() { Ok(None) } else { Err(HeadError::Incomplete) };
        }
        let (before, length) = (head.len(), available.len());
        head.extend_from_slice(available);
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
