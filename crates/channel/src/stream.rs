//! A stream of a channel, in three parts that different tasks may own.
//!
//! - **Exec**: the request names the program. The callee sends stdout and stderr on separate lanes
//!   ([`Sender::send`]) and the exit code with [`Sender::finish`]. It reads the input with [`Receiver::recv`] and,
//!   concurrently, signals and terminal sizes with [`Controls::recv`], which also reports when the caller has gone
//!   away. Input that the program does not read does not delay control messages.
//! - **Files**: a [`Stream`] implements `AsyncRead` and `AsyncWrite` on the main lane, so `tokio::io::copy` works.
//!   The reader must wait for [`Receiver::outcome`], which alone confirms that everything was sent.
//! - **Port forwarding**: `tokio::io::copy_bidirectional` between a [`Stream`] and a socket; a shutdown sends End.
//!
//! A part that is dropped before it was ended resets the stream, so that truncated data never looks complete.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::driver::Shared;
use crate::error::StreamError;
use crate::frame::{Lane, MAX_PAYLOAD, StreamId};
use crate::limits::MAX_CONTROL;
use crate::mux::ClosingFrame;
use crate::window::Chunk;

/// One stream. Destructure it to use its parts from several tasks.
pub struct Stream {
    pub sender: Sender,
    pub receiver: Receiver,
    pub controls: Controls,
}

impl Stream {
    pub(crate) fn new(shared: Arc<Shared>, id: StreamId) -> Self {
        let handle = Arc::new(Handle { shared, id });
        Self {
            sender: Sender(Arc::clone(&handle)),
            receiver: Receiver { handle: Arc::clone(&handle), rest: Bytes::new() },
            controls: Controls(handle),
        }
    }

    /// See [`Sender::finish`].
    pub fn finish(self, result: impl Into<Bytes>) -> Result<(), StreamError> {
        self.sender.finish(result)
    }

    /// See [`Sender::reset`].
    pub fn reset(self, reason: &str) {
        self.sender.reset(reason);
    }
}

/// The sending half of a stream.
pub struct Sender(Arc<Handle>);

impl Sender {
    /// Sends all of `bytes`, split into frames. Returns when the last frame is queued and has credit; waits while
    /// the other side does not read. If the future is dropped, a prefix of `bytes` may have been sent.
    pub async fn send(&mut self, lane: Lane, bytes: impl Into<Bytes>) -> Result<(), StreamError> {
        let mut bytes = bytes.into();
        while !bytes.is_empty() {
            let length = bytes.len();
            poll_fn(|cx| {
                let take = |fits| (lane, bytes.split_to(fits));
                self.0.shared.mux().poll_send(self.0.id, cx, length, take)
            })
            .await?;
        }
        Ok(())
    }

    /// Signals the end of this side's bytes. The stream stays open: the other side may still send, and finish.
    pub fn end(&mut self) {
        self.0.shared.mux().end(self.0.id);
    }

    /// Closes this side of the stream with a result of at most [`MAX_PAYLOAD`] bytes, after all data that was sent.
    /// Data that the other side still sends is dropped.
    pub fn finish(self, result: impl Into<Bytes>) -> Result<(), StreamError> {
        let result = result.into();
        if result.len() > MAX_PAYLOAD {
            return Err(StreamError::TooLong { length: result.len(), most: MAX_PAYLOAD });
        }
        self.0.shared.mux().finish(self.0.id, ClosingFrame::Done(result));
        Ok(())
    }

    /// Aborts the stream. Unwritten data is dropped, unless [`Sender::end`] was called. A long reason is truncated.
    pub fn reset(self, reason: &str) {
        let reason = &reason.as_bytes()[..reason.floor_char_boundary(MAX_CONTROL)];
        self.0.shared.mux().finish(self.0.id, ClosingFrame::Reset(Bytes::copy_from_slice(reason)));
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.0.shared.mux().sender_dropped(self.0.id);
    }
}

/// The receiving half of a stream.
pub struct Receiver {
    handle: Arc<Handle>,
    /// The part of a chunk that `AsyncRead` has not returned yet.
    rest: Bytes,
}

impl Receiver {
    /// The next chunk; `None` when the other side has ended or finished. Reading returns credit. After a reset,
    /// chunks that arrived before it can still be read.
    pub async fn recv(&mut self) -> Result<Option<Chunk>, StreamError> {
        if !self.rest.is_empty() {
            return Ok(Some(Chunk { lane: Lane::Main, bytes: std::mem::take(&mut self.rest) }));
        }
        poll_fn(|cx| self.handle.shared.mux().poll_data(self.handle.id, cx)).await
    }

    /// Waits for the other side's result and drops any bytes that arrive before it.
    pub async fn outcome(&mut self) -> Result<Bytes, StreamError> {
        poll_fn(|cx| self.handle.shared.mux().poll_outcome(self.handle.id, cx)).await
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.handle.shared.mux().receiver_dropped(self.handle.id);
    }
}

/// Out-of-band messages in both directions, with their own flow control window.
pub struct Controls(Arc<Handle>);

impl Controls {
    /// Sends a message of at most [`MAX_CONTROL`] bytes; waits while the other side does not read its messages.
    pub async fn send(&mut self, message: impl Into<Bytes>) -> Result<(), StreamError> {
        let message = message.into();
        if message.len() > MAX_CONTROL {
            return Err(StreamError::TooLong { length: message.len(), most: MAX_CONTROL });
        }
        poll_fn(|cx| self.0.shared.mux().poll_send_control(self.0.id, cx, &message)).await
    }

    /// The next message; `None` when the other side has finished, an error when it has reset the stream.
    pub async fn recv(&mut self) -> Result<Option<Bytes>, StreamError> {
        poll_fn(|cx| self.0.shared.mux().poll_control(self.0.id, cx)).await
    }
}

/// Shared by the parts of a stream. When the last part is dropped, it resets the stream unless that is already
/// closed.
struct Handle {
    shared: Arc<Shared>,
    id: StreamId,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.mux().finish(self.id, ClosingFrame::dropped());
    }
}

impl AsyncRead for Receiver {
    /// Stderr cannot be mixed into the bytes: a chunk of that lane is an `InvalidData` error.
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.rest.is_empty() {
            let next = ready!(this.handle.shared.mux().poll_data(this.handle.id, cx))?;
            let Some(Chunk { lane, bytes }) = next else { return Poll::Ready(Ok(())) };
            if lane != Lane::Main {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::InvalidData)));
            }
            this.rest = bytes;
        }
        let length = this.rest.len().min(out.remaining());
        out.put_slice(&this.rest[..length]);
        this.rest.advance(length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Sender {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let take = |fits| (Lane::Main, Bytes::copy_from_slice(&bytes[..fits]));
        let sent = ready!(self.0.shared.mux().poll_send(self.0.id, cx, bytes.len(), take))?;
        Poll::Ready(Ok(sent))
    }

    /// The driver writes without a flush.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.end();
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.receiver).poll_read(cx, out)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.sender).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sender).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sender).poll_shutdown(cx)
    }
}
