//! Counts the bytes to and from a target and detects when none flow.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::time::timeout;

/// The traffic of one request so far.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    up: AtomicU64,
    down: AtomicU64,
    broken: AtomicBool,
    progress: Notify,
}

impl Meter {
    pub(crate) fn up(&self) -> u64 {
        self.up.load(Ordering::Relaxed)
    }

    pub(crate) fn down(&self) -> u64 {
        self.down.load(Ordering::Relaxed)
    }

    /// Whether the target's side failed; the error of a bidirectional copy does not say which side it was.
    pub(crate) fn target_failed(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Resolves when no byte has passed in either direction for this long.
    pub(crate) async fn idle(&self, limit: Duration) {
        while timeout(limit, self.progress.notified()).await.is_ok() {}
    }

    fn count(&self, counter: &AtomicU64, bytes: usize) {
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        self.progress.notify_one();
    }

    fn note_error<T>(&self, result: io::Result<T>) -> io::Result<T> {
        if result.is_err() {
            self.broken.store(true, Ordering::Relaxed);
        }
        result
    }
}

/// A target's stream that counts its bytes.
#[derive(Debug)]
pub(crate) struct Metered<S> {
    inner: S,
    meter: Arc<Meter>,
}

impl<S> Metered<S> {
    pub(crate) fn new(inner: S, meter: Arc<Meter>) -> Self {
        Self { inner, meter }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut this.inner).poll_read(cx, buf));
        this.meter.count(&this.meter.down, buf.filled().len() - before);
        Poll::Ready(this.meter.note_error(read))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.inner).poll_write(cx, data));
        if let Ok(bytes) = &written {
            this.meter.count(&this.meter.up, *bytes);
        }
        Poll::Ready(this.meter.note_error(written))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(cx)
    }
}
