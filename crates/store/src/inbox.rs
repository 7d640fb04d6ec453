//! The inbox of an organization: what waits for a human, the oldest first, in pages.

use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, Datelike as _, Utc};
use proto::socket::{OpenApproval, OpenQuestion, QuestionItem, QuestionKind};
use proto::{AutomationId, AutomationRunId, OrgId, SessionId, UserId};
use sqlx::types::Json;
use uuid::Uuid;

use crate::db::read;
use crate::row::{from_row, word};
use crate::{Store, StoreError};

/// Selects the entries of an inbox, and the page of them.
#[derive(Clone, Debug)]
pub struct InboxFilter {
    pub org: OrgId,
    /// Whether to include what belongs to the organization: runs of automations, and invocations without a session.
    pub of_organization: bool,
    pub limit: u32,
    pub after: Option<InboxCursor>,
}

/// Something that waits for a human.
#[derive(Clone, Debug, PartialEq)]
pub struct InboxEntry {
    pub session: Option<InboxSession>,
    pub since: DateTime<Utc>,
    pub item: InboxItem,
}

/// The session that an entry belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxSession {
    pub id: SessionId,
    pub title: Option<String>,
    pub created_by: Option<UserId>,
    pub automation: Option<(AutomationId, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum InboxItem {
    Approval {
        approval: OpenApproval,
        /// Whether it was requested with an API key.
        by_key: bool,
        /// Who made the session, or owns the API key.
        requester: Option<UserId>,
    },
    Question {
        question: OpenQuestion,
        expires_at: DateTime<Utc>,
    },
    Run {
        id: AutomationRunId,
        automation: (AutomationId, String),
        reason: Option<String>,
        assigned_to: Option<UserId>,
    },
}

/// The last entry of a page; the next page begins after it. Clients send its text back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxCursor {
    since: DateTime<Utc>,
    /// The position of the kind among entries of the same time.
    kind: i64,
    /// Questions are unique within their session only.
    session: Uuid,
    id: String,
}

/// The text is not a cursor of an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor of an inbox: use the one that the page before gave")]
pub struct InvalidInboxCursor;

const APPROVALS: i64 = 0;
const QUESTIONS: i64 = 1;
const RUNS: i64 = 2;

impl InboxCursor {
    pub fn after(last: &InboxEntry) -> Self {
        let (kind, session, id) = match &last.item {
            InboxItem::Approval { approval, .. } => {
                (APPROVALS, Uuid::nil(), approval.invocation_id.to_string())
            }
            InboxItem::Question { question, .. } => {
                let session = last.session.as_ref().map_or(Uuid::nil(), |session| session.id.uuid());
                (QUESTIONS, session, question.question_id.clone())
            }
            InboxItem::Run { id, .. } => (RUNS, Uuid::nil(), id.to_string()),
        };
        Self { since: last.since, kind, session, id }
    }

    /// The id as a UUID; the cursor of a question has none.
    fn uuid(&self) -> Option<Uuid> {
        Uuid::parse_str(&self.id).ok()
    }
}

impl fmt::Display for InboxCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { since, kind, session, id } = self;
        write!(f, "{}.{}.{kind}.{session}.{id}", since.timestamp(), since.timestamp_subsec_nanos())
    }
}

impl FromStr for InboxCursor {
    type Err = InvalidInboxCursor;

    fn from_str(text: &str) -> Result<Self, InvalidInboxCursor> {
        let mut parts = text.splitn(5, '.');
        let mut next = || parts.next().ok_or(InvalidInboxCursor);
        let (seconds, nanos, kind, session, id) = (next()?, next()?, next()?, next()?, next()?);
        let (Ok(seconds), Ok(nanos)) = (seconds.parse(), nanos.parse()) else {
            return Err(InvalidInboxCursor);
        };
        let since = DateTime::from_timestamp(seconds, nanos).filter(|at| (1970..10_000).contains(&at.year()));
        let since = since.ok_or(InvalidInboxCursor)?;
        let kind = kind.parse().map_err(|_| InvalidInboxCursor)?;
        let session = session.parse().map_err(|_| InvalidInboxCursor)?;
        let cursor = Self { since, kind, session, id: id.to_owned() };
        let valid = match kind {
            APPROVALS | RUNS => cursor.uuid().is_some(),
            QUESTIONS => !id.contains('\0'),
            _ => false,
        };
        if valid { Ok(cursor) } else { Err(InvalidInboxCursor) }
    }
}

