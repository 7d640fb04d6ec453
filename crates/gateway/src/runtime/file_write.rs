//! A file that a member writes into a sandbox, as an effect of the gate.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Outside, Permit};
use parking_lot::Mutex;
use sandboxd::protocol::{Place, Stat};
use sandboxd::{ClientError, Sandboxd};

/// A large file on a slow disk takes long.
const WRITE_TIMEOUT: Duration = Duration::from_mins(5);

/// The content of a file and where it belongs.
pub(crate) struct FileWrite {
    pub(crate) place: Place,
    pub(crate) content: Bytes,
    pub(crate) mode: u32,
}

/// The answer of the supervisor, once it has arrived.
pub(crate) type WriteAnswer = Arc<Mutex<Option<Result<Stat, ClientError>>>>;

/// The effect of the tool `write_file`.
pub(crate) struct WriteFile {
    supervisor: Sandboxd,
    write: FileWrite,
    answer: WriteAnswer,
}

impl WriteFile {
    pub(crate) fn new(supervisor: Sandboxd, write: FileWrite) -> (Self, WriteAnswer) {
        let answer = WriteAnswer::default();
        (Self { supervisor, write, answer: answer.clone() }, answer)
    }
}

impl Outside for WriteFile {
    /// Not safe to replay: the agent may have changed the file since.
    fn replay_safe(&self) -> bool {
        false
    }

    fn timeout(&self) -> Option<Duration> {
        Some(WRITE_TIMEOUT)
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        _: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        async move {
            let answer = write(permit, &self.supervisor, &self.write).await;
            // The outcome is recorded, so it has no text of the sandbox.
            let outcome = match &answer {
                Ok(_) => Ok(Output { text: "the file was written".to_owned(), data: None }),
                Err(ClientError::Refused(refusal)) => {
                    Err(Failure::Refused(format!("the file was not written: {:?}", refusal.code)))
                }
                Err(_) => Err(Failure::Late),
            };
            *self.answer.lock() = Some(answer);
            outcome
        }
        .boxed()
    }
}

/// Replaces a file, and creates the directories that are missing.
async fn write(_: &Permit, supervisor: &Sandboxd, write: &FileWrite) -> Result<Stat, ClientError> {
    supervisor.write_file(write.place.clone(), write.content.clone(), Some(write.mode)).await
}
