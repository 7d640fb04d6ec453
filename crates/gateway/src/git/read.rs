//! Reads at a forge as calls of the gate. Git makes several requests for one fetch or push, and they share one call: it
//! opens the credential once, serves what git asks for, and ends when git asks for nothing more. So a fetch is one run in
//! the ledger.

use std::collections::HashMap;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use gate::{CallOutcome, CallRequest, Failure, Output, Outside, Permit};
use parking_lot::Mutex;
use proto::{RepoId, SessionId};
use serde_json::json;
use store::{Repo, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::GitService;
use super::call::Initiator;
use super::forge::{ForgeError, ForgeRepo, canonical_url};

/// The tool that every read at a forge is a call of.
pub(crate) const FETCH_TOOL: &str = "git.fetch";
/// A call ends when git asks for nothing during this time.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// The longest that a call accepts further requests, so that a change of the policy or the safety lock takes effect.
const MAX_DURATION: Duration = Duration::from_secs(30);
const MAX_WAITING: usize = 16;
const MAX_SERVED: usize = 16;
/// How often the gate is asked again while it is not available, and the pause in between. Sessions start again with the
/// gateway, before the safety lock has been read.
const MAX_ATTEMPTS: u32 = 10;
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The reader, and the session for which it reads.
pub(super) type Reader = (SessionId, Initiator);

type Request = Box<dyn for<'a> FnOnce(&'a ForgeRepo<'a>) -> BoxFuture<'a, ()> + Send>;

/// The calls that are open.
#[derive(Default)]
pub(crate) struct ForgeReads(Mutex<HashMap<(Reader, RepoId), mpsc::Sender<Request>>>);

impl ForgeReads {
    fn find(&self, reader: Reader, repo: RepoId) -> Option<mpsc::Sender<Request>> {
        let open = self.0.lock();
        // What git asks for while the gateway itself clones belongs to the gateway's call.
        let own = open.get(&((reader.0, Initiator::System), repo));
        own.filter(|_| reader.1 == Initiator::Agent).or_else(|| open.get(&(reader, repo))).cloned()
    }

    fn insert(&self, reader: Reader, repo: RepoId, requests: mpsc::Sender<Request>) {
        self.0.lock().insert((reader, repo), requests);
    }

    fn remove_closed(&self) {
        self.0.lock().retain(|_, requests| !requests.is_closed());
    }
}

/// Why a forge is not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(transparent)]
    Forge(#[from] ForgeError),
    #[error("Denied by policy: {0}")]
    Denied(String),
    /// The gate cannot decide now, or the call ended before the request was served.
    #[error("{0}")]
    Unavailable(String),
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl GitService {
    /// Does something that reads a repository at its forge, in an open call of the gate or in a new one.
    pub(super) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        reader: Reader,
        repo: &Repo,
        work: impl for<'a> FnOnce(&'a ForgeRepo<'a>) -> BoxFuture<'a, T> + Send + 'static,
    ) -> Result<T, ReadError> {
        let (sender, answer) = oneshot::channel();
        let request: Request = Box::new(|forge| {
            async {
                // Sending fails if the client has disconnected.
                let _ = sender.send(work(forge).await);
            }
            .boxed()
        });
        let unserved = match self.reads.find(reader, repo.id) {
            Some(open) => open.send(request).await.err().map(|unsent| unsent.0),
            None => Some(request),
        };
        if let Some(request) = unserved {
            let requests = self.open_read(reader, repo, ReadEnd::Idle).await?;
            // If this fails, the answer does not come.
            let _ = requests.send(request).await;
        }
        answer
            .await
            .map_err(|_| ReadError::Unavailable("the request to the forge was interrupted".to_owned()))
    }

    /// Opens a call with the role `SYSTEM` for what git in a sandbox reads while the gateway checks a repository out. The
    /// call ends with the result. `None` if there is no forge to read.
    pub(super) async fn read_as_system(
        self: &Arc<Self>,
        session: SessionId,
        repo: &Repo,
    ) -> Result<Option<DropGuard>, ReadError> {
        if !canonical_url(repo).is_some_and(|url| url.has_host()) {
            return Ok(None);
        }
        let reader = (session, Initiator::System);
        for attempt in 1.. {
            let ended = CancellationToken::new();
            match self.open_read(reader, repo, ReadEnd::Cancelled(ended.clone())).await {
                Err(ReadError::Unavailable(_)) if attempt < MAX_ATTEMPTS => sleep(RETRY_DELAY).await,
                Err(error) => return Err(error),
                Ok(_) => return Ok(Some(ended.drop_guard())),
            }
        }
        Ok(None)
    }

    async fn open_read(
        self: &Arc<Self>,
        (session, initiator): Reader,
        repo: &Repo,
        end: ReadEnd,
    ) -> Result<mpsc::Sender<Request>, ReadError> {
        let parameters = json!({"repository": canonical_url(repo).map(String::from)});
        let call = self.call((repo.org_id, session, initiator), FETCH_TOOL, &repo.name, parameters).await?;
        let (sender, requests) = mpsc::channel(MAX_WAITING);
        let (opening, opened) = oneshot::channel();
        let start = Mutex::new(Some((opening, requests)));
        let effect = ForgeRead { git: self.clone(), repo: repo.clone(), start, end };
        let gate = self.gate.clone();
        let call = tokio::spawn(async move { gate.call_with(call, Box::new(effect)).await });
        let Ok(opened) = opened.await else {
            let result = call.await.map_err(|error| ReadError::Unavailable(error.to_string()))?;
            let reason = result.text().to_owned();
            return Err(match result.outcome {
                CallOutcome::Failed(_) | CallOutcome::Conflict => ReadError::Denied(reason),
                _ => ReadError::Unavailable(reason),
            });
        };
        opened?;
        self.reads.insert((session, initiator), repo.id, sender.clone());
        Ok(sender)
    }
}

/// The reason why a call ends.
enum ReadEnd {
    Idle,
    Cancelled(CancellationToken),
}

type Start = (oneshot::Sender<Result<(), ForgeError>>, mpsc::Receiver<Request>);

/// The effect of a call: a repository at its forge that serves requests.
struct ForgeRead {
    git: Arc<GitService>,
    repo: Repo,
    /// What reports whether the forge may be read, and the requests.
    start: Mutex<Option<Start>>,
    end: ReadEnd,
}

impl Outside for ForgeRead {
    /// Not safe to replay: git has disconnected.
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        _: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        let start = self.start.lock().take();
        async move {
            let served = || Failure::Refused("this repository was read before".to_owned());
            let (opening, mut requests) = start.ok_or_else(served)?;
            let forge = match self.git.forge_repo(permit, &self.repo).await {
                Ok(forge) => forge,
                Err(error) => {
                    let failure = failure(&error);
                    let _ = opening.send(Err(error));
                    return Err(failure);
                }
            };
            let _ = opening.send(Ok(()));
            let count = self.serve(&forge, &mut requests).await;
            self.git.reads.remove_closed();
            Ok(Output { text: format!("the forge was asked {count} times"), data: None })
        }
        .boxed()
    }
}

