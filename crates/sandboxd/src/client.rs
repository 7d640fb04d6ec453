//! The host's side. The inside may be in anybody's hands: what it answers is bounded, parsed and cut to size, and
//! whoever waits for it waits for a limited time.

mod calls;
mod exec;

use std::time::Duration;

use bytes::Bytes;
use channel::{Caller, HandshakeError, Key, Lane, Limits, Receiver, Stream, StreamError};
use clock::Rng;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

pub use calls::{Connection, FileContent, LogStream};
pub use exec::{Collected, ExecControl, ExecHandle, ExecInput, ExecOutput};

use crate::protocol::{Answer, MAX_DOCUMENT, Refusal, Request};

/// Longer texts of the inside are cut.
const MAX_MESSAGE: usize = 512;
const MAX_MISSING: usize = 1_000;

/// Why the inside did not do what it was asked for.
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
    #[error("the sandbox answered nonsense: {0}")]
    Nonsense(&'static str),
    #[error("the request cannot be written")]
    BadRequest,
}

/// The inside of one sandbox. Clones share the channel, which ends when all are gone.
#[derive(Clone)]
pub struct Sandboxd {
    caller: Caller,
    patience: Duration,
}

impl Sandboxd {
    /// How long an answer may take, unless [`Sandboxd::with_patience`] says otherwise.
    pub const PATIENCE: Duration = Duration::from_secs(30);

    /// Shakes hands over `io` (which should not delay small writes) and runs the channel in a task of its own.
    pub async fn connect<Io>(io: Io, key: &Key, limits: Limits, rng: &Rng) -> Result<Self, HandshakeError>
    where
        Io: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (caller, driver) = channel::connect(io, key, limits, rng).await?;
        // Why it ended is told to every conversation.
        tokio::spawn(driver.run());
        Ok(Self { caller, patience: Self::PATIENCE })
    }

    /// Whether the channel has ended, as one does that was silent for too long: only a new one reaches the inside then.
    pub fn is_closed(&self) -> bool {
        self.caller.is_closed()
    }

    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    async fn open(&self, request: &Request) -> Result<Stream, ClientError> {
        let request = serde_json::to_vec(request).map_err(|_| ClientError::BadRequest)?;
        self.within(async { Ok(self.caller.open(request).await?) }).await
    }

    /// A request that is answered at once, with no bytes beside it.
    async fn call<T: DeserializeOwned>(&self, request: &Request) -> Result<T, ClientError> {
        let mut stream = self.open(request).await?;
        stream.sender.end();
        self.within(collect_answer(&mut stream.receiver)).await
    }

    /// A request with a JSON body that may be longer than a frame.
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
        self.within(sending).await
    }

    async fn within<T>(&self, work: impl Future<Output = Result<T, ClientError>>) -> Result<T, ClientError> {
        timeout(self.patience, work).await.unwrap_or(Err(ClientError::TimedOut))
    }
}

/// Sends and ends. That the inside has finished before it took all is no fault: its answer says why.
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
            read_answer(&document)?.map_err(|_| ClientError::Nonsense("a document within a document"))
        }
        Err(_) => Err(ClientError::Nonsense("a document of another length")),
    }
}

/// All bytes of the main lane, if they are no more than `most`.
async fn collect(receiver: &mut Receiver, most: usize) -> Result<Vec<u8>, ClientError> {
    let mut all = Vec::new();
    while let Some(chunk) = receiver.recv().await? {
        if chunk.lane != Lane::Main {
            return Err(ClientError::Nonsense("errors where there are none"));
        }
        if all.len() + chunk.bytes.len() > most {
            return Err(ClientError::TooLarge(most));
        }
        all.extend_from_slice(&chunk.bytes);
    }
    Ok(all)
}

/// The answer, or the length of the document that holds it.
fn read_answer<T: DeserializeOwned>(text: &[u8]) -> Result<Result<T, usize>, ClientError> {
    match serde_json::from_slice(text) {
        Ok(Answer::Ok(done)) => Ok(Ok(done)),
        Ok(Answer::Document(length)) => Ok(Err(length)),
        Ok(Answer::Refused(refusal)) => Err(ClientError::Refused(tamed(refusal))),
        Err(_) => Err(ClientError::Nonsense("not an answer to this request")),
    }
}

/// The texts of a refusal end in logs and on screens.
fn tamed(mut refusal: Refusal) -> Refusal {
    let tame = |text: &str| -> String {
        text.chars().take(MAX_MESSAGE).map(|c| if c.is_control() { ' ' } else { c }).collect()
    };
    refusal.message = tame(&refusal.message);
    refusal.missing.truncate(MAX_MISSING);
    refusal.missing.iter_mut().for_each(|name| *name = tame(name));
    refusal
}
