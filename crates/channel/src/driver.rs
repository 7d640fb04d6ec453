//! Moves a channel's bytes: whoever makes a channel runs its [`Driver`] in a task.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::Semaphore;

use crate::batch::Batch;
use crate::error::ChannelError;
use crate::frame::Frame;
use crate::limits::{BATCH, MAX_FRAME};
use crate::mux::Mux;

/// The running of one channel. Nothing moves unless [`Driver::run`] is polled; when it ends or is dropped, all
/// conversations end with its reason.
#[must_use = "a channel stands still unless its driver runs"]
pub struct Driver<Io> {
    io: Io,
    buffer: BytesMut,
    idle: Duration,
    link: Link,
}

impl<Io: AsyncRead + AsyncWrite> Driver<Io> {
    pub(crate) fn new(io: Io, buffer: BytesMut, idle: Duration, shared: Arc<Shared>) -> Self {
        Self { io, buffer, idle, link: Link(shared) }
    }

    /// Runs the channel until it ends. It ends well when nobody on this side goes on and all was written, or when
    /// the other side leaves while no conversation is open.
    pub async fn run(self) -> Result<(), ChannelError> {
        let Self { io, buffer, idle, link } = self;
        let (reader, writer) = tokio::io::split(io);
        // In this order, what was heard is answered in the same turn; none can starve another, all are polled.
        let ended = tokio::select! {
            biased;
            ended = read(reader, buffer, &link.0) => ended,
            ended = write(writer, &link.0) => ended,
            dead = watch(idle, &link.0) => Err(dead),
        };
        link.0.close(ended.clone().err().unwrap_or(ChannelError::Closed));
        ended
    }
}

/// What the driver and all handles of a channel have in common.
pub(crate) struct Shared {
    mux: Mutex<Mux>,
    /// Places for conversations; the caller waits here.
    pub(crate) places: Arc<Semaphore>,
}

impl Shared {
    pub(crate) fn new(mux: Mux, places: u16) -> Arc<Self> {
        Arc::new(Self { mux: Mutex::new(mux), places: Arc::new(Semaphore::new(usize::from(places))) })
    }

    /// No code panics while it holds the lock, so a poisoned one still guards a whole machine.
    pub(crate) fn mux(&self) -> MutexGuard<'_, Mux> {
        self.mux.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, reason: ChannelError) {
        self.mux().close(reason);
        self.places.close();
    }

    /// False when there is nothing more to write for ever.
    fn poll_fill(&self, cx: &Context<'_>, batch: &mut Batch) -> Poll<bool> {
        let mut mux = self.mux();
        let mut next = match mux.poll_next(cx) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(frame) => frame,
        };
        while let Some(frame) = next {
            batch.push(&frame);
            next = if batch.length() < BATCH { mux.next_frame() } else { None };
        }
        batch.seal();
        Poll::Ready(batch.length() > 0)
    }
}

/// Closes the channel when the driver is dropped, whether it ran or not.
struct Link(Arc<Shared>);

impl Drop for Link {
    fn drop(&mut self) {
        self.0.close(ChannelError::Dropped);
    }
}

async fn read<Io: AsyncRead>(
    mut io: ReadHalf<Io>,
    mut buffer: BytesMut,
    shared: &Shared,
) -> Result<(), ChannelError> {
    loop {
        take_frames(&mut buffer, shared)?;
        buffer.reserve(MAX_FRAME - buffer.len().min(MAX_FRAME));
        if io.read_buf(&mut buffer).await? > 0 {
            continue;
        }
        return match (buffer.is_empty(), shared.mux().is_idle()) {
            (true, true) => Ok(()),
            (true, false) => Err(ChannelError::Closed),
            (false, _) => Err(ChannelError::Truncated),
        };
    }
}

fn take_frames(buffer: &mut BytesMut, shared: &Shared) -> Result<(), ChannelError> {
    let mut mux = shared.mux();
    while let Some(frame) = Frame::decode(buffer)? {
        mux.receive(frame)?;
    }
    Ok(())
}

async fn write<Io: AsyncWrite>(mut io: WriteHalf<Io>, shared: &Shared) -> Result<(), ChannelError> {
    let mut batch = Batch::default();
    while std::future::poll_fn(|cx| shared.poll_fill(cx, &mut batch)).await {
        io.write_all_buf(&mut batch).await?;
        io.flush().await?;
    }
    Ok(io.shutdown().await?)
}

async fn watch(idle: Duration, shared: &Shared) -> ChannelError {
    loop {
        tokio::time::sleep(idle / 2).await;
        if let Err(dead) = shared.mux().look() {
            return dead;
        }
    }
}
