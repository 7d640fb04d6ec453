//! The transcript: messages and their parts, saved from the event log.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use proto::SessionId;
use proto::socket::MessageSource;
use sqlx::types::{Json, JsonValue};

use crate::db::{read, write};
use crate::event::append;
use crate::message::{PartBody, StoredMessage, StoredPart, StoredTool};
use crate::owner::fenced;
use crate::row::{from_row, optional_word, storable, storable_json, word};
use crate::{NewBatch, Owner, Store, StoreError};

/// Messages of a session.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// It includes the effects of all events up to this number.
    pub seq: i64,
    /// The number of earlier messages.
    pub earlier: u64,
    pub messages: Vec<StoredMessage>,
}

/// A change of a transcript.
#[derive(Clone, Debug, PartialEq)]
pub enum TranscriptWrite {
    /// A message with all its parts.
    Message(StoredMessage),
    /// Why the turn that ended with this message failed.
    Failed { message_id: String, reason: String },
}

/// The extent of a transcript.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TranscriptExtent {
    /// It includes the effects of all events up to this number.
    pub seq: i64,
    /// The complete messages.
    pub complete: HashSet<String>,
}

/// A new message gets the next position; an existing one keeps its own.
const INSERT_MESSAGE: &str = "INSERT INTO messages (session_id, id, org_id, position, role, content, is_complete,
    interrupted, sender_id, source, created_at, error)
    VALUES ($1, $2, $3, (SELECT COALESCE(max(position), 0) + 1 FROM messages WHERE session_id = $1), $4, $5, $6, $7,
    $8, $9, $10, $11)
    ON CONFLICT (session_id, id) DO UPDATE SET role = excluded.role, content = excluded.content,
    is_complete = excluded.is_complete, interrupted = excluded.interrupted, sender_id = excluded.sender_id,
    source = excluded.source, created_at = excluded.created_at, error = COALESCE(excluded.error, messages.error)";
const SET_ERROR: &str = "UPDATE messages SET error = $3 WHERE session_id = $1 AND id = $2";
const NO_PARTS: &str = "DELETE FROM parts WHERE session_id = $1 AND message_id = $2";
const INSERT_PART: &str =
    "INSERT INTO parts (session_id, message_id, id, org_id, position, kind, text, image,
    tool_call_id, tool, args, result, status, started_at, completed_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)";

impl Store {
    /// Saves messages with all their parts, and records that the transcript includes the effects of all events up to
    /// `transcript_seq`. All or nothing.
    pub async fn save_messages(
        &self,
        owner: &Owner,
        transcript_seq: i64,
        messages: Vec<StoredMessage>,
    ) -> Result<(), StoreError> {
        let writes = messages.into_iter().map(TranscriptWrite::Message).collect();
        self.save_transcript(owner, None, transcript_seq, writes).await
    }

