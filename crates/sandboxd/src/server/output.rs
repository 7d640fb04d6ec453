//! Forwards a program's output to the caller as fast as the caller reads, without buffering more.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use channel::{Lane, Sender, StreamError};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::watch;
use tokio::time::timeout;

const CHUNK_BYTES: usize = 32 * 1024;
/// After the program has exited, forwarding stops when no output arrives for this long, even if another process
/// still holds the pipe…
const QUIET_TIMEOUT: Duration = Duration::from_millis(200);
/// … or after this many more chunks, twice what the largest pipe can hold.
const MAX_LAST_CHUNKS: usize = 64;

pub(super) type Source = Box<dyn AsyncRead + Send + Unpin>;

pub(super) struct Output {
    main: LaneReader,
    errors: LaneReader,
    left: u64,
    pub(super) truncated: bool,
    pub(super) detached: bool,
}

struct LaneReader {
    source: Option<Source>,
    /// Reads go here and are copied out at their size: a small chunk must not keep a large buffer alive.
    buffer: Vec<u8>,
}

impl LaneReader {
    fn new(source: Option<Source>) -> Self {
        let length = if source.is_some() { CHUNK_BYTES } else { 0 };
        Self { source, buffer: vec![0; length] }
    }

    async fn next(&mut self) -> Option<Bytes> {
        let source = self.source.as_mut()?;
        match source.read(&mut self.buffer).await {
            Ok(0) => self.source = None,
            Ok(length) => return Some(Bytes::copy_from_slice(&self.buffer[..length])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Some(Bytes::new()),
            // A terminal without a slave end returns an error instead of an end of file.
            Err(_) => self.source = None,
        }
        None
    }
}

impl Output {
    pub(super) fn new(main: Option<Source>, errors: Option<Source>, limit: Option<u64>) -> Self {
        let (main, errors) = (LaneReader::new(main), LaneReader::new(errors));
        Self { main, errors, left: limit.unwrap_or(u64::MAX), truncated: false, detached: false }
    }

    /// Runs until the output ends, or the program has exited and no more output arrives.
    pub(super) async fn pump(
        &mut self,
        sender: &mut Sender,
        mut exited: watch::Receiver<bool>,
    ) -> Result<(), StreamError> {
        let mut last_chunks = 0;
        while self.main.source.is_some() || self.errors.source.is_some() {
            let has_exited = *exited.borrow();
            let chunk = if has_exited {
                last_chunks += 1;
                let next = timeout(QUIET_TIMEOUT, self.next()).await;
                if next.is_err() || last_chunks > MAX_LAST_CHUNKS {
                    self.detached = true;
                    return Ok(());
                }
                next.ok().flatten()
            } else {
                tokio::select! {
                    biased;
                    chunk = self.next() => chunk,
                    _ = exited.changed() => None,
                }
            };
            if let Some((lane, chunk)) = chunk {
                self.forward(sender, lane, chunk).await?;
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<(Lane, Bytes)> {
        let Self { main, errors, .. } = self;
        tokio::select! {
            chunk = main.next(), if main.source.is_some() => chunk.map(|chunk| (Lane::Main, chunk)),
            chunk = errors.next(), if errors.source.is_some() => chunk.map(|chunk| (Lane::Errors, chunk)),
            else => None,
        }
    }

    async fn forward(
        &mut self,
        sender: &mut Sender,
        lane: Lane,
        mut chunk: Bytes,
    ) -> Result<(), StreamError> {
        let length = chunk.len() as u64;
        if length > self.left {
            self.truncated = true;
            chunk.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        }
        self.left = self.left.saturating_sub(length);
        sender.send(lane, chunk).await
    }
}