struct Approval(InboxEntry);
struct Question(InboxEntry);
struct Run(InboxEntry);

/// The session of a row, from the columns that [`session_columns`] selects.
macro_rules! session_of {
    ($row:ident) => {
        match $row.try_get::<Option<Uuid>, _>("of_session")? {
            None => None,
            Some(id) => Some(InboxSession {
                id: id.into(),
                title: $row.try_get("title")?,
                created_by: $row.try_get::<Option<Uuid>, _>("created_by")?.map(Into::into),
                automation: $row
                    .try_get::<Option<Uuid>, _>("automation_id")?
                    .map(Into::into)
                    .zip($row.try_get::<Option<String>, _>("automation_name")?),
            }),
        }
    };
}

macro_rules! session_columns {
    () => {
        "s.id AS of_session, s.title, s.created_by, s.automation_id, a.name AS automation_name"
    };
}

from_row!(Approval, row => Approval(InboxEntry {
    session: session_of!(row),
    since: row.try_get("created_at")?,
    item: InboxItem::Approval {
        approval: OpenApproval {
            invocation_id: row.try_get::<Uuid, _>("id")?.into(),
            integration: row.try_get("integration")?,
            action: row.try_get("action")?,
            risk_level: word(row.try_get("risk")?)?,
            mode_reason: row.try_get("mode_reason")?,
            params: row.try_get::<Json<_>, _>("params")?.0,
            expires_at: row.try_get("expires_at")?,
            two_person: row.try_get("two_person")?,
            first_approved_by: row.try_get::<Option<Uuid>, _>("first_approved_by")?.map(Into::into),
            request_hash: row.try_get("request_hash")?,
        },
        by_key: row.try_get::<Option<Uuid>, _>("key_id")?.is_some(),
        requester: row.try_get::<Option<Uuid>, _>("requester")?.map(Into::into),
    },
}));

from_row!(Question, row => Question(InboxEntry {
    session: session_of!(row),
    since: row.try_get("asked_at")?,
    item: InboxItem::Question {
        question: OpenQuestion {
            question_id: row.try_get("id")?,
            kind: word::<QuestionKind>(row.try_get("kind")?)?,
            questions: row.try_get::<Json<Vec<QuestionItem>>, _>("questions")?.0,
        },
        expires_at: row.try_get("expires_at")?,
    },
}));

from_row!(Run, row => Run(InboxEntry {
    session: session_of!(row),
    since: row.try_get("completed_at")?,
    item: InboxItem::Run {
        id: row.try_get::<Uuid, _>("id")?.into(),
        automation: (row.try_get::<Uuid, _>("run_automation")?.into(), row.try_get("run_automation_name")?),
        reason: row.try_get("status_reason")?,
        assigned_to: row.try_get::<Option<Uuid>, _>("assigned_to")?.map(Into::into),
    },
}));

const APPROVALS_SQL: &str = concat!(
    "SELECT i.id, i.integration, i.action, i.risk, i.mode_reason, i.params, i.key_id, i.two_person, i.first_approved_by,
    i.expires_at, i.created_at, COALESCE(i.edited_hash, r.request_hash) AS request_hash,
    COALESCE(s.created_by, k.user_id) AS requester, ",
    session_columns!(),
    " FROM runs r JOIN invocations i ON i.org_id = r.org_id AND i.run_id = r.run_id
    LEFT JOIN sessions s ON s.id = i.session_id AND s.org_id = i.org_id
    LEFT JOIN automations a ON a.id = s.automation_id AND a.org_id = s.org_id
    LEFT JOIN api_keys k ON k.id = i.key_id AND k.org_id = i.org_id
    WHERE r.org_id = $1 AND r.status = 'created' AND i.expires_at > $2 AND i.decided_by IS NULL
    AND (s.status <> 'stopped' OR (i.session_id IS NULL AND $3))
    AND ($4 IS NULL OR i.created_at > $4 OR (i.created_at = $4 AND ($5 < 0 OR ($5 = 0 AND i.id > $6))))
    ORDER BY i.created_at, i.id LIMIT $7"
);