    /// Saves changes of a transcript, together with the batch of the log that they come from if it is not
    /// appended yet. It is one transaction, so that a client that receives the end of a message can rely on the message
    /// being saved.
    pub async fn save_transcript(
        &self,
        owner: &Owner,
        batch: Option<NewBatch>,
        transcript_seq: i64,
        writes: Vec<TranscriptWrite>,
    ) -> Result<(), StoreError> {
        const ADVANCE_TRANSCRIPT: &str = "UPDATE sessions SET
            transcript_seq = CASE WHEN transcript_seq < $3 THEN $3 ELSE transcript_seq END
            WHERE id = $1 AND owner_epoch = $2";
        let owner = *owner;
        write!(self, Disk, tx => {
            // First, because numbers up to `transcript_seq` cannot be appended any more.
            if let Some(batch) = batch {
                append!(tx, owner, batch);
            }
            fenced!(tx, owner, ADVANCE_TRANSCRIPT, transcript_seq);
            let (session, org) = (owner.session().uuid(), owner.org().uuid());
            for write in writes {
                let message = match write {
                    TranscriptWrite::Message(message) => message,
                    TranscriptWrite::Failed { message_id, reason } => {
                        sqlx::query(SET_ERROR).bind(session).bind(storable(message_id)).bind(storable(reason))
                            .execute(&mut *tx).await?;
                        continue;
                    }
                };
                let id = storable(message.id);
                sqlx::query(INSERT_MESSAGE)
                    .bind(session).bind(&id).bind(org).bind(message.role.as_str())
                    .bind(storable(message.content)).bind(message.is_complete).bind(message.interrupted)
                    .bind(message.sender_id.map(storable)).bind(message.source.map(MessageSource::as_str))
                    .bind(message.created_at).bind(message.error.map(storable)).execute(&mut *tx).await?;
                sqlx::query(NO_PARTS).bind(session).bind(&id).execute(&mut *tx).await?;
                for (place, part) in (0_i64..).zip(message.parts) {
                    let body = Columns::from(part.body);
                    sqlx::query(INSERT_PART)
                        .bind(session).bind(&id).bind(storable(part.id)).bind(org).bind(place).bind(body.kind)
                        .bind(body.text).bind(body.image).bind(body.call_id).bind(body.tool).bind(body.args)
                        .bind(body.result).bind(body.status).bind(body.started_at).bind(body.completed_at)
                        .execute(&mut *tx).await?;
                }
            }
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("a part with the same id", "this message"))
    }

    /// The newest messages of a session in order, up to `max_bytes` in total but at least one, and the number
    /// that they reach.
    pub async fn transcript(&self, session: SessionId, max_bytes: usize) -> Result<Transcript, StoreError> {
        self.transcript_below(session, i64::MAX, max_bytes).await
    }

    /// The same for the messages before a message. `None`: the session has no such message.
    pub async fn transcript_before(
        &self,
        session: SessionId,
        message: Option<&str>,
        max_bytes: usize,
    ) -> Result<Option<Transcript>, StoreError> {
        const SQL: &str = "SELECT position FROM messages WHERE session_id = $1 AND id = $2";
        let Some(message) = message else { return self.transcript(session, max_bytes).await.map(Some) };
        let (id, message) = (session.uuid(), storable(message.to_owned()));
        let place: Option<i64> =
            read!(self, pool => sqlx::query_scalar(SQL).bind(id).bind(&message).fetch_optional(pool).await)?;
        match place {
            Some(place) => self.transcript_below(session, place, max_bytes).await.map(Some),
            None => Ok(None),
        }
    }

    async fn transcript_below(
        &self,
        session: SessionId,
        below: i64,
        max_bytes: usize,
    ) -> Result<Transcript, StoreError> {
        // One statement, so that no save happens in between. Only the first row of a message has its content.
        const SQL: &str = "SELECT s.transcript_seq, m.id AS message_id, m.role,
            CASE WHEN COALESCE(p.position, 0) = 0 THEN m.content ELSE '' END AS content, m.is_complete,
            m.interrupted, m.error, m.sender_id, m.source, m.created_at, p.id, p.kind, p.text, p.image, p.tool_call_id,
            p.tool, p.args, p.result, p.status, p.started_at, p.completed_at
            FROM sessions s LEFT JOIN messages m ON m.session_id = s.id AND m.position > $2 AND m.position < $3
            LEFT JOIN parts p ON p.session_id = m.session_id AND p.message_id = m.id
            WHERE s.id = $1 ORDER BY m.position, p.position";
        let (earlier, after) = self.beyond(session, below, max_bytes).await?;
        let session = session.uuid();
        let rows: Vec<Row> = read!(self, pool => sqlx::query_as(SQL).bind(session).bind(after).bind(below).fetch_all(pool).await)?;
        let mut transcript = Transcript { earlier, ..Transcript::default() };
        for row in rows {
            transcript.seq = row.seq;
            let Some(message) = row.message else { continue };
            if transcript.messages.last().is_none_or(|last| last.id != message.id) {
                transcript.messages.push(message);
            }
            if let (Some(part), Some(message)) = (row.part, transcript.messages.last_mut()) {
                message.parts.push(part);
            }
        }
        Ok(transcript)
    }

    /// How many messages before a position exceed a number of bytes, and the position of the last of them.
    async fn beyond(
        &self,
        session: SessionId,
        below: i64,
        max_bytes: usize,
    ) -> Result<(u64, i64), StoreError> {
        // Sizes as sent: a tool call is sent in the list of calls and among the parts, a text in the content
        // and, if the message has other parts too, among the parts.
        const SQL: &str = "SELECT m.position, octet_length(m.content) + CAST(COALESCE((SELECT
            sum(COALESCE(octet_length(p.image), 0) + 2 * COALESCE(octet_length(p.result), 0)
            + 2 * COALESCE(octet_length(CAST(p.args AS TEXT)), 0))
            + CASE WHEN count(*) > count(p.text) THEN COALESCE(sum(octet_length(p.text)), 0) ELSE 0 END
            FROM parts p WHERE p.session_id = m.session_id AND p.message_id = m.id), 0) AS BIGINT)
            FROM messages m WHERE m.session_id = $1 AND m.position < $2 ORDER BY m.position DESC";
        let session = session.uuid();
        let sizes: Vec<(i64, i64)> =
            read!(self, pool => sqlx::query_as(SQL).bind(session).bind(below).fetch_all(pool).await)?;
        let (mut bytes, mut kept) = (0_usize, 0);
        for (_, size) in &sizes {
            bytes = bytes.saturating_add(usize::try_from(*size).unwrap_or(usize::MAX));
            if bytes > max_bytes && kept > 0 {
                break;
            }
            kept += 1;
        }
        let beyond = &sizes[kept..];
        Ok((beyond.len() as u64, beyond.first().map_or(0, |(position, _)| *position)))
    }

    /// The extent of the transcript without its messages.
    pub async fn transcript_reach(&self, session: SessionId) -> Result<TranscriptExtent, StoreError> {
        const SQL: &str = "SELECT s.transcript_seq, m.id FROM sessions s
            LEFT JOIN messages m ON m.session_id = s.id AND m.is_complete WHERE s.id = $1";
        let session = session.uuid();
        let rows: Vec<(i64, Option<String>)> =
            read!(self, pool => sqlx::query_as(SQL).bind(session).fetch_all(pool).await)?;
        let seq = rows.first().map_or(0, |(seq, _)| *seq);
        Ok(TranscriptExtent { seq, complete: rows.into_iter().filter_map(|(_, id)| id).collect() })
    }
}

