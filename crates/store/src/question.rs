//! Questions of agents to people. An answer is stored before the agent gets it, and stays marked until it has.

use chrono::{DateTime, Utc};
use proto::socket::{OpenQuestion, QuestionItem, QuestionKind, QuestionState};
use proto::{OrgId, SessionId};
use sqlx::types::Json;
use uuid::Uuid;

use crate::db::{read, write};
use crate::owner::{LOCK_OWNED_SESSION, fenced};
use crate::row::{from_row, storable, word};
use crate::{Owner, Store, StoreError};

/// A question to store. The same id twice is one question.
#[derive(Clone, Debug)]
pub struct NewQuestion {
    pub question: OpenQuestion,
    /// The prompt of the turn that asks.
    pub prompt_id: Option<String>,
    pub asked_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredQuestion {
    pub session_id: SessionId,
    pub question: OpenQuestion,
    pub prompt_id: Option<String>,
    pub state: QuestionState,
    /// The answer to each part; empty unless the question was answered.
    pub answers: Vec<Vec<String>>,
    pub answered_by: Option<String>,
    pub asked_at: DateTime<Utc>,
    pub expires_at: DateTime<Utc>,
}

from_row!(StoredQuestion, row => StoredQuestion {
    session_id: row.try_get::<Uuid, _>("session_id")?.into(),
    question: OpenQuestion {
        question_id: row.try_get("id")?,
        kind: word::<QuestionKind>(row.try_get("kind")?)?,
        questions: row.try_get::<Json<Vec<QuestionItem>>, _>("questions")?.0,
    },
    prompt_id: row.try_get("prompt_id")?,
    state: word(row.try_get("state")?)?,
    answers: row.try_get::<Json<Vec<Vec<String>>>, _>("answers")?.0,
    answered_by: row.try_get("answered_by")?,
    asked_at: row.try_get("asked_at")?,
    expires_at: row.try_get("expires_at")?,
});

/// Selects questions as [`StoredQuestion`]s.
macro_rules! questions {
    ($condition:literal) => {
        concat!(
            "SELECT session_id, id, prompt_id, kind, questions, state, answers, answered_by, asked_at, expires_at
            FROM questions ",
            $condition
        )
    };
}

/// How a question is settled.
#[derive(Clone, Debug)]
pub struct Settlement {
    pub state: QuestionState,
    pub answers: Vec<Vec<String>>,
    pub by: Option<String>,
    /// Whether the agent already knows.
    pub delivered: bool,
}

impl Store {
    /// Stores a question of the agent; `false` if its id exists already, in any state.
    pub async fn ask_question(&self, owner: &Owner, new: NewQuestion) -> Result<bool, StoreError> {
        const SQL: &str =
            "INSERT INTO questions (session_id, id, org_id, prompt_id, kind, questions, state, answers,
            delivered, asked_at, expires_at) VALUES ($1, $2, $3, $4, $5, $6, 'open', $7, $8, $9, $10)
            ON CONFLICT (session_id, id) DO NOTHING";
        let owner = *owner;
        let NewQuestion { question, prompt_id, asked_at, expires_at } = new;
        let items: Vec<QuestionItem> = question.questions.into_iter().map(storable_item).collect();
        write!(self, Disk, tx => {
            fenced!(tx, owner, LOCK_OWNED_SESSION);
            let done = sqlx::query(SQL)
                .bind(owner.session().uuid()).bind(storable(question.question_id)).bind(owner.org().uuid())
                .bind(prompt_id).bind(question.kind.as_str()).bind(Json(items))
                .bind(Json(Vec::<Vec<String>>::new())).bind(false).bind(asked_at).bind(expires_at)
                .execute(&mut *tx).await?;
            Ok(done.rows_affected() == 1)
        })
    }

