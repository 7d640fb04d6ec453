//! The stream of events: decoded, and watched for silence.

use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use tokio::time::{Sleep, sleep};

use super::ApiError;
use super::driven::Driven;
use super::exchange::Open;
use crate::sse::Decoder;

/// The agent sends a heartbeat every ten seconds.
const SILENCE: Duration = Duration::from_secs(45);

/// An open stream; dropping it ends it.
#[derive(Debug)]
pub struct Events {
    body: Incoming,
    decoder: Decoder,
    /// Kept here, because whoever listens may be called away at any time and come back.
    silence: Pin<Box<Sleep>>,
    connection: Driven,
}

impl Events {
    pub(super) fn new(open: Open) -> Result<Self, ApiError> {
        let kind = open.response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes);
        if !kind.is_some_and(|kind| kind.starts_with(b"text/event-stream")) {
            return Err(ApiError::Malformed(open.what));
        }
        let body = open.response.into_body();
        let silence = Box::pin(sleep(SILENCE));
        Ok(Self { body, decoder: Decoder::default(), silence, connection: open.connection })
    }

    /// The data of the next event, for [`Event::parse`](crate::event::Event::parse); `None` when the agent has
    /// ended the stream. May be cancelled without losing anything.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            if let Some(event) = self.decoder.next_event() {
                return Ok(Some(event?));
            }
            let frame = tokio::select! {
                biased;
                frame = self.connection.until(self.body.frame()) => frame,
                () = self.silence.as_mut() => return Err(ApiError::Silent),
            };
            self.silence = Box::pin(sleep(SILENCE));
            match frame {
                None => return Ok(None),
                Some(Err(_)) => return Err(ApiError::Broken("listen to its events")),
                Some(Ok(frame)) => {
                    if let Some(bytes) = frame.data_ref() {
                        self.decoder.feed(bytes);
                    }
                }
            }
        }
    }
}