/// The failure for the ledger. What is wrong with the gateway goes to the log only.
fn failure(error: &ForgeError) -> Failure {
    match error {
        ForgeError::Store(_) | ForgeError::Vault(_) | ForgeError::Outbound(_) => {
            tracing::error!(%error, "a forge could not be read");
            Failure::Down("the gateway could not open the repository".to_owned())
        }
        other => Failure::Refused(other.to_string()),
    }
}

impl ForgeRead {
    /// Serves requests until the end, side by side: the body of a push may arrive as slowly as its sender likes. Returns
    /// their number.
    async fn serve(&self, forge: &ForgeRepo<'_>, requests: &mut mpsc::Receiver<Request>) -> usize {
        let mut count = 0;
        let mut longest = pin!(sleep(MAX_DURATION));
        let mut served = FuturesUnordered::new();
        loop {
            let (is_idle, has_room) = (served.is_empty(), served.len() < MAX_SERVED);
            tokio::select! {
                request = requests.recv(), if has_room => match request {
                    Some(request) => served.push(request(forge)),
                    None => break,
                },
                Some(()) = served.next() => count += 1,
                () = self.wait_for_end(longest.as_mut(), is_idle) => break,
            }
        }
        // What was accepted until now is served.
        requests.close();
        while let Some(request) = requests.recv().await {
            served.push(request(forge));
        }
        count + served.count().await
    }

    async fn wait_for_end(&self, longest: Pin<&mut Sleep>, is_idle: bool) {
        let end = async {
            match &self.end {
                ReadEnd::Idle => {
                    tokio::select! {
                        () = sleep(IDLE_TIMEOUT), if is_idle => {}
                        () = longest => {}
                    }
                }
                ReadEnd::Cancelled(ended) => ended.cancelled().await,
            }
        };
        tokio::select! {
            () = end => {}
            () = self.git.closing.cancelled() => {}
        }
    }
}
