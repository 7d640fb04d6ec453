//! The prompt queue of a session.

use chrono::{DateTime, Utc};
use proto::socket::MessageSource;
use proto::{PromptState, SessionId};
use sqlx::types::Json;

use crate::db::{read, write};
use crate::owner::{LOCK_OWNED_SESSION, fenced};
use crate::row::{from_row, optional_word, storable, word};
use crate::{Owner, Store, StoreError};

/// A new prompt. The caller chooses its id, and the same id twice is one prompt.
#[derive(Clone, Debug)]
pub struct NewPrompt {
    pub id: String,
    pub content: String,
    /// Data URIs.
    pub images: Vec<String>,
    pub sender_id: Option<String>,
    pub source: Option<MessageSource>,
    pub at: DateTime<Utc>,
}

/// A queued or dispatched prompt without its content, which can be 32 MiB of images and stays in the database until it is
/// sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedPrompt {
    pub id: String,
    pub state: PromptState,
    /// Its size in bytes.
    pub bytes: u64,
}

from_row!(QueuedPrompt, row => QueuedPrompt {
    id: row.try_get("id")?,
    state: word(row.try_get("state")?)?,
    bytes: row.try_get::<i64, _>("bytes")?.unsigned_abs(),
});

/// A prompt with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    pub id: String,
    pub content: String,
    pub images: Vec<String>,
    pub sender_id: Option<String>,
    pub source: Option<MessageSource>,
    pub created_at: DateTime<Utc>,
}

from_row!(Prompt, row => Prompt {
    id: row.try_get("id")?,
    content: row.try_get("content")?,
    images: row.try_get::<Json<Vec<String>>, _>("images")?.0,
    sender_id: row.try_get("sender_id")?,
    source: optional_word(row.try_get("source")?)?,
    created_at: row.try_get("created_at")?,
});

impl NewPrompt {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        bytes(&self.content, &self.images)
    }
}

impl Prompt {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        bytes(&self.content, &self.images)
    }
}

fn bytes(content: &str, images: &[String]) -> u64 {
    (content.len() + images.iter().map(String::len).sum::<usize>()) as u64
}

impl Store {
    /// The number of queued prompts in all sessions.
    pub async fn waiting_prompts(&self) -> Result<i64, StoreError> {
        const SQL: &str = "SELECT count(*) FROM prompts WHERE state = 'queued'";
        Ok(read!(self, pool => sqlx::query_scalar(SQL).fetch_one(pool).await)?)
    }

    /// Appends a prompt to the queue; `false` if its id exists already, in any state.
    pub async fn queue_prompt(&self, owner: &Owner, prompt: NewPrompt) -> Result<bool, StoreError> {
        const SQL: &str = "INSERT INTO prompts (session_id, id, org_id, position, content, images, sender_id,
            source, state, created_at)
            VALUES ($1, $2, $3, (SELECT COALESCE(max(position), 0) + 1 FROM prompts WHERE session_id = $1), $4, $5,
            $6, $7, 'queued', $8) ON CONFLICT (session_id, id) DO NOTHING";
        let owner = *owner;
        let images: Vec<String> = prompt.images.into_iter().map(storable).collect();
        write!(self, Disk, tx => {
            fenced!(tx, owner, LOCK_OWNED_SESSION);
            let done = sqlx::query(SQL)
                .bind(owner.session().uuid()).bind(storable(prompt.id)).bind(owner.org().uuid())
                .bind(storable(prompt.content)).bind(Json(images)).bind(prompt.sender_id.map(storable))
                .bind(prompt.source.map(MessageSource::as_str)).bind(prompt.at)
                .execute(&mut *tx).await?;
            Ok(done.rows_affected() == 1)
        })
    }

    /// Queued and dispatched prompts, in order.
    pub async fn queued_prompts(&self, session: SessionId) -> Result<Vec<QueuedPrompt>, StoreError> {
        const SQL: &str = "SELECT id, state,
            CAST(length(content) + length(CAST(images AS TEXT)) AS BIGINT) AS bytes FROM prompts
            WHERE session_id = $1 AND state IN ('queued', 'dispatched') ORDER BY position";
        let session = session.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(session).fetch_all(pool).await)?)
    }

    /// A queued or dispatched prompt with its content.
    pub async fn unsettled_prompt(&self, session: SessionId, id: &str) -> Result<Option<Prompt>, StoreError> {
        const SQL: &str = "SELECT id, content, images, sender_id, source, created_at FROM prompts
            WHERE session_id = $1 AND id = $2 AND state IN ('queued', 'dispatched')";
        let (session, id) = (session.uuid(), id.to_owned());
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(session).bind(id).fetch_optional(pool).await)?)
    }

    /// The ids of prompts that were queued after a time, in any state.
    pub async fn prompts_since(
        &self,
        session: SessionId,
        since: DateTime<Utc>,
    ) -> Result<Vec<String>, StoreError> {
        const SQL: &str =
            "SELECT id FROM prompts WHERE session_id = $1 AND created_at > $2 ORDER BY position";
        let session = session.uuid();
        Ok(read!(self, pool => sqlx::query_scalar(SQL).bind(session).bind(since).fetch_all(pool).await)?)
    }

    /// Sets the state of a prompt.
    pub async fn set_prompt_state(
        &self,
        owner: &Owner,
        id: &str,
        state: PromptState,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE prompts SET state = $3 WHERE session_id = $1 AND id = $2";
        let (owner, id) = (*owner, id.to_owned());
        write!(self, Disk, tx => {
            fenced!(tx, owner, LOCK_OWNED_SESSION);
            let done = sqlx::query(SQL)
                .bind(owner.session().uuid()).bind(id).bind(state.as_str()).execute(&mut *tx).await?;
            if done.rows_affected() == 0 { Err(StoreError::Missing("this prompt")) } else { Ok(()) }
        })
    }
}
