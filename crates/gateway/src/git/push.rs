//! Pushes to a forge. The gate decides about and records which refs of which repository are updated from and to which
//! commits; the pack is streamed through without being stored.

mod grants;
mod operation;
mod outcome;
mod pending;
mod person;
mod receive;
mod report;
mod request;
mod slots;

use std::io;
use std::pin::pin;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use gate::{CallRequest, Permit};
use proto::{JsonObject, SessionId};
use reqwest::header::HeaderMap;
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use store::{Repo, StoreError};
use tokio::sync::{mpsc, oneshot};

use self::report::ReportReader;
use self::request::{PushRequest, RefUpdate};
use super::GitService;
use super::call::Initiator;
use super::forge::{ForgeError, canonical_url};
use crate::outbound::lively;

pub(crate) use grants::PushGrants;
pub(crate) use operation::{GIT_SOURCE, Operation};
pub(crate) use outcome::PushOutcome;
pub(super) use request::is_object_id;
pub(crate) use slots::PushSlots;

const RECEIVE_PACK: &str = "/git-receive-pack";

/// A push that has arrived and is not forwarded yet. Its request body belongs to it.
pub(crate) struct Push {
    repo: Repo,
    request: PushRequest,
    /// The operation of each update.
    operations: Vec<Operation>,
    headers: HeaderMap,
    body: PushBody,
    /// Receives the forge's response, which is then sent to git.
    response: oneshot::Sender<ForgeResponse>,
}

/// The forge's response to a push.
struct ForgeResponse {
    body: Vec<u8>,
    /// The first line that the forge sent for people.
    message: Option<String>,
}

impl Push {
    /// How many refs it would update.
    pub(crate) fn ref_count(&self) -> usize {
        self.request.updates.len()
    }

    /// The updates as policy sees them and the ledger keeps them.
    pub(crate) fn description(&self) -> JsonObject {
        let describe = |(update, operation): (&RefUpdate, &Operation)| {
            json!({
                "ref": update.name, "old": update.old, "new": update.new, "operation": operation.tool(),
            })
        };
        let updates: Vec<Value> = self.request.updates.iter().zip(&self.operations).map(describe).collect();
        let repository = canonical_url(&self.repo).map(String::from).unwrap_or_default();
        JsonObject::from_iter([
            ("repository".to_owned(), json!(repository)),
            ("updates".to_owned(), json!(updates)),
        ])
    }

    /// The push as a request to the gate, which decides about it by its most dangerous operation.
    async fn call(
        &self,
        git: &GitService,
        session: SessionId,
        initiator: Initiator,
    ) -> Result<CallRequest, StoreError> {
        let subject = self.request.updates.first().map_or("", |update| &update.name);
        let tool = Operation::of_all(&self.operations).tool();
        let parameters = Value::Object(self.description());
        git.call((self.repo.org_id, session, initiator), tool, subject, parameters).await
    }
}

/// The bytes of a push as they arrive: chunks, then `None`. A sender that is dropped before `None` was disconnected.
struct PushBody(mpsc::Receiver<Option<io::Result<Bytes>>>);

impl PushBody {
    fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        stream::unfold(Some(self.0), |chunks| async {
            let mut chunks = chunks?;
            match chunks.recv().await {
                Some(chunk) => Some((chunk?, Some(chunks))),
                // The forge must not mistake a truncated pack for a complete one.
                None => Some((Err(io::ErrorKind::ConnectionReset.into()), None)),
            }
        })
    }
}

/// Forwards a push to its forge, with the organization's credential.
pub(crate) async fn forward(git: &GitService, permit: &Permit, push: Push) -> PushOutcome {
    try_forward(git, permit, push).await.unwrap_or_else(|failure| failure)
}

async fn try_forward(git: &GitService, permit: &Permit, push: Push) -> Result<PushOutcome, PushOutcome> {
    let forge = git.forge_repo(permit, &push.repo).await.map_err(|error| no_access(&error))?;
    let request = forge.request(Method::POST, RECEIVE_PACK).headers(push.headers);
    let sent = request.body(reqwest::Body::wrap_stream(push.body.into_stream())).send().await;
    let response = sent.map_err(|error| {
        let connected = !error.is_connect();
        tracing::warn!(run = permit.run_id(), error = %error.without_url(), "a push was interrupted");
        if connected { PushOutcome::Unknown } else { PushOutcome::Unreachable }
    })?;
    check_status(response.status())?;
    let mut reader = ReportReader::new(&push.request);
    let mut chunks = pin!(lively(response.bytes_stream()));
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| PushOutcome::Unknown)?;
        reader.feed(&chunk).ok_or(PushOutcome::Unknown)?;
    }
    let (outcome, response) = reader.finish().ok_or(PushOutcome::Unknown)?;
    // git may have disconnected; its run is still recorded.
    let _ = push.response.send(response);
    Ok(outcome)
}

fn no_access(error: &ForgeError) -> PushOutcome {
    match error {
        ForgeError::Store(_) | ForgeError::Vault(_) | ForgeError::Outbound(_) => {
            tracing::error!(%error, "a push could not be forwarded");
            PushOutcome::Unavailable
        }
        other => PushOutcome::ForgeNotAllowed { reason: other.to_string() },
    }
}

fn check_status(status: StatusCode) -> Result<(), PushOutcome> {
    match status {
        StatusCode::OK => Ok(()),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(PushOutcome::CredentialRefused),
        StatusCode::NOT_FOUND => Err(PushOutcome::NoRepository),
        other => Err(PushOutcome::UnexpectedStatus { status: other.as_u16() }),
    }
}
