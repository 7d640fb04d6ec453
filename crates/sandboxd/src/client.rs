//! The gateway's client for sandboxd. Whoever controls the sandbox may control its answers: every answer is limited
//! in size, parsed and sanitised, and every wait has a timeout.

mod calls;
mod exec;

use std::time::Duration;

use bytes::Bytes;
use channel::{Caller, HandshakeError, Key, Lane, Limits, Receiver, Stream, StreamError};
use clock::Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};

pub use calls::{Connection, FileContent, LogStream};
pub use exec::{ExecControl, ExecHandle, ExecInput, ExecOutput, ExecResult};

use crate::protocol::{Answer, MAX_DOCUMENT, Refusal, Request};

/// Longer messages from the sandbox are truncated.
const MAX_MESSAGE: usize = 512;
const MAX_MISSING: usize = 1_000;

/// Why a request to the sandbox failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    #[error("the sandbox refused: {0}")]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("the sandbox did not answer in time")]
    TimedOut,
    #[error("the sandbox sent more than {0} bytes")]
    TooLarge(usize),
    #[error("the sandbox sent an invalid answer: {0}")]
    InvalidAnswer(&'static str),
    #[error("the request cannot be encoded")]
    BadRequest,
}

/// A connection to the sandboxd of one sandbox. Clones share the channel, which ends when all are dropped.
#[derive(Clone)]
pub struct Sandboxd {
    caller: Caller,
    timeout: Duration,
}

impl Sandboxd {
    /// The timeout of a request, unless [`Sandboxd::with_timeout`] changes it.
    pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

    /// Performs the handshake over `io` (which should not delay small writes) and spawns the channel's driver.
    pub async fn connect<Io>(io: Io, key: &Key, limits: Limits, rng: &Rng) -> Result<Self, HandshakeError>
    where
        Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (caller, driver) = channel::connect(io, key, limits, rng).await?;
        // The driver's error reaches the callers through their streams.
        tokio::spawn(driver.run());
        Ok(Self { caller, timeout: Self::DEFAULT_TIMEOUT })
    }

    /// Whether the channel has ended, for example because it was silent for too long. A new connection is then
    /// needed.
    pub fn is_closed(&self) -> bool {
        self.caller.is_closed()
    }

    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    async fn open(&self, request: &Request) -> Result<Stream, ClientError> {
        let request = serde_json::to_vec(request).map_err(|_| ClientError::BadRequest)?;
        self.with_deadline(async { Ok(self.caller.open(request).await?) }).await
    }

    /// Sends a request that has no body and a single answer.
    async fn call<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ClientError> {
        let mut stream = self.open(request).await?;
        stream.sender.end();
        self.with_deadline(collect_answer(&mut stream.receiver)).await
    }

    /// Sends a request with a JSON body that may be longer than a frame.
    async fn call_with<T: DeserializeOwned>(
        &self,
        request: &Request,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|_| ClientError::BadRequest)?;
        let Stream { mut sender, mut receiver, controls: _controls } = self.open(request).await?;
        let sending = async {
            send_all(&mut sender, body.into()).await?;
            collect_answer(&mut receiver).await
        };
        self.with_deadline(sending).await
    }

    async fn with_deadline<T>(
        &self,
        work: impl Future<Output = Result<T, ClientError>>,
    ) -> Result<T, ClientError> {
        tokio::time::timeout(self.timeout, work).await.unwrap_or(Err(ClientError::TimedOut))
    }
}

/// Sends everything and ends the stream. If sandboxd finishes before it has read everything, its answer says why.
async fn send_all(sender: &mut channel::Sender, bytes: Bytes) -> Result<(), ClientError> {
    match sender.send(Lane::Main, bytes).await {
        Ok(()) | Err(StreamError::Finished) => {}
        Err(error) => return Err(error.into()),
    }
    sender.end();
    Ok(())
}

async fn collect_answer<T: DeserializeOwned>(receiver: &mut Receiver) -> Result<T, ClientError> {
    let document = collect(receiver, MAX_DOCUMENT).await?;
    let text = receiver.outcome().await?;
    match read_answer::<T>(&text)? {
        Ok(done) => Ok(done),
        Err(length) if length == document.len() => {
            read_answer(&document)?.map_err(|_| ClientError::InvalidAnswer("a nested document"))
        }
        Err(_) => Err(ClientError::InvalidAnswer("a document of the wrong length")),
    }
}

/// Reads all bytes of the main lane; fails if there are more than `most`.
async fn collect(receiver: &mut Receiver, most: usize) -> Result<Vec<u8>, ClientError> {
    let mut all = Vec::new();
    while let Some(chunk) = receiver.recv().await? {
        if chunk.lane != Lane::Main {
            return Err(ClientError::InvalidAnswer("unexpected stderr output"));
        }
        if all.len() + chunk.bytes.len() > most {
            return Err(ClientError::TooLarge(most));
        }
        all.extend_from_slice(&chunk.bytes);
    }
    Ok(all)
}

/// Parses the answer, or the length of the document that contains it.
fn read_answer<T: DeserializeOwned>(text: &[u8]) -> Result<Result<T, usize>, ClientError> {
    match serde_json::from_slice(text) {
        Ok(Answer::Ok(done)) => Ok(Ok(done)),
        Ok(Answer::Document(length)) => Ok(Err(length)),
        Ok(Answer::Refused(refusal)) => Err(ClientError::Refused(sanitize(refusal))),
        Err(_) => Err(ClientError::InvalidAnswer("it does not match the request")),
    }
}

/// Truncates the texts of a refusal and removes control characters, because they reach logs and terminals.
fn sanitize(mut refusal: Refusal) -> Refusal {
    let clean = |text: &str| -> String {
        text.chars().take(MAX_MESSAGE).map(|c| if c.is_control() { ' ' } else { c }).collect()
    };
    refusal.message = clean(&refusal.message);
    refusal.missing.truncate(MAX_MISSING);
    refusal.missing.iter_mut().for_each(|name| *name = clean(name));
    refusal
}
