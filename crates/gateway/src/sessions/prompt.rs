//! Queues a prompt of a session.

use std::sync::Arc;

use futures_util::FutureExt as _;
use proto::SessionId;
use proto::socket::MessageSource;
use serde::Serialize;

use super::idempotency::once;
use super::{RequestContext, SessionError, SessionServices};
use crate::hub::{PromptOutcome, PromptRequest};

/// A prompt that somebody sends. It is serialized to recognize a repeated request.
#[derive(Clone, Debug, Serialize)]
pub struct PromptDraft {
    pub content: String,
    /// Data URIs. Those that are not images are dropped.
    pub images: Vec<String>,
    /// The id of a user, or the name of the program that sends it.
    pub sender: String,
    pub source: MessageSource,
}

impl From<PromptDraft> for PromptRequest {
    fn from(draft: PromptDraft) -> Self {
        Self::new(draft.content, draft.images, Some(draft.sender), Some(draft.source))
    }
}

/// Queues a prompt, and returns the id of its message. The prompt is stored when this returns, and prompts become turns
/// in the order of their arrival.
pub async fn prompt(
    services: &Arc<SessionServices>,
    context: &RequestContext,
    session: SessionId,
    draft: PromptDraft,
) -> Result<String, SessionError> {
    if draft.content.trim().is_empty() {
        return Err(SessionError::Invalid("content must not be empty"));
    }
    // Without a key nothing is stored for retries, and a large prompt need not be copied.
    let Some(key) = &context.idempotency_key else { return send(services, session, draft.into()).await };
    let request =
        PromptRequest::from(draft.clone()).once(session, &format!("{} {key}", context.requester.identity()));
    // The session finds a prompt with this key and text again, so the id of the work is not needed.
    let work = |_| {
        let services = services.clone();
        async move { send(&services, session, request).await }.boxed()
    };
    once(services, context, format!("prompt session {session}"), &draft, work).await
}

/// Queues a prompt of a session, which wakes it if needed.
pub(super) async fn send(
    services: &SessionServices,
    session: SessionId,
    request: PromptRequest,
) -> Result<String, SessionError> {
    match services.hubs.open(session).await?.prompt(request).await? {
        PromptOutcome::Queued { id } => Ok(id),
        PromptOutcome::Full => Err(SessionError::QueueFull),
        PromptOutcome::Refused(refusal) => Err(refusal.into()),
    }
}
