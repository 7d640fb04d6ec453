//! The two ends of a channel: who opens conversations, and who takes them.

use std::future::poll_fn;
use std::sync::Arc;

use bytes::Bytes;
use clock::Rng;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::driver::{Driver, Shared};
use crate::error::{ChannelError, StreamError};
use crate::frame::MAX_PAYLOAD;
use crate::handshake::{HandshakeError, Key, Role, shake};
use crate::limits::Limits;
use crate::mux::{Mux, Usage};
use crate::stream::Stream;

/// Makes the caller's end of a channel over `io`, which should send small writes at once (`TCP_NODELAY`).
pub async fn connect<Io: AsyncRead + AsyncWrite + Unpin>(
    mut io: Io,
    key: &Key,
    limits: Limits,
    rng: &Rng,
) -> Result<(Caller, Driver<Io>), HandshakeError> {
    let agreed = shake(&mut io, Role::Caller, key, &limits, rng).await?;
    let shared = Shared::new(Mux::new(Role::Caller, agreed.streams), agreed.streams);
    let caller = Caller(Arc::new(Presence(Arc::clone(&shared))));
    Ok((caller, Driver::new(io, agreed.rest, limits.idle, shared)))
}

/// Makes the callee's end of a channel over `io`.
pub async fn accept<Io: AsyncRead + AsyncWrite + Unpin>(
    mut io: Io,
    key: &Key,
    limits: Limits,
    rng: &Rng,
) -> Result<(Incoming, Driver<Io>), HandshakeError> {
    let agreed = shake(&mut io, Role::Callee, key, &limits, rng).await?;
    let shared = Shared::new(Mux::new(Role::Callee, limits.streams), limits.streams);
    let incoming = Incoming(Presence(Arc::clone(&shared)));
    Ok((incoming, Driver::new(io, agreed.rest, limits.idle, shared)))
}

/// Opens conversations. When all clones are dropped and the last conversation is over, the channel ends.
#[derive(Clone)]
pub struct Caller(Arc<Presence>);

impl Caller {
    /// Begins a conversation with a request of at most [`MAX_PAYLOAD`] bytes; JSON, by convention.
    ///
    /// Waits while as many conversations are open as both sides allow. A place is free when both sides are done with
    /// it, so a callee that never ends anything can make this wait for ever: put a time limit on it.
    pub async fn open(&self, request: impl Into<Bytes>) -> Result<Stream, StreamError> {
        let request = request.into();
        if request.len() > MAX_PAYLOAD {
            return Err(StreamError::TooLong { length: request.len(), most: MAX_PAYLOAD });
        }
        let shared = &self.0.0;
        let Ok(place) = Arc::clone(&shared.places).acquire_owned().await else {
            return Err(shared.mux().closed.clone().unwrap_or(ChannelError::Closed).into());
        };
        let id = shared.mux().open(request, place)?;
        Ok(Stream::new(Arc::clone(shared), id))
    }

    /// Whether the channel has ended, so that no conversation can begin any more.
    pub fn is_closed(&self) -> bool {
        self.0.0.mux().closed.is_some()
    }

    pub fn usage(&self) -> Usage {
        self.0.0.mux().usage()
    }
}

/// Takes the conversations that the caller opens. When it is dropped, later ones are refused, those that run go on,
/// and after the last the channel ends.
pub struct Incoming(Presence);

impl Incoming {
    /// The next request and its conversation; nothing when the channel has ended.
    pub async fn next(&mut self) -> Option<(Bytes, Stream)> {
        let shared = &self.0.0;
        let (id, request) = poll_fn(|cx| shared.mux().poll_arrived(cx)).await?;
        Some((request, Stream::new(Arc::clone(shared), id)))
    }

    pub fn usage(&self) -> Usage {
        self.0.0.mux().usage()
    }
}

/// That somebody on this side still begins conversations.
struct Presence(Arc<Shared>);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.mux().leave();
    }
}
