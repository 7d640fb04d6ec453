//! Reads and writes a channel's bytes: whoever creates a channel runs its [`Driver`] in a task.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use parking_lot::{Mutex, MutexGuard};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadHalf, WriteHalf};
use tokio::sync::Semaphore;

use crate::batch::Batch;
use crate::error::ChannelError;
use crate::frame::Frame;
use crate::limits::{BATCH, MAX_FRAME};
use crate::mux::Mux;

/// Performs the I/O of one channel. Nothing moves unless [`Driver::run`] is polled; when it returns or is dropped,
/// every stream fails with its error.
#[must_use = "a channel does nothing unless its driver runs"]
pub struct Driver<Io> {
    io: Io,
    buffer: BytesMut,
    idle: Duration,
    closer: CloseOnDrop,
}

impl<Io: AsyncRead + AsyncWrite> Driver<Io> {
    pub(crate) fn new(io: Io, buffer: BytesMut, idle: Duration, shared: Arc<Shared>) -> Self {
        Self { io, buffer, idle, closer: CloseOnDrop(shared) }
    }

    /// Runs the channel until it ends. It returns `Ok` when this side dropped its handles and everything was
    /// written, or when the other side disconnects while no stream is open.
    pub async fn run(self) -> Result<(), ChannelError> {
        let Self { io, buffer, idle, closer } = self;
        let (reader, writer) = tokio::io::split(io);
        // Reading is polled first so that replies to received frames go out in the same turn. All branches are
        // polled every time, so none can starve another.
        let ended = tokio::select! {
            biased;
            ended = read(reader, buffer, &closer.0) => ended,
            ended = write(writer, &closer.0) => ended,
            dead = detect_dead_peer(idle, &closer.0) => Err(dead),
        };
        closer.0.close(ended.clone().err().unwrap_or(ChannelError::Closed));
        ended
    }
}

/// The state that the driver and all handles of a channel share.
pub(crate) struct Shared {
    mux: Mutex<Mux>,
    /// One permit per stream; [`crate::Caller::open`] waits here.
    pub(crate) permits: Arc<Semaphore>,
}

impl Shared {
    pub(crate) fn new(mux: Mux, permits: u16) -> Arc<Self> {
        Arc::new(Self { mux: Mutex::new(mux), permits: Arc::new(Semaphore::new(usize::from(permits))) })
    }

    /// No code panics while it holds the lock, so the state behind a poisoned lock is still consistent.
    pub(crate) fn mux(&self) -> MutexGuard<'_, Mux> {
        self.mux.lock()
    }

    fn close(&self, reason: ChannelError) {
        self.mux().close(reason);
        self.permits.close();
    }

    /// Resolves to false when nothing will ever be written again.
    fn poll_fill_batch(&self, cx: &Context<'_>, batch: &mut Batch) -> Poll<bool> {
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
struct CloseOnDrop(Arc<Shared>);

impl Drop for CloseOnDrop {
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
        decode_frames(&mut buffer, shared)?;
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

fn decode_frames(buffer: &mut BytesMut, shared: &Shared) -> Result<(), ChannelError> {
    let mut mux = shared.mux();
    while let Some(frame) = Frame::decode(buffer)? {
        mux.receive(frame)?;
    }
    Ok(())
}

async fn write<Io: AsyncWrite>(mut io: WriteHalf<Io>, shared: &Shared) -> Result<(), ChannelError> {
    let mut batch = Batch::default();
    while std::future::poll_fn(|cx| shared.poll_fill_batch(cx, &mut batch)).await {
        io.write_all_buf(&mut batch).await?;
        io.flush().await?;
    }
    Ok(io.shutdown().await?)
}

async fn detect_dead_peer(idle: Duration, shared: &Shared) -> ChannelError {
    loop {
        tokio::time::sleep(idle / 2).await;
        if let Err(dead) = shared.mux().check_liveness() {
            return dead;
        }
    }
}
