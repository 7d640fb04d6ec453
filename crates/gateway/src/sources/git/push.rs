//! `git.push` and its dangerous relatives: passes a push on to the forge, with the organisation's credential. The pack goes through as it comes; what
//! is decided about, hashed and recorded is which refs of which repository are to become what.

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use policy::{ModeKey, Risk};
use proto::JsonObject;
use proto::SessionId;
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use store::Repo;
use tokio::sync::{mpsc, oneshot};

use super::super::{Failure, Output, Outside, Tool, Work};
use super::Operation;
use crate::app::AppState;
use crate::gate::{Answered, Call, Gate, Permit};
use crate::outbound::lively;
use crate::runtime::{AnswerReader, ForgeError, PushUpdate, PushWanted, Pushed, access};

/// The longest that a large repository may take.
const TIMEOUT: Duration = Duration::from_mins(30);
const RECEIVE: &str = "/git-receive-pack";
/// The pushes of one session at a time whose commits are held in memory.
const PER_SESSION: usize = 4;

/// A push that came, to be passed on.
pub(crate) struct Push {
    pub(crate) repo: Repo,
    pub(crate) wanted: PushWanted,
    /// What each of the updates is.
    pub(crate) operations: Vec<Operation>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Arriving,
    /// Where what the forge says goes.
    pub(crate) told: oneshot::Sender<Vec<u8>>,
}

impl Push {
    /// The updates as they are decided about and recorded.
    pub(super) fn updates(&self) -> Vec<Value> {
        let one = |(update, operation): (&PushUpdate, &Operation)| {
            json!({
                "ref": update.name, "old": update.old, "new": update.new, "operation": operation.tool(),
            })
        };
        self.wanted.updates.iter().zip(&self.operations).map(one).collect()
    }
}

/// The bytes of a push as they come: pieces, and then `None`. A sender that goes away without that broke off.
pub(crate) struct Arriving(pub(crate) mpsc::Receiver<Option<io::Result<Bytes>>>);

impl Arriving {
    fn stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        stream::unfold(Some(self.0), |pieces| async {
            let mut pieces = pieces?;
            match pieces.recv().await {
                Some(piece) => Some((piece?, Some(pieces))),
                // A pack without its end must not look whole.
                None => Some((Err(io::ErrorKind::ConnectionReset.into()), None)),
            }
        })
    }
}

/// Pushes that wait for the gate, by their runs: a call is a value that can be kept, and a body is not.
#[derive(Default)]
pub struct Pushes {
    waiting: Mutex<HashMap<String, Push>>,
    /// How many there are of each session, from their first byte on.
    arriving: Mutex<HashMap<SessionId, usize>>,
}

/// A push that counts for its session until this is dropped.
pub(crate) struct Slot<'a> {
    pushes: &'a Pushes,
    session: SessionId,
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        let mut arriving = self.pushes.arriving();
        let left = arriving.get(&self.session).map_or(0, |count| count - 1);
        if left == 0 {
            arriving.remove(&self.session);
        } else {
            arriving.insert(self.session, left);
        }
    }
}

impl Pushes {
    /// `None` for a session that has too many under way: each is held in memory until its commits are known.
    pub(crate) fn begin(&self, session: SessionId) -> Option<Slot<'_>> {
        let mut arriving = self.arriving();
        let count = arriving.entry(session).or_default();
        if *count == PER_SESSION {
            return None;
        }
        *count += 1;
        Some(Slot { pushes: self, session })
    }

    fn arriving(&self) -> MutexGuard<'_, HashMap<SessionId, usize>> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<String, Push>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has the gate decide about a push and do it. What is not passed on is gone when this returns.
pub(crate) async fn perform(app: &AppState, call: Call, push: Push) -> Answered {
    let _waiting = Waiting { app, run_id: call.run_id.clone() };
    app.pushes.waiting().insert(call.run_id.clone(), push);
    Gate::call(app, call).await
}

struct Waiting<'a> {
    app: &'a AppState,
    run_id: String,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.app.pushes.waiting().remove(&self.run_id);
    }
}

pub(super) struct PushTool(pub(super) Operation);

