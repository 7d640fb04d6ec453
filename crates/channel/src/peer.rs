//! The two ends of a channel: the caller opens streams, the callee accepts them.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use clock::Rng;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::driver::{Driver, Shared};
use crate::error::{ChannelError, StreamError};
use crate::frame::MAX_PAYLOAD;
use crate::handshake::{HandshakeError, Key, Role, perform_handshake};
use crate::limits::Limits;
use crate::mux::{Mux, Usage};
use crate::stream::Stream;

/// Creates the caller's end of a channel over `io`, which should send small writes immediately (`TCP_NODELAY`).
pub async fn connect<Io: AsyncRead + AsyncWrite + Unpin>(
    mut io: Io,
    key: &Key,
    limits: Limits,
    rng: &Rng,
) -> Result<(Caller, Driver<Io>), HandshakeError> {
    let agreed = perform_handshake(&mut io, Role::Caller, key, &limits, rng).await?;
    let shared = Shared::new(Mux::new(Role::Caller, agreed.streams), agreed.streams);
    let caller = Caller(Arc::new(ShutdownOnDrop(Arc::clone(&shared))));
    Ok((caller, Driver::new(io, agreed.rest, limits.idle, shared)))
}

/// Creates the callee's end of a channel over `io`.
pub async fn accept<Io: AsyncRead + AsyncWrite + Unpin>(
    mut io: Io,
    key: &Key,
    limits: Limits,
    rng: &Rng,
) -> Result<(Incoming, Driver<Io>), HandshakeError> {
    let agreed = perform_handshake(&mut io, Role::Callee, key, &limits, rng).await?;
    let shared = Shared::new(Mux::new(Role::Callee, limits.streams), limits.streams);
    let incoming = Incoming(ShutdownOnDrop(Arc::clone(&shared)));
    Ok((incoming, Driver::new(io, agreed.rest, limits.idle, shared)))
}

/// Opens streams. The channel ends when all clones are dropped and the last stream is closed.
#[derive(Clone)]
pub struct Caller(Arc<ShutdownOnDrop>);

impl Caller {
    /// Opens a stream with a request of at most [`MAX_PAYLOAD`] bytes; JSON, by convention.
    ///
    /// Waits while as many streams are open as both sides allow. A stream counts until both sides have closed it,
    /// so a callee that never closes one can make this wait for ever: use a timeout.
    pub async fn open(&self, request: impl Into<Bytes>) -> Result<Stream, StreamError> {
        let request = request.into();
        if request.len() > MAX_PAYLOAD {
            return Err(StreamError::TooLong { length: request.len(), most: MAX_PAYLOAD });
        }
        let shared = &self.0.0;
        let Ok(permit) = Arc::clone(&shared.permits).acquire_owned().await else {
            return Err(shared.mux().closed.clone().unwrap_or(ChannelError::Closed).into());
        };
        let id = shared.mux().open(request, permit)?;
        Ok(Stream::new(Arc::clone(shared), id))
    }

    /// Whether the channel has ended, so that no stream can be opened any more.
    pub fn is_closed(&self) -> bool {
        self.0.0.mux().closed.is_some()
    }

    pub fn usage(&self) -> Usage {
        self.0.0.mux().usage()
    }
}

/// Accepts the streams that the caller opens. When it is dropped, new streams are refused, open ones continue, and
/// the channel ends after the last one.
pub struct Incoming(ShutdownOnDrop);

impl Incoming {
    /// The next request and its stream; `None` when the channel has ended.
    pub async fn next(&mut self) -> Option<(Bytes, Stream)> {
        let shared = &self.0.0;
        let (id, request) = poll_fn(|cx| shared.mux().poll_accept(cx)).await?;
        Some((request, Stream::new(Arc::clone(shared), id)))
    }

    pub fn usage(&self) -> Usage {
        self.0.0.mux().usage()
    }
}

/// Shuts this side down when its last handle is dropped.
struct ShutdownOnDrop(Arc<Shared>);

impl Drop for ShutdownOnDrop {
    fn drop(&mut self) {
        self.0.mux().shut_down();
    }
}
