//! A socket that disconnects a client that reads nothing for too long, or sends more than there is memory for. TCP
//! itself would wait forever.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::Inbound;

/// A stream whose writes fail after they have been pending for longer than `most`.
pub(super) struct WriteTimeout<S> {
    stream: S,
    most: Duration,
    /// The timer of a pending write.
    waiting: Option<Pin<Box<Sleep>>>,
    inbound: Inbound,
}

impl<S> WriteTimeout<S> {
    pub(super) fn new(stream: S, most: Duration, inbound: Inbound) -> Self {
        Self { stream, most, waiting: None, inbound }
    }

    /// Passes on the result of a write, or fails if the write has been pending for too long.
    fn in_time<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let most = self.most;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(most)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for WriteTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let arrived = buffer.filled().len() - before;
        Poll::Ready(if self.inbound.arrived(arrived) {
            Ok(())
        } else {
            Err(io::ErrorKind::OutOfMemory.into())
        })
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for WriteTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.in_time(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
