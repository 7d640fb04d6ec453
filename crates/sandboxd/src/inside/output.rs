//! A program's output on its way to the caller: as fast as the caller reads, and nothing kept beyond that.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use channel::{Lane, Sender, StreamError};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::watch;
use tokio::time::timeout;

const PIECE: usize = 32 * 1024;
/// Once the program has ended, its output ends when nothing comes for so long, although somebody still holds it…
const QUIET: Duration = Duration::from_millis(200);
/// … or after so many pieces more, which is what the largest pipe can hold twice over.
const LAST_PIECES: usize = 64;

pub(super) type Source = Box<dyn AsyncRead + Send + Unpin>;

pub(super) struct Output {
    main: Lined,
    errors: Lined,
    left: u64,
    pub(super) truncated: bool,
    pub(super) detached: bool,
}

struct Lined {
    source: Option<Source>,
    /// Read here and copied out to size: what waits for a slow reader must not hold a large buffer for a small piece.
    buffer: Vec<u8>,
}

impl Lined {
    fn new(source: Option<Source>) -> Self {
        let length = if source.is_some() { PIECE } else { 0 };
        Self { source, buffer: vec![0; length] }
    }

    async fn next(&mut self) -> Option<Bytes> {
        let source = self.source.as_mut()?;
        match source.read(&mut self.buffer).await {
            Ok(0) => self.source = None,
            Ok(length) => return Some(Bytes::copy_from_slice(&self.buffer[..length])),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Some(Bytes::new()),
            // A terminal that nobody holds any more gives an error and not an end.
            Err(_) => self.source = None,
        }
        None
    }
}

impl Output {
    pub(super) fn new(main: Option<Source>, errors: Option<Source>, limit: Option<u64>) -> Self {
        let (main, errors) = (Lined::new(main), Lined::new(errors));
        Self { main, errors, left: limit.unwrap_or(u64::MAX), truncated: false, detached: false }
    }

    /// Runs until the output has ended, or the program has and nothing more comes.
    pub(super) async fn pump(
        &mut self,
        sender: &mut Sender,
        mut exited: watch::Receiver<bool>,
    ) -> Result<(), StreamError> {
        let mut last_pieces = 0;
        while self.main.source.is_some() || self.errors.source.is_some() {
            let has_exited = *exited.borrow();
            let piece = if has_exited {
                last_pieces += 1;
                let next = timeout(QUIET, self.next()).await;
                if next.is_err() || last_pieces > LAST_PIECES {
                    self.detached = true;
                    return Ok(());
                }
                next.ok().flatten()
            } else {
                tokio::select! {
                    biased;
                    piece = self.next() => piece,
                    _ = exited.changed() => None,
                }
            };
            if let Some((lane, piece)) = piece {
                self.forward(sender, lane, piece).await?;
            }
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<(Lane, Bytes)> {
        let Self { main, errors, .. } = self;
        tokio::select! {
            piece = main.next(), if main.source.is_some() => piece.map(|piece| (Lane::Main, piece)),
            piece = errors.next(), if errors.source.is_some() => piece.map(|piece| (Lane::Errors, piece)),
            else => None,
        }
    }

    async fn forward(
        &mut self,
        sender: &mut Sender,
        lane: Lane,
        mut piece: Bytes,
    ) -> Result<(), StreamError> {
        let length = piece.len() as u64;
        if length > self.left {
            self.truncated = true;
            piece.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
        }
        self.left = self.left.saturating_sub(length);
        sender.send(lane, piece).await
    }
}