/// One part of one message. A session without messages and a message without parts have a row too.
struct Row {
    seq: i64,
    message: Option<StoredMessage>,
    part: Option<StoredPart>,
}

from_row!(Row, row => Row {
    seq: row.try_get("transcript_seq")?,
    message: match row.try_get::<Option<String>, _>("message_id")? {
        None => None,
        Some(id) => Some(StoredMessage {
            id,
            role: word(row.try_get("role")?)?,
            content: row.try_get("content")?,
            is_complete: row.try_get("is_complete")?,
            interrupted: row.try_get("interrupted")?,
            error: row.try_get("error")?,
            sender_id: row.try_get("sender_id")?,
            source: optional_word(row.try_get("source")?)?,
            created_at: row.try_get("created_at")?,
            parts: Vec::new(),
        }),
    },
    part: match row.try_get::<Option<String>, _>("id")? {
        None => None,
        Some(id) => Some(StoredPart { id, body: match row.try_get("kind")? {
            "text" => PartBody::Text(row.try_get("text")?),
            "image" => PartBody::Image(row.try_get("image")?),
            _ => PartBody::Tool(StoredTool {
                call_id: row.try_get("tool_call_id")?,
                tool: row.try_get("tool")?,
                args: row.try_get::<Json<JsonValue>, _>("args")?.0,
                result: row.try_get("result")?,
                status: word(row.try_get("status")?)?,
                started_at: row.try_get("started_at")?,
                completed_at: row.try_get("completed_at")?,
            }),
        }}),
    },
});

/// The columns of a part; columns of other kinds are NULL.
#[derive(Default)]
pub(crate) struct Columns {
    pub(crate) kind: &'static str,
    pub(crate) text: Option<String>,
    pub(crate) image: Option<String>,
    pub(crate) call_id: Option<String>,
    pub(crate) tool: Option<String>,
    pub(crate) args: Option<Json<JsonValue>>,
    pub(crate) result: Option<String>,
    pub(crate) status: Option<&'static str>,
    pub(crate) started_at: Option<DateTime<Utc>>,
    pub(crate) completed_at: Option<DateTime<Utc>>,
}

impl From<PartBody> for Columns {
    fn from(body: PartBody) -> Self {
        match body {
            PartBody::Text(text) => Self { kind: "text", text: Some(storable(text)), ..Self::default() },
            PartBody::Image(image) => Self { kind: "image", image: Some(storable(image)), ..Self::default() },
            PartBody::Tool(tool) => Self {
                kind: "tool",
                call_id: Some(storable(tool.call_id)),
                tool: Some(storable(tool.tool)),
                args: Some(Json(storable_json(tool.args))),
                result: tool.result.map(storable),
                status: Some(tool.status.as_str()),
                started_at: Some(tool.started_at),
                completed_at: tool.completed_at,
                ..Self::default()
            },
        }
    }
}
