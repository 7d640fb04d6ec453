//! The transcript of a run when its agent reports the end, including unfinished messages. It is saved in the transaction
//! that ends the run, so that an outcome is never stored without the messages that led to it.

use std::borrow::Cow;
use std::collections::HashSet;

use proto::socket::MessageSource;
use proto::{OrgId, SessionId};

use super::RunCompletion;
use super::completion::PlannedReport;
use super::rows::{Cell, Rows, Statement};
use crate::StoredMessage;
use crate::row::{from_row, storable};
use crate::transcript::Columns;

/// The open messages of a session. Complete ones are saved when they end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpenTranscript {
    /// The complete messages include the effects of all events up to this number.
    pub seq: i64,
    pub messages: Vec<StoredMessage>,
}

/// The transcript of a session before a report.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredTranscript {
    pub(crate) end: TranscriptEnd,
    /// The ids of messages in the report that were finished, and stored, after the report was made.
    pub(crate) stored: HashSet<String>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TranscriptEnd {
    seq: i64,
    /// The position of the next message.
    position: i64,
}

from_row!(inline TranscriptEnd, row => TranscriptEnd {
    seq: row.try_get("transcript_seq")?,
    position: row.try_get("position")?,
});

/// The position of a stored message.
pub(crate) struct MessagePosition;

from_row!(inline MessagePosition, row => {
    row.try_get::<i64, _>("position")?;
    MessagePosition
});

/// Read after the session is locked, because a statement does not see what was committed while it waited for the lock.
pub(crate) const TRANSCRIPT_END: &str = "SELECT s.transcript_seq, (SELECT COALESCE(max(m.position), 0) + 1
    FROM messages m WHERE m.session_id = s.id) AS position FROM sessions s WHERE s.org_id = $1 AND s.id = $2";
pub(crate) const MESSAGE_POSITION: &str = "SELECT position FROM messages WHERE session_id = $1 AND id = $2";

impl RunCompletion {
    /// The session whose transcript it saves, and the ids of the messages as they are stored.
    pub(crate) fn messages(&self) -> (OrgId, SessionId, Vec<String>) {
        let ids = self.transcript.messages.iter().map(|message| storable(message.id.clone()));
        (self.org, self.session, ids.collect())
    }
}

/// The number up to which the transcript includes all events. It is never lowered.
pub(super) fn transcript_seq((report, _, before): &PlannedReport<'_>) -> i64 {
    report.transcript.seq.max(before.end.seq)
}

/// The messages that are not stored, with their positions.
fn new_messages<'p>(
    (report, _, before): &'p PlannedReport<'_>,
) -> impl Iterator<Item = (i64, String, &'p StoredMessage)> {
    let named = report.transcript.messages.iter().map(|message| (storable(message.id.clone()), message));
    let new = named.filter(|(id, _)| !before.stored.contains(id));
    (before.end.position..).zip(new).map(|(position, (id, message))| (position, id, message))
}

pub(super) fn messages<'a>(reports: &[PlannedReport<'a>]) -> Rows<'a> {
    let into =
        "INSERT INTO messages (session_id, id, org_id, position, role, content, is_complete, interrupted,
            sender_id, source, created_at, error) ";
    let text = |text: &Option<String>| Cell::Text(text.clone().map(storable).map(Cow::Owned));
    let rows = reports.iter().flat_map(|planned| {
        new_messages(planned).map(|(position, id, message)| {
            vec![
                Cell::from(planned.0.session.uuid()),
                Cell::from(id),
                Cell::from(planned.0.org.uuid()),
                Cell::from(position),
                Cell::from(message.role.as_str()),
                Cell::from(storable(message.content.clone())),
                Cell::from(message.is_complete),
                Cell::from(message.interrupted),
                text(&message.sender_id),
                Cell::from(message.source.map(MessageSource::as_str)),
                Cell::from(message.created_at),
                text(&message.error),
            ]
        })
    });
    Rows { statement: Statement::Insert { into, conflict: "" }, values: rows.collect() }
}

pub(super) fn parts<'a>(reports: &[PlannedReport<'a>]) -> Rows<'a> {
    let into =
        "INSERT INTO parts (session_id, message_id, id, org_id, position, kind, text, image, tool_call_id,
            tool, args, result, status, started_at, completed_at) ";
    let text = |text: Option<String>| Cell::Text(text.map(Cow::Owned));
    let mut values = Vec::new();
    for planned in reports {
        for (_, id, message) in new_messages(planned) {
            for (place, part) in (0_i64..).zip(message.parts.clone()) {
                let body = Columns::from(part.body);
                values.push(vec![
                    Cell::from(planned.0.session.uuid()),
                    Cell::from(id.clone()),
                    Cell::from(storable(part.id)),
                    Cell::from(planned.0.org.uuid()),
                    Cell::from(place),
                    Cell::from(body.kind),
                    text(body.text),
                    text(body.image),
                    text(body.call_id),
                    text(body.tool),
                    Cell::Json(body.args.map(|args| Cow::Owned(args.0.to_string()))),
                    text(body.result),
                    Cell::from(body.status),
                    Cell::from(body.started_at),
                    Cell::from(body.completed_at),
                ]);
            }
        }
    }
    Rows { statement: Statement::Insert { into, conflict: "" }, values }
}