impl Tool for PushTool {
    fn risk(&self) -> Risk {
        if self.0 == Operation::Push { Risk::Write } else { Risk::Danger }
    }

    fn mode_key(&self) -> Option<ModeKey> {
        self.0.mode_key()
    }

    fn refs(&self, parameters: &Value) -> Vec<String> {
        let updates = parameters["updates"].as_array().into_iter().flatten();
        updates.filter_map(|update| update["ref"].as_str()).map(str::to_owned).collect()
    }

    fn timeout(&self) -> Duration {
        TIMEOUT
    }

    /// A mode allows one operation, so a push may not hide another behind it.
    fn check(&self, parameters: &Value) -> Result<(), String> {
        let mut updates = parameters["updates"].as_array().into_iter().flatten();
        if updates.all(|update| update["operation"] == self.0.tool()) {
            return Ok(());
        }
        Err("push deletions, forced updates, tags and ordinary updates separately".to_owned())
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

impl Outside for PushTool {
    /// Somebody else may have pushed in between, and the pack is gone.
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(
        &'a self,
        app: &'a AppState,
        permit: &'a Permit,
        _: &'a Call,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        async move {
            let found = app.pushes.waiting().remove(permit.run_id());
            let nothing = || Failure::Invalid("a push begins with git in the session's sandbox".to_owned());
            pass_on(app, found.ok_or_else(nothing)?).await
        }
        .boxed()
    }
}

async fn pass_on(app: &AppState, push: Push) -> Result<Output, Failure> {
    let access = access(app, &push.repo).await.map_err(|error| unreached(&error))?;
    let (all, updates) = (push.wanted.updates.len(), push.updates());
    let request = access.git(Method::POST, RECEIVE).headers(push.headers);
    let sent = request.body(reqwest::Body::wrap_stream(push.body.stream())).send().await;
    let answer = sent.map_err(broken)?;
    refused_by(answer.status())?;
    let mut reader = AnswerReader::new(&push.wanted);
    let mut pieces = pin!(lively(answer.bytes_stream()));
    while let Some(piece) = pieces.next().await {
        reader.feed(&piece.map_err(|_| unknown())?).ok_or_else(senseless)?;
    }
    let (pushed, told) = reader.end().ok_or_else(senseless)?;
    // Whoever pushed may be gone; what became of it is recorded all the same.
    let _ = push.told.send(told);
    match pushed {
        Pushed::All | Pushed::Untold => {}
        Pushed::Some(taken) => return Err(Failure::Refused(format!("the forge took {taken} of {all} refs"))),
        Pushed::NotUnpacked => {
            return Err(Failure::Refused("the forge could not unpack the push".to_owned()));
        }
    }
    let mut data = JsonObject::new();
    data.insert("repository".to_owned(), json!(access.url.as_str()));
    data.insert("updates".to_owned(), json!(updates));
    Ok(Output { text: format!("pushed {all} refs"), data: Some(data) })
}

fn unreached(error: &ForgeError) -> Failure {
    match error {
        ForgeError::Store(_) | ForgeError::Vault(_) | ForgeError::Outbound(_) => {
            tracing::error!(%error, "a push could not begin");
            Failure::Down("the gateway cannot reach the forge now".to_owned())
        }
        other => Failure::Refused(other.to_string()),
    }
}

fn broken(error: reqwest::Error) -> Failure {
    let unreached = error.is_connect();
    tracing::warn!(error = %error.without_url(), "a push was broken off");
    if unreached {
        return Failure::Down("the forge cannot be reached: nothing was pushed".to_owned());
    }
    unknown()
}

fn unknown() -> Failure {
    Failure::Refused("the connection broke: whether the forge took the push is unknown".to_owned())
}

fn senseless() -> Failure {
    Failure::Refused("the forge's answer makes no sense: whether it took the push is unknown".to_owned())
}

fn refused_by(status: StatusCode) -> Result<(), Failure> {
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            Err(Failure::Refused("the forge refused the organisation's credential".to_owned()))
        }
        StatusCode::NOT_FOUND => Err(Failure::Refused("the forge has no such repository".to_owned())),
        other => Err(Failure::Refused(format!("the forge answered {}", other.as_u16()))),
    }
}
