//! `git.push`: passes a push on to the forge, with the organisation's credential. The pack goes through as it comes; what
//! is decided about, hashed and recorded is which refs of which repository are to become what.

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, Stream, StreamExt as _, stream};
use policy::Risk;
use proto::JsonObject;
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use store::Repo;
use tokio::sync::{mpsc, oneshot};

use super::super::{Failure, Output, Outside, Tool, Work};
use crate::app::AppState;
use crate::gate::{Answered, Call, Gate, Permit};
use crate::outbound::lively;
use crate::runtime::{AnswerReader, ForgeError, PushWanted, Pushed, access};

pub(super) const PUSH: &str = "git.push";
/// The longest that a large repository may take.
const TIMEOUT: Duration = Duration::from_mins(30);
const RECEIVE: &str = "/git-receive-pack";

/// A push that came, to be passed on.
pub(crate) struct Push {
    pub(crate) repo: Repo,
    pub(crate) wanted: PushWanted,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Arriving,
    /// Where what the forge says goes.
    pub(crate) told: oneshot::Sender<Vec<u8>>,
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
}

impl Pushes {
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

pub(super) struct PushTool;

impl Tool for PushTool {
    fn risk(&self) -> Risk {
        Risk::Write
    }

    fn timeout(&self) -> Duration {
        TIMEOUT
    }

    fn check(&self, _: &Value) -> Result<(), String> {
        Ok(())
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
    let all = push.wanted.updates.len();
    match pushed {
        Pushed::All | Pushed::Untold => {}
        Pushed::Some(taken) => return Err(Failure::Refused(format!("the forge took {taken} of {all} refs"))),
        Pushed::NotUnpacked => {
            return Err(Failure::Refused("the forge could not unpack the push".to_owned()));
        }
    }
    let mut data = JsonObject::new();
    data.insert("repository".to_owned(), json!(access.url.as_str()));
    data.insert("updates".to_owned(), json!(push.wanted.updates));
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
