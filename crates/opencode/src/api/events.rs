//! The event stream: decoded, and monitored for silence.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::body::Body;
use super::head::Head;
use super::{ApiError, Dial, Endpoint};
use crate::sse::Decoder;

/// The agent sends a heartbeat every ten seconds. Four ticks without any data mean that it is silent, which
/// takes between 45 and 60 seconds.
const SILENCE_TICK: Duration = Duration::from_secs(15);
const MAX_SILENT_TICKS: u32 = 4;
/// Maximum number of bytes read at once, and thus of events processed together.
const READ_SIZE: usize = 64 * 1024;
const OPERATION: &str = "subscribe to its events";

/// An open event stream; dropping it closes it.
pub struct Events {
    /// The lock is never contended; it only makes the type `Sync`.
    stream: Mutex<Pin<Box<dyn AsyncRead + Send>>>,
    body: Body,
    decoder: Decoder,
    /// Stored here and not in the future, because `next` may be cancelled and called again at any time.
    ticks: Interval,
    silent_ticks: u32,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

impl Events {
    pub(super) async fn open<S>(mut stream: S, endpoint: &Endpoint) -> Result<Self, ApiError>
    where
        S: AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let broken = |_| ApiError::Broken(OPERATION);
        stream.write_all(&request(endpoint)).await.map_err(broken)?;
        stream.flush().await.map_err(broken)?;
        let Head { status, content_type, mut body, body_start } = Head::read(&mut stream, OPERATION).await?;
        if !(200..300).contains(&status) {
            return Err(ApiError::Refused { what: OPERATION, status, name: String::new() });
        }
        if !content_type.starts_with(b"text/event-stream") {
            return Err(ApiError::Malformed(OPERATION));
        }
        let mut decoder = Decoder::default();
        body.read(&body_start, |data| decoder.feed(data)).map_err(|_| ApiError::Broken(OPERATION))?;
        let mut ticks = interval(SILENCE_TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { stream: Mutex::new(Box::pin(stream)), body, decoder, ticks, silent_ticks: 0 })
    }

    /// The data of the next event, for [`Event::parse`](crate::event::Event::parse), or `None` if the agent
    /// closed the stream. Cancel-safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            if let Some(event) = self.next_buffered() {
                return event.map(Some);
            }
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    /// The next event that is already buffered.
    pub fn next_buffered(&mut self) -> Option<Result<Bytes, ApiError>> {
        Some(self.decoder.next_event()?.map_err(ApiError::from))
    }

    /// Reads more data; returns `false` at the end of the stream.
    async fn read_more(&mut self) -> Result<bool, ApiError> {
        if self.body.is_over() {
            return Ok(false);
        }
        loop {
            tokio::select! {
                biased;
                read = poll_fn(|cx| poll_read(&mut self.stream, &mut self.body, &mut self.decoder, cx)) => {
                    self.silent_ticks = 0;
                    return read;
                }
                _ = self.ticks.tick() => {
                    self.silent_ticks += 1;
                    if self.silent_ticks >= MAX_SILENT_TICKS {
                        return Err(ApiError::Silent);
                    }
                }
            }
        }
    }
}

/// Reads available data. The buffer is on the stack, so that idle streams hold no memory.
#[expect(clippy::large_stack_arrays, reason = "a heap buffer would be allocated for every read")]
fn poll_read(
    stream: &mut Mutex<Pin<Box<dyn AsyncRead + Send>>>,
    body: &mut Body,
    decoder: &mut Decoder,
    cx: &mut Context<'_>,
) -> Poll<Result<bool, ApiError>> {
    let mut buffer = [const { MaybeUninit::uninit() }; READ_SIZE];
    let mut piece = ReadBuf::uninit(&mut buffer);
    let stream = stream.get_mut();
    let read = stream.as_mut().poll_read(cx, &mut piece);
    if read.is_pending() {
        decoder.release_buffer();
    }
    let broken = ApiError::Broken(OPERATION);
    Poll::Ready(match ready!(read) {
        Ok(()) if piece.filled().is_empty() && body.may_close() => Ok(false),
        Ok(()) if piece.filled().is_empty() => Err(broken),
        Ok(()) => body.read(piece.filled(), |data| decoder.feed(data)).map(|()| true).map_err(|_| broken),
        Err(_) => Err(broken),
    })
}

/// The HTTP request. No field of the endpoint can contain a line break.
fn request(endpoint: &Endpoint) -> Vec<u8> {
    let Endpoint { authority, prefix, header } = endpoint;
    let path = ["GET ", prefix, "/event HTTP/1.1\r\naccept: text/event-stream\r\nhost: "].concat();
    let mut request = [path.as_bytes(), authority.as_bytes(), b"\r\n"].concat();
    if let Some((name, value)) = header {
        request.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    request.extend(b"\r\n");
    request
}

pub(super) async fn subscribe<D: Dial>(dial: &D, endpoint: &Endpoint) -> Result<Events, ApiError> {
    let opening = async { Events::open(super::exchange::dial_stream(dial).await?, endpoint).await };
    tokio::time::timeout(super::exchange::REQUEST_TIMEOUT, opening)
        .await
        .unwrap_or(Err(ApiError::TimedOut(OPERATION)))
}