const QUESTIONS_SQL: &str = concat!(
    "SELECT q.id, q.kind, q.questions, q.asked_at, q.expires_at, ",
    session_columns!(),
    " FROM questions q JOIN sessions s ON s.id = q.session_id AND s.org_id = q.org_id
    LEFT JOIN automations a ON a.id = s.automation_id AND a.org_id = s.org_id
    WHERE q.org_id = $1 AND q.state = 'open' AND q.expires_at > $2
    AND ($3 IS NULL OR q.asked_at > $3 OR (q.asked_at = $3 AND ($4 < 0 OR ($4 = 0
        AND (q.id > $5 OR (q.id = $5 AND q.session_id > $6))))))
    ORDER BY q.asked_at, q.id, q.session_id LIMIT $7"
);

const RUNS_SQL: &str = concat!(
    "SELECT r.id, r.status_reason, r.assigned_to, r.completed_at, r.automation_id AS run_automation,
    o.name AS run_automation_name, ",
    session_columns!(),
    " FROM automation_runs r JOIN automations o ON o.id = r.automation_id AND o.org_id = r.org_id
    LEFT JOIN sessions s ON s.id = r.session_id AND s.org_id = r.org_id
    LEFT JOIN automations a ON a.id = s.automation_id AND a.org_id = s.org_id
    WHERE r.org_id = $1 AND r.status = 'needs_human'
    AND ($2 IS NULL OR r.completed_at > $2 OR (r.completed_at = $2 AND ($3 < 0 OR ($3 = 0 AND r.id > $4))))
    ORDER BY r.completed_at, r.id LIMIT $5"
);

impl Store {
    /// Lists what waits for a human at this time, the oldest first. Requests of stopped sessions have expired.
    pub async fn inbox(
        &self,
        filter: InboxFilter,
        now: DateTime<Utc>,
    ) -> Result<Vec<InboxEntry>, StoreError> {
        let InboxFilter { org, of_organization, limit, after } = filter;
        let (org, most) = (org.uuid(), i64::from(limit));
        let since = after.as_ref().map(|cursor| cursor.since);
        // Negative for a kind that comes after the cursor's among entries of the same time.
        let place = |kind: i64| after.as_ref().map_or(0, |cursor| cursor.kind - kind);
        let id = after.as_ref().and_then(InboxCursor::uuid);
        let text = after.as_ref().map(|cursor| cursor.id.clone());
        let session = after.as_ref().map(|cursor| cursor.session);
        let approvals: Vec<Approval> = read!(self, pool => sqlx::query_as(APPROVALS_SQL)
            .bind(org).bind(now).bind(of_organization).bind(since).bind(place(APPROVALS)).bind(id).bind(most)
            .fetch_all(pool).await)?;
        let questions: Vec<Question> = read!(self, pool => sqlx::query_as(QUESTIONS_SQL)
            .bind(org).bind(now).bind(since).bind(place(QUESTIONS)).bind(text.clone()).bind(session).bind(most)
            .fetch_all(pool).await)?;
        let mut all: Vec<InboxEntry> = approvals.into_iter().map(|row| row.0).collect();
        all.extend(questions.into_iter().map(|row| row.0));
        if of_organization {
            let runs: Vec<Run> = read!(self, pool => sqlx::query_as(RUNS_SQL)
                .bind(org).bind(since).bind(place(RUNS)).bind(id).bind(most).fetch_all(pool).await)?;
            all.extend(runs.into_iter().map(|row| row.0));
        }
        // The sort is stable, so entries of the same time stay in the order of their kinds and ids.
        all.sort_by_key(|entry| entry.since);
        all.truncate(limit as usize);
        Ok(all)
    }
}
