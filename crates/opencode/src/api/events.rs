//! The stream of events: decoded, and watched for silence.

use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWriteExt as _, ReadBuf};
use tokio::time::{Interval, MissedTickBehavior, interval};

use super::body::Body;
use super::head::Head;
use super::{ApiError, Dial, Place};
use crate::sse::Decoder;

/// The agent sends a heartbeat every ten seconds. After the fourth look in which there was none it is silent: 45 s at
/// least, 60 s at most.
const LOOK: Duration = Duration::from_secs(15);
const LOOKS: u32 = 4;
/// What is read at once, and so what is told together.
const PIECE: usize = 64 * 1024;
const WHAT: &str = "listen to its events";

/// An open stream; dropping it ends it.
pub struct Events {
    /// Nobody ever waits for the lock, which only lets others hold a reference to what holds this.
    stream: Mutex<Pin<Box<dyn AsyncRead + Send>>>,
    body: Body,
    decoder: Decoder,
    /// Kept here, because whoever listens may be called away at any time and come back.
    looks: Interval,
    quiet: u32,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Events")
    }
}

impl Events {
    pub(super) async fn open<S>(mut stream: S, place: &Place) -> Result<Self, ApiError>
    where
        S: AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    {
        let broken = |_| ApiError::Broken(WHAT);
        stream.write_all(&request(place)).await.map_err(broken)?;
        stream.flush().await.map_err(broken)?;
        let Head { status, kind, mut body, begun } = Head::read(&mut stream, WHAT).await?;
        if !(200..300).contains(&status) {
            return Err(ApiError::Refused { what: WHAT, status, name: String::new() });
        }
        if !kind.starts_with(b"text/event-stream") {
            return Err(ApiError::Malformed(WHAT));
        }
        let mut decoder = Decoder::default();
        body.read(&begun, |data| decoder.feed(data)).map_err(|_| ApiError::Broken(WHAT))?;
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self { stream: Mutex::new(Box::pin(stream)), body, decoder, looks, quiet: 0 })
    }

    /// The data of the next event, for [`Event::parse`](crate::event::Event::parse); `None` when the agent has
    /// ended the stream. May be cancelled without losing anything.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            if let Some(event) = self.at_hand() {
                return event.map(Some);
            }
            if !self.more().await? {
                return Ok(None);
            }
        }
    }

    /// The next event of what was read already.
    pub fn at_hand(&mut self) -> Option<Result<Bytes, ApiError>> {
        Some(self.decoder.next_event()?.map_err(ApiError::from))
    }

    /// Waits for more; `false` when there will be none.
    async fn more(&mut self) -> Result<bool, ApiError> {
        if self.body.is_over() {
            return Ok(false);
        }
        loop {
            tokio::select! {
                biased;
                read = poll_fn(|cx| poll_read(&mut self.stream, &mut self.body, &mut self.decoder, cx)) => {
                    self.quiet = 0;
                    return read;
                }
                _ = self.looks.tick() => {
                    self.quiet += 1;
                    if self.quiet >= LOOKS {
                        return Err(ApiError::Silent);
                    }
                }
            }
        }
    }
}

/// Reads what has come, without holding room for it while nothing does.
#[expect(clippy::large_stack_arrays, reason = "a heap would have to be asked for it each time")]
fn poll_read(
    stream: &mut Mutex<Pin<Box<dyn AsyncRead + Send>>>,
    body: &mut Body,
    decoder: &mut Decoder,
    cx: &mut Context<'_>,
) -> Poll<Result<bool, ApiError>> {
    let mut room = [const { MaybeUninit::uninit() }; PIECE];
    let mut piece = ReadBuf::uninit(&mut room);
    let stream = stream.get_mut().unwrap_or_else(PoisonError::into_inner);
    let read = stream.as_mut().poll_read(cx, &mut piece);
    if read.is_pending() {
        decoder.rest();
    }
    let broken = ApiError::Broken(WHAT);
    Poll::Ready(match ready!(read) {
        Ok(()) if piece.filled().is_empty() && body.may_close() => Ok(false),
        Ok(()) if piece.filled().is_empty() => Err(broken),
        Ok(()) => body.read(piece.filled(), |data| decoder.feed(data)).map(|()| true).map_err(|_| broken),
        Err(_) => Err(broken),
    })
}

/// What is asked. No part of a place can end its line.
fn request(place: &Place) -> Vec<u8> {
    let Place { authority, prefix, header } = place;
    let path = ["GET ", prefix, "/event HTTP/1.1\r\naccept: text/event-stream\r\nhost: "].concat();
    let mut request = [path.as_bytes(), authority.as_bytes(), b"\r\n"].concat();
    if let Some((name, value)) = header {
        request.extend([name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"].concat());
    }
    request.extend(b"\r\n");
    request
}

/// Opens the stream of everything that happens from now on.
pub(super) async fn listen<D: Dial>(dial: &D, place: &Place) -> Result<Events, ApiError> {
    let opening = async { Events::open(super::exchange::dialled(dial).await?, place).await };
    tokio::time::timeout(super::exchange::PATIENCE, opening).await.unwrap_or(Err(ApiError::TimedOut(WHAT)))
}
