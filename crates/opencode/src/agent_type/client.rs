//! The gateway's calls as requests of OpenCode's API.

use std::time::Duration;

use agent::{
    AgentClient, AgentError, AgentSession, AllowBytes, EventBatch, EventStream, History, MAX_BATCH_BYTES,
    MAX_BATCH_EVENTS, Prompt,
};
use async_trait::async_trait;
use proto::socket::QuestionKind;

use super::Dialer;
use crate::api::{ApiError, Client, Events};

const REJECT: &str = "reject";

#[async_trait]
impl AgentClient for Client<Dialer> {
    async fn check_health(&self) -> Result<(), AgentError> {
        Ok(self.health().await.map(drop)?)
    }

    async fn wait_until_listening(&self, limit: Duration) -> Result<(), AgentError> {
        Ok(Self::wait_until_listening(self, limit).await.map(drop)?)
    }

    async fn wait_until_ready(&self, limit: Duration) -> Result<(), AgentError> {
        Ok(Self::wait_until_ready(self, limit).await.map(drop)?)
    }

    async fn knows_model(&self, model: &str) -> Result<bool, AgentError> {
        Ok(self.has_model(model).await?)
    }

    async fn reload(&self) -> Result<(), AgentError> {
        Ok(self.dispose().await?)
    }

    async fn events(&self) -> Result<Box<dyn EventStream>, AgentError> {
        Ok(Box::new(Self::events(self).await?))
    }

    async fn open_session(
        &self,
        known: Option<&str>,
        title: Option<&str>,
    ) -> Result<AgentSession, AgentError> {
        if let Some(id) = known
            && self.has_session(id).await?
        {
            return Ok(AgentSession { id: id.to_owned(), remembered: true });
        }
        Ok(AgentSession { id: self.create_session(title).await?, remembered: false })
    }

    async fn prompt(&self, session: &str, prompt: &Prompt<'_>) -> Result<(), AgentError> {
        Ok(Self::prompt(self, session, prompt).await?)
    }

    async fn cancel(&self, session: &str) -> Result<(), AgentError> {
        Ok(self.abort(session).await?)
    }

    async fn answer(
        &self,
        request: &str,
        kind: QuestionKind,
        answers: &[Vec<String>],
    ) -> Result<(), AgentError> {
        let answered = match kind {
            QuestionKind::Question => self.reply_question(request, answers).await,
            QuestionKind::Permission => {
                let reply = answers.first().and_then(|texts| texts.first());
                self.reply_permission(request, reply.map_or(REJECT, String::as_str)).await
            }
        };
        answered.map_err(about_a_request)
    }

    async fn reject(&self, request: &str, kind: QuestionKind) -> Result<(), AgentError> {
        let rejected = match kind {
            QuestionKind::Question => self.reject_question(request).await,
            QuestionKind::Permission => self.reply_permission(request, REJECT).await,
        };
        rejected.map_err(about_a_request)
    }

    async fn history(
        &self,
        session: &str,
        back_to: &str,
        allow: &mut AllowBytes<'_>,
    ) -> Result<History, AgentError> {
        let mut history = Self::history(self, session, back_to, allow).await?;
        // If the agent cannot list its requests, we assume that none was missed.
        history.requests = self.pending_requests().await.unwrap_or_default();
        Ok(history)
    }
}

/// OpenCode refuses the answer to a request that it does not know with one of these statuses.
fn about_a_request(error: ApiError) -> AgentError {
    match error {
        ApiError::Refused { status: 400 | 404, .. } => AgentError::UnknownQuestion,
        other => other.into(),
    }
}

#[async_trait]
impl EventStream for Events {
    async fn next(&mut self) -> Result<Option<EventBatch>, AgentError> {
        let mut batch = EventBatch::default();
        let mut bytes = 0;
        // Nothing is awaited after the first event, because the future may be dropped.
        let mut next = match Self::next(self).await {
            Ok(None) => return Ok(None),
            Ok(Some(event)) => Some(Ok(event)),
            Err(error @ ApiError::Event(_)) => Some(Err(error)),
            Err(error) => return Err(error.into()),
        };
        while let Some(event) = next {
            match event {
                Ok(event) => {
                    bytes += event.len();
                    batch.events.push(event);
                }
                Err(error) => batch.skipped.push(error.into()),
            }
            let is_full = batch.events.len() + batch.skipped.len() >= MAX_BATCH_EVENTS;
            next = if is_full || bytes >= MAX_BATCH_BYTES { None } else { self.next_buffered() };
        }
        Ok(Some(batch))
    }
}
