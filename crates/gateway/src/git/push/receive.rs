//! A push that arrives from a sandbox: the gateway parses its ref updates, the gate decides and records, and only then
//! does a byte of it reach the forge. A refusal is encoded in git's protocol, so that git prints the reason.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{FutureExt as _, StreamExt as _};
use gate::CallResult;
use reqwest::header::{self, HeaderMap, HeaderName};
use store::{Repo, SandboxSession};
use tokio::sync::{mpsc, oneshot};

use super::grants::GRANT_HEADER;
use super::operation::classify;
use super::outcome::{PushOutcome, PushResult};
use super::pending::PendingPush;
use super::report::rejection;
use super::request::{PushRequest, PushRequestReader};
use super::{Operation, Push, PushBody};
use crate::git::GitService;
use crate::git::call::Initiator;
use crate::git::proxy::{ProxyError, ProxyReply, ProxyRequest, bounded};

const MAX_PUSH: u64 = 2 * 1024 * 1024 * 1024;
/// Chunks of a pack that are buffered between git and the forge.
const BUFFERED_CHUNKS: usize = 4;
const FORWARDED_HEADERS: [HeaderName; 3] =
    [header::ACCEPT, header::CONTENT_TYPE, HeaderName::from_static("git-protocol")];
const PUSH_INTERRUPTED: &str = "The push was interrupted";

type Chunks = BoxStream<'static, io::Result<Bytes>>;

impl GitService {
    /// Passes a push through the gate to the forge, and returns the response for git.
    pub(in crate::git) async fn receive_push(
        self: &Arc<Self>,
        session: &SandboxSession,
        repo: &Repo,
        request: ProxyRequest,
    ) -> Result<ProxyReply, ProxyError> {
        let ProxyRequest { headers, body, .. } = request;
        if headers.contains_key(header::CONTENT_ENCODING) {
            return Err(ProxyError::BadPush("The body of a push must not be encoded".to_owned()));
        }
        let _slot = self.push_slots.acquire(session.id).ok_or(ProxyError::TooManyPushes)?;
        let mut chunks = bounded(body, MAX_PUSH).boxed();
        let (request, (first, start)) = read_request(&mut chunks).await?;
        if request.updates.is_empty() {
            // git sends an empty push before a large one, to see whether it may push. It changes nothing.
            return Ok(reply(Vec::new()));
        }
        if request.has_options {
            while chunks.next().await.is_some_and(|chunk| chunk.is_ok()) {}
            return refuse(&request, "Push options are not supported: they can do anything at the forge");
        }
        let (reader, described) = ((session.id, Initiator::Agent), request.clone());
        let classified = self.read(reader, repo, move |forge| {
            async move {
                let (mut first, mut chunks) = (first, chunks);
                let operations = classify(forge, &described, (&mut first, start), &mut chunks).await;
                (operations, first, chunks)
            }
            .boxed()
        });
        let (operations, first, chunks) = classified.await?;
        let operations = operations.map_err(|_| ProxyError::BadPush(PUSH_INTERRUPTED.to_owned()))?;
        let grant = headers.get(GRANT_HEADER).and_then(|token| token.to_str().ok());
        let operation = Operation::of_all(&operations);
        let redeemed = self.push_grants.redeem(grant, (session.id, repo.id), &request, operation);
        let (sender, body) = mpsc::channel(BUFFERED_CHUNKS);
        let (response, forge_response) = oneshot::channel();
        let (repo, headers, body) = (repo.clone(), forwarded_headers(&headers), PushBody(body));
        let push = Push { repo, request: request.clone(), operations, headers, body, response };
        let initiator = redeemed.initiator();
        let call = push.call(self, session.id, initiator).await?;
        tracing::info!(session = %session.id, repo = %push.repo.id, run = %call.run.id, ?initiator, "push");
        let effect = Box::new(PendingPush::new(self, push));
        let called = self.gate.call_with(call, effect);
        let (answered, ()) = tokio::join!(called, send_body(first.into(), chunks, sender));
        let outcome = PushOutcome::of(&answered);
        let Ok(response) = forge_response.await else {
            let message = refusal_message(&outcome, &answered);
            redeemed.report(PushResult { outcome, message: message.clone() });
            return refuse(&request, &message);
        };
        let message = response.message.unwrap_or_else(|| outcome.text(request.updates.len()));
        redeemed.report(PushResult { outcome, message });
        Ok(reply(response.body))
    }
}

/// Parses the head of a push. Also returns all bytes that have arrived, and where the pack starts in them.
async fn read_request(chunks: &mut Chunks) -> Result<(PushRequest, (Vec<u8>, usize)), ProxyError> {
    let interrupted = || ProxyError::BadPush(PUSH_INTERRUPTED.to_owned());
    let mut reader = PushRequestReader::default();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| interrupted())?;
        match reader.feed(&chunk) {
            Ok(None) => {}
            Ok(Some(request)) => return Ok((request, reader.into_bytes())),
            Err(error) => return Err(ProxyError::BadPush(error.to_string())),
        }
    }
    Err(interrupted())
}

/// Sends the body to whoever forwards it. If nobody does, it is still read to its end: git reads the response
/// only after it has sent everything.
async fn send_body(first: Bytes, mut chunks: Chunks, to: mpsc::Sender<Option<io::Result<Bytes>>>) {
    let mut forwarding = to.send(Some(Ok(first))).await.is_ok();
    while let Some(chunk) = chunks.next().await {
        let intact = chunk.is_ok();
        forwarding = forwarding && to.send(Some(chunk)).await.is_ok();
        if !intact {
            return;
        }
    }
    // Marks the body as complete.
    let _ = to.send(None).await;
}

fn forwarded_headers(headers: &HeaderMap) -> HeaderMap {
    let copy = |name: HeaderName| Some((name.clone(), headers.get(&name)?.clone()));
    FORWARDED_HEADERS.into_iter().filter_map(copy).collect()
}

fn refusal_message(outcome: &PushOutcome, answered: &CallResult) -> String {
    let text = answered.text();
    match outcome {
        PushOutcome::Denied => format!("Denied by policy: {text}"),
        PushOutcome::Unknown => format!("Outcome unknown: {text}"),
        _ => format!("Not pushed: {text}"),
    }
}

fn refuse(request: &PushRequest, message: &str) -> Result<ProxyReply, ProxyError> {
    let reason = message.split(':').next().unwrap_or_default().to_lowercase();
    match rejection(request, &reason, message) {
        Some(body) => Ok(reply(body)),
        None => Err(ProxyError::PushRefused(message.to_owned())),
    }
}

fn reply(body: Vec<u8>) -> ProxyReply {
    ProxyReply::new("application/x-git-receive-pack-result", body)
}
