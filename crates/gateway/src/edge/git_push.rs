//! A push, whoever started it: what it wants is read, the gate decides and records, and only then does a byte of it
//! reach the forge. What is refused is answered in git's own words, so that git prints the reason.

use std::io;
use std::pin::pin;

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, Response, header};
use axum::response::IntoResponse as _;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use proto::ToolErrorCode;
use store::{Repo, SandboxSession};
use tokio::sync::{mpsc, oneshot};

use super::ApiError;
use super::git_proxy::{self, bounded};
use crate::app::AppState;
use crate::gate::{Answered, Outcome};
use crate::runtime::{PUSH_GRANT, PushWanted, UpdatesReader, access, rejection};
use crate::sources::git::{Arriving, Operation, Push, classify, perform};

const LARGEST: u64 = 2 * 1024 * 1024 * 1024;
/// Pieces of a pack between its coming and its going.
const UNDER_WAY: usize = 4;
const PASSED_ON: [HeaderName; 3] =
    [header::ACCEPT, header::CONTENT_TYPE, HeaderName::from_static("git-protocol")];

type Pieces = mpsc::Sender<Option<io::Result<Bytes>>>;

pub(super) async fn push(
    app: &AppState,
    repo: &Repo,
    session: &SandboxSession,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let (parts, body) = request.into_parts();
    if parts.headers.contains_key(header::CONTENT_ENCODING) {
        return Err(ApiError::bad_request("A push comes as it is, and not encoded"));
    }
    let Some(_slot) = app.pushes.begin(session.id) else {
        return Err(ApiError::forbidden(
            "This session has too many pushes under way: wait until one has ended",
        ));
    };
    let mut pieces = pin!(bounded(body.into_data_stream(), LARGEST));
    let (wanted, (mut first, start)) = read(&mut pieces).await?;
    if wanted.updates.is_empty() {
        // Before it sends much, git asks whether it may. Nothing would change, so nobody else need be asked.
        return Ok(reply(Vec::new()));
    }
    if wanted.options {
        while pieces.next().await.is_some_and(|piece| piece.is_ok()) {}
        return refused(&wanted, "Push options are not supported: they can do anything at the forge");
    }
    let forge = access(app, repo).await.map_err(git_proxy::refusal)?;
    let operations = classify(&forge, &wanted, (&mut first, start), &mut pieces).await;
    let operations = operations.map_err(|_| ApiError::bad_request("The push broke off"))?;
    let grant = parts.headers.get(PUSH_GRANT).and_then(|token| token.to_str().ok());
    let by = app.push_grants.redeem(grant, (session.id, repo.id), &wanted, Operation::of_all(&operations));
    let (sending, body) = mpsc::channel(UNDER_WAY);
    let (told, telling) = oneshot::channel();
    let headers = passed_on(&parts.headers);
    let (repo, body) = (repo.clone(), Arriving(body));
    let push = Push { repo, wanted: wanted.clone(), operations, headers, body, told };
    let call = push.call(app, session.id, by).await?;
    tracing::info!(session = %session.id, repo = %push.repo.id, run = %call.run_id, ?by, "push");
    let (answered, ()) = tokio::join!(perform(app, call, push), pump(first.into(), pieces, sending));
    match telling.await {
        Ok(told) => Ok(reply(told)),
        Err(_) => refused(&wanted, &reason(&answered)),
    }
}

/// What the push wants, the bytes that said so, and where its pack starts in them.
async fn read(
    pieces: &mut (impl Stream<Item = io::Result<Bytes>> + Unpin),
) -> Result<(PushWanted, (Vec<u8>, usize)), ApiError> {
    let mut reader = UpdatesReader::default();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| ApiError::bad_request("The push broke off"))?;
        match reader.feed(&piece) {
            Ok(None) => {}
            Ok(Some(wanted)) => return Ok((wanted, reader.into_bytes())),
            Err(error) => return Err(ApiError::bad_request(error.to_string())),
        }
    }
    Err(ApiError::bad_request("The push broke off"))
}

/// Brings the pack to whoever takes it. What nobody takes is read all the same: git listens only when all is said.
async fn pump(first: Bytes, mut pieces: impl Stream<Item = io::Result<Bytes>> + Unpin, to: Pieces) {
    let mut taken = to.send(Some(Ok(first))).await.is_ok();
    while let Some(piece) = pieces.next().await {
        let whole = piece.is_ok();
        taken = taken && to.send(Some(piece)).await.is_ok();
        if !whole {
            return;
        }
    }
    // Whoever waits for the end learns that this is it.
    let _ = to.send(None).await;
}

fn passed_on(headers: &HeaderMap) -> HeaderMap {
    let some = |name: HeaderName| Some((name.clone(), headers.get(&name)?.clone()));
    PASSED_ON.into_iter().filter_map(some).collect()
}

fn reason(answered: &Answered) -> String {
    let said = answered.body["result"].as_str().unwrap_or_default();
    match answered.outcome {
        Outcome::Failed(ToolErrorCode::PolicyDenied) => format!("Denied by policy: {said}"),
        _ => format!("Not pushed: {said}"),
    }
}

fn refused(wanted: &PushWanted, message: &str) -> Result<Response<Body>, ApiError> {
    let short = message.split(':').next().unwrap_or_default().to_lowercase();
    match rejection(wanted, &short, message) {
        Some(told) => Ok(reply(told)),
        None => Err(ApiError::forbidden(message)),
    }
}

fn reply(told: Vec<u8>) -> Response<Body> {
    let kind = [
        (header::CONTENT_TYPE, "application/x-git-receive-pack-result"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (kind, told).into_response()
}