    /// Settles an open question; `false` if it is not open any more.
    pub async fn settle_question(
        &self,
        owner: &Owner,
        id: &str,
        settlement: Settlement,
    ) -> Result<bool, StoreError> {
        const SQL: &str = "UPDATE questions SET state = $3, answers = $4, answered_by = $5, delivered = $6
            WHERE session_id = $1 AND id = $2 AND state = 'open'";
        let (owner, id) = (*owner, storable(id.to_owned()));
        let Settlement { state, answers, by, delivered } = settlement;
        let answers: Vec<Vec<String>> =
            answers.into_iter().map(|texts| texts.into_iter().map(storable).collect()).collect();
        write!(self, Disk, tx => {
            fenced!(tx, owner, LOCK_OWNED_SESSION);
            let done = sqlx::query(SQL)
                .bind(owner.session().uuid()).bind(id).bind(state.as_str()).bind(Json(answers)).bind(by)
                .bind(delivered).execute(&mut *tx).await?;
            Ok(done.rows_affected() == 1)
        })
    }

    /// Records that the agent has the answer, or never needs it.
    pub async fn mark_question_delivered(&self, owner: &Owner, id: &str) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE questions SET delivered = $3 WHERE session_id = $1 AND id = $2";
        let (owner, id) = (*owner, storable(id.to_owned()));
        write!(self, Disk, tx => {
            fenced!(tx, owner, LOCK_OWNED_SESSION);
            sqlx::query(SQL).bind(owner.session().uuid()).bind(id).bind(true).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// The open questions of a session, the oldest first.
    pub async fn open_questions(&self, session: SessionId) -> Result<Vec<StoredQuestion>, StoreError> {
        const SQL: &str = questions!("WHERE session_id = $1 AND state = 'open' ORDER BY asked_at, id");
        let session = session.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(session).fetch_all(pool).await)?)
    }

    /// The settled questions of a session whose outcome the agent does not have yet.
    pub async fn undelivered_questions(&self, session: SessionId) -> Result<Vec<StoredQuestion>, StoreError> {
        const SQL: &str =
            questions!("WHERE session_id = $1 AND state <> 'open' AND NOT delivered ORDER BY asked_at, id");
        let session = session.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(session).fetch_all(pool).await)?)
    }

    /// One question of a session, in any state.
    pub async fn question(&self, session: SessionId, id: &str) -> Result<Option<StoredQuestion>, StoreError> {
        const SQL: &str = questions!("WHERE session_id = $1 AND id = $2");
        let (session, id) = (session.uuid(), storable(id.to_owned()));
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(session).bind(id).fetch_optional(pool).await)?)
    }

    /// The open questions of an organization, the oldest first.
    pub async fn org_questions(&self, org: OrgId, limit: i64) -> Result<Vec<StoredQuestion>, StoreError> {
        const SQL: &str = questions!("WHERE org_id = $1 AND state = 'open' ORDER BY asked_at, id LIMIT $2");
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(limit).fetch_all(pool).await)?)
    }

    /// Sessions with a question that has expired, or an answer that the agent does not have, and that belong to
    /// `instance`, or to an instance that has not been seen since `before`.
    pub async fn sessions_with_due_questions(
        &self,
        now: DateTime<Utc>,
        instance: &str,
        before: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<SessionId>, StoreError> {
        const SQL: &str = "SELECT id FROM sessions WHERE id IN (
                SELECT session_id FROM questions WHERE state = 'open' AND expires_at <= $1
                UNION SELECT session_id FROM questions WHERE state <> 'open' AND NOT delivered)
            AND (owner_instance = $2 OR owner_instance NOT IN (SELECT id FROM instances WHERE seen_at >= $3))
            ORDER BY id LIMIT $4";
        let found: Vec<Uuid> = read!(self, pool => sqlx::query_scalar(SQL)
            .bind(now).bind(instance).bind(before).bind(limit).fetch_all(pool).await)?;
        Ok(found.into_iter().map(Into::into).collect())
    }
}

fn storable_item(mut item: QuestionItem) -> QuestionItem {
    item.question = storable(item.question);
    item.header = storable(item.header);
    for option in &mut item.options {
        option.label = storable(std::mem::take(&mut option.label));
        option.description = storable(std::mem::take(&mut option.description));
    }
    item
}
