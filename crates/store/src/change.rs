//! The sessions and inbox entries of an organization, each with a mark that changes when the row does: what
//! `GET /v1/changes` compares.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use proto::{OrgId, SessionId};
use uuid::Uuid;

use crate::db::read;
use crate::row::from_row;
use crate::{Store, StoreError};

/// How many sessions, the most recently active ones, and how many entries, the oldest ones, are followed.
const MAX_FOLLOWED: i64 = 1000;

/// The kind of an entry of the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum InboxKind {
    Approval,
    Question,
    Run,
}

/// An entry of the inbox by its id.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InboxKey {
    pub kind: InboxKind,
    /// The invocation, the question within its session, or the run.
    pub id: String,
    pub session: Option<SessionId>,
}

/// The marks of an organization at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeMarks {
    pub sessions: HashMap<SessionId, SessionMark>,
    pub inbox: HashMap<InboxKey, EntryMark>,
}

/// What clients show of an entry and people change while it waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryMark {
    assigned_to: Option<Uuid>,
    first_approved_by: Option<Uuid>,
    /// Each edit of a request's parameters has a hash of its own.
    edited_hash: Option<String>,
}

/// What clients show of a session in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionMark {
    status: String,
    pause_reason: Option<String>,
    outcome: Option<String>,
    title: Option<String>,
    latest_task: Option<String>,
    last_activity_at: DateTime<Utc>,
}

struct MarkedSession(SessionId, SessionMark);
struct MarkedEntry(InboxKey, EntryMark);

from_row!(MarkedSession, row => MarkedSession(
    row.try_get::<Uuid, _>("id")?.into(),
    SessionMark {
        status: row.try_get("status")?,
        pause_reason: row.try_get("pause_reason")?,
        outcome: row.try_get("outcome")?,
        title: row.try_get("title")?,
        latest_task: row.try_get("latest_task")?,
        last_activity_at: row.try_get("last_activity_at")?,
    },
));

from_row!(MarkedEntry, row => {
    let (kind, id) = match row.try_get::<Option<String>, _>("question_id")? {
        Some(question) => (InboxKind::Question, question),
        None if row.try_get::<bool, _>("is_run")? => (InboxKind::Run, row.try_get::<Uuid, _>("id")?.to_string()),
        None => (InboxKind::Approval, row.try_get::<Uuid, _>("id")?.to_string()),
    };
    let session = row.try_get::<Option<Uuid>, _>("session_id")?.map(Into::into);
    let mark = EntryMark {
        assigned_to: row.try_get("assigned_to")?,
        first_approved_by: row.try_get("first_approved_by")?,
        edited_hash: row.try_get("edited_hash")?,
    };
    MarkedEntry(InboxKey { kind, id, session }, mark)
});

const SELECT_SESSIONS: &str = "SELECT id, status, pause_reason, outcome, title, latest_task, last_activity_at
    FROM sessions WHERE org_id = $1 ORDER BY last_activity_at DESC, id LIMIT $2";
const SELECT_APPROVALS: &str =
    "SELECT i.id, NULL AS question_id, FALSE AS is_run, i.session_id, NULL AS assigned_to,
    i.first_approved_by, i.edited_hash
    FROM runs r JOIN invocations i ON i.org_id = r.org_id AND i.run_id = r.run_id
    LEFT JOIN sessions s ON s.id = i.session_id AND s.org_id = i.org_id
    WHERE r.org_id = $1 AND r.status = 'created' AND i.decided_by IS NULL AND i.expires_at > $2
    AND (s.status <> 'stopped' OR i.session_id IS NULL) ORDER BY i.created_at, i.id LIMIT $3";
const SELECT_QUESTIONS: &str =
    "SELECT q.session_id AS id, q.id AS question_id, FALSE AS is_run, q.session_id, NULL AS assigned_to,
    NULL AS first_approved_by, NULL AS edited_hash
    FROM questions q WHERE q.org_id = $1 AND q.state = 'open' AND q.expires_at > $2
    ORDER BY q.asked_at, q.id LIMIT $3";
const SELECT_RUNS: &str = "SELECT r.id, NULL AS question_id, TRUE AS is_run, r.session_id, r.assigned_to,
    NULL AS first_approved_by, NULL AS edited_hash
    FROM automation_runs r WHERE r.org_id = $1 AND r.status = 'needs_human' AND r.completed_at <= $2
    ORDER BY r.completed_at, r.id LIMIT $3";

impl Store {
    /// The marks of an organization now.
    pub async fn change_marks(&self, org: OrgId, now: DateTime<Utc>) -> Result<ChangeMarks, StoreError> {
        let org = org.uuid();
        let sessions: Vec<MarkedSession> = read!(self, pool =>
            sqlx::query_as(SELECT_SESSIONS).bind(org).bind(MAX_FOLLOWED).fetch_all(pool).await)?;
        let mut inbox = HashMap::new();
        for sql in [SELECT_APPROVALS, SELECT_QUESTIONS, SELECT_RUNS] {
            let entries: Vec<MarkedEntry> = read!(self, pool =>
                sqlx::query_as(sql).bind(org).bind(now).bind(MAX_FOLLOWED).fetch_all(pool).await)?;
            inbox.extend(entries.into_iter().map(|MarkedEntry(key, mark)| (key, mark)));
        }
        Ok(ChangeMarks {
            sessions: sessions.into_iter().map(|MarkedSession(id, mark)| (id, mark)).collect(),
            inbox,
        })
    }
}

impl ChangeMarks {
    /// The sessions and entries that are new, different or gone since the earlier marks, in order. A session that only
    /// left the list of the most recent ones is not gone.
    pub fn since(&self, earlier: &Self) -> (Vec<SessionId>, Vec<InboxKey>) {
        let full = self.sessions.len() == usize::try_from(MAX_FOLLOWED).unwrap_or(usize::MAX);
        let mut sessions = changed_keys(&self.sessions, &earlier.sessions);
        sessions.retain(|id| !full || self.sessions.contains_key(id));
        (sessions, changed_keys(&self.inbox, &earlier.inbox))
    }
}

fn changed_keys<K: Clone + Ord + std::hash::Hash, V: PartialEq>(
    now: &HashMap<K, V>,
    before: &HashMap<K, V>,
) -> Vec<K> {
    let different = now.iter().filter(|(key, mark)| before.get(key) != Some(mark)).map(|(key, _)| key);
    let gone = before.keys().filter(|key| !now.contains_key(key));
    let mut all: Vec<K> = different.chain(gone).cloned().collect();
    all.sort();
    all
}
