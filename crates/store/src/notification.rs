//! The webhook of an organization for notifications, and the deliveries to it. Rows that wait for a person (approvals,
//! questions, runs) are the outbox: each gets one row here, with the state of its delivery.

use chrono::{DateTime, Utc};
use proto::{NotificationKind, NotificationState, OrgId, Risk, SessionId, UserId};
use uuid::Uuid;

use crate::db::{read, write};
use crate::gate::administer;
use crate::row::{from_row, storable, word};
use crate::{Store, StoreError};

/// Where an organization's notifications go. The address itself is a secret of the vault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationSettings {
    /// The origin of the address, for people.
    pub origin: String,
    /// What began to wait earlier is not reported.
    pub since: DateTime<Utc>,
    pub changed_by: Option<UserId>,
}

from_row!(NotificationSettings, row => NotificationSettings {
    origin: row.try_get("origin")?,
    since: row.try_get("since")?,
    changed_by: row.try_get::<Option<Uuid>, _>("changed_by")?.map(Into::into),
});

/// One notification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notification {
    pub org_id: OrgId,
    pub kind: NotificationKind,
    /// The invocation, the session of the question, or the run.
    pub subject_id: Uuid,
    /// Empty unless it is about a question.
    pub question_id: String,
    /// Attempts so far.
    pub attempts: i64,
}

from_row!(Notification, row => Notification {
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    kind: word(row.try_get("kind")?)?,
    subject_id: row.try_get("subject_id")?,
    question_id: row.try_get("question_id")?,
    attempts: row.try_get("attempts")?,
});

/// What a notification says, as long as it is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotificationSubject {
    pub session: Option<SessionId>,
    /// The integration and the action of an approval.
    pub action: Option<(String, String, Risk)>,
    /// The automation of a run, and the state of the run.
    pub run: Option<(String, String)>,
    pub since: DateTime<Utc>,
    pub expires_at: Option<DateTime<Utc>>,
}

from_row!(NotificationSubject, row => NotificationSubject {
    session: row.try_get::<Option<Uuid>, _>("session_id")?.map(Into::into),
    action: match row.try_get::<Option<String>, _>("integration")? {
        None => None,
        Some(integration) => Some((integration, row.try_get("action")?, word(row.try_get("risk")?)?)),
    },
    run: row.try_get::<Option<String>, _>("automation")?.zip(row.try_get::<Option<String>, _>("status")?),
    since: row.try_get("since")?,
    expires_at: row.try_get("expires_at")?,
});

/// How an organization's notifications fare.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NotificationCounts {
    pub pending: u64,
    pub failed: u64,
    pub last_error: Option<String>,
}

macro_rules! unless_known {
    ($kind:literal, $subject:literal, $question:literal) => {
        concat!(
            " AND NOT EXISTS (SELECT 1 FROM notifications k WHERE k.org_id = n.org_id AND k.kind = '",
            $kind,
            "' AND k.subject_id = ",
            $subject,
            " AND k.question_id = ",
            $question,
            ")"
        )
    };
}

const SELECT_UNREPORTED: &str = concat!(
    "SELECT n.org_id, 'approval' AS kind, i.id AS subject_id, '' AS question_id, CAST(0 AS BIGINT) AS attempts
    FROM notification_settings n JOIN runs r ON r.org_id = n.org_id AND r.status = 'created'
    JOIN invocations i ON i.org_id = r.org_id AND i.run_id = r.run_id
    WHERE i.decided_by IS NULL AND i.expires_at > $1 AND i.created_at >= n.since",
    unless_known!("approval", "i.id", "''"),
    " UNION ALL SELECT n.org_id, 'question', q.session_id, q.id, CAST(0 AS BIGINT)
    FROM notification_settings n JOIN questions q ON q.org_id = n.org_id AND q.state = 'open'
    WHERE q.expires_at > $1 AND q.asked_at >= n.since",
    unless_known!("question", "q.session_id", "q.id"),
    " UNION ALL SELECT n.org_id, 'run', r.id, '', CAST(0 AS BIGINT)
    FROM notification_settings n JOIN automation_runs r ON r.org_id = n.org_id
    WHERE r.status IN ('failed', 'needs_human', 'timed_out') AND r.completed_at >= n.since AND r.completed_at >= $2",
    unless_known!("run", "r.id", "''"),
    " LIMIT $3"
);

const SELECT_APPROVAL: &str =
    "SELECT i.session_id, i.integration, i.action, i.risk, NULL AS automation, NULL AS status,
    i.created_at AS since, i.expires_at FROM invocations i
    JOIN runs r ON r.org_id = i.org_id AND r.run_id = i.run_id
    WHERE i.org_id = $1 AND i.id = $2 AND $3 = '' AND r.status = 'created' AND i.decided_by IS NULL
    AND i.expires_at > $4";
const SELECT_QUESTION: &str =
    "SELECT q.session_id, NULL AS integration, NULL AS action, NULL AS risk, NULL AS automation, NULL AS status,
    q.asked_at AS since, q.expires_at FROM questions q
    WHERE q.org_id = $1 AND q.session_id = $2 AND q.id = $3 AND q.state = 'open' AND q.expires_at > $4";
const SELECT_RUN: &str =
    "SELECT r.session_id, NULL AS integration, NULL AS action, NULL AS risk, a.name AS automation, r.status,
    r.completed_at AS since, NULL AS expires_at FROM automation_runs r
    JOIN automations a ON a.id = r.automation_id AND a.org_id = r.org_id
    WHERE r.org_id = $1 AND r.id = $2 AND $3 = '' AND r.status IN ('failed', 'needs_human', 'timed_out')
    AND r.completed_at <= $4";

impl Store {
    pub async fn notification_settings(
        &self,
        org: OrgId,
    ) -> Result<Option<NotificationSettings>, StoreError> {
        const SQL: &str = "SELECT origin, since, changed_by FROM notification_settings WHERE org_id = $1";
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).fetch_optional(pool).await)?)
    }

    /// Sets where notifications go. What waits already when this is set for the first time is not reported.
    pub async fn set_notification_settings(
        &self,
        org: OrgId,
        new: NotificationSettings,
    ) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO notification_settings (org_id, origin, since, changed_by)
            VALUES ($1, $2, $3, $4)
            ON CONFLICT (org_id) DO UPDATE SET origin = excluded.origin, changed_by = excluded.changed_by";
        let org = org.uuid();
        administer!(self, tx => {
            sqlx::query(SQL)
                .bind(org).bind(new.origin).bind(new.since).bind(new.changed_by.map(UserId::uuid))
                .execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// Ends an organization's notifications, also those that were not delivered yet.
    pub async fn delete_notification_settings(&self, org: OrgId) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM notification_settings WHERE org_id = $1";
        const DROP_PENDING: &str =
            "UPDATE notifications SET state = 'dropped' WHERE org_id = $1 AND state = 'pending'";
        let org = org.uuid();
        administer!(self, tx => {
            let done = sqlx::query(SQL).bind(org).execute(&mut *tx).await?;
            if done.rows_affected() == 0 {
                return Err(StoreError::Missing("this setting"));
            }
            sqlx::query(DROP_PENDING).bind(org).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// What waits and has no notification yet, in all organizations that want some. Runs count if they ended after
    /// `recent`.
    pub async fn unreported(
        &self,
        now: DateTime<Utc>,
        recent: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<Notification>, StoreError> {
        Ok(read!(self, pool =>
            sqlx::query_as(SELECT_UNREPORTED).bind(now).bind(recent).bind(limit).fetch_all(pool).await)?)
    }

    /// Adds notifications that are due at once. One that exists stays as it is.
    pub async fn add_notifications(
        &self,
        new: Vec<Notification>,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str =
            "INSERT INTO notifications (org_id, kind, subject_id, question_id, state, attempts, available_at,
            created_at) SELECT $1, $2, $3, $4, 'pending', 0, $5, $5
            WHERE EXISTS (SELECT 1 FROM notification_settings WHERE org_id = $1)
            ON CONFLICT (org_id, kind, subject_id, question_id) DO NOTHING";
        write!(self, Disk, tx => {
            for one in new {
                sqlx::query(SQL)
                    .bind(one.org_id.uuid()).bind(one.kind.as_str()).bind(one.subject_id).bind(one.question_id)
                    .bind(at).execute(&mut *tx).await?;
            }
            Ok(())
        })
    }

    /// The organizations with notifications that are due.
    pub async fn orgs_to_notify(&self, now: DateTime<Utc>) -> Result<Vec<OrgId>, StoreError> {
        const SQL: &str =
            "SELECT DISTINCT org_id FROM notifications WHERE state = 'pending' AND available_at <= $1";
        let found: Vec<Uuid> = read!(self, pool => sqlx::query_scalar(SQL).bind(now).fetch_all(pool).await)?;
        Ok(found.into_iter().map(Into::into).collect())
    }

    /// An organization's notifications that are due, the oldest first.
    pub async fn due_notifications(
        &self,
        org: OrgId,
        now: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<Notification>, StoreError> {
        const SQL: &str = "SELECT org_id, kind, subject_id, question_id, attempts FROM notifications
            WHERE org_id = $1 AND state = 'pending' AND available_at <= $2
            ORDER BY available_at, subject_id, question_id LIMIT $3";
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(now).bind(limit).fetch_all(pool).await)?)
    }

    /// What a notification says. `None` if nothing waits any more.
    pub async fn notification_subject(
        &self,
        of: &Notification,
        now: DateTime<Utc>,
    ) -> Result<Option<NotificationSubject>, StoreError> {
        let sql = match of.kind {
            NotificationKind::Approval => SELECT_APPROVAL,
            NotificationKind::Question => SELECT_QUESTION,
            NotificationKind::Run => SELECT_RUN,
        };
        let (org, subject, question) = (of.org_id.uuid(), of.subject_id, of.question_id.as_str());
        Ok(read!(self, pool => sqlx::query_as(sql)
            .bind(org).bind(subject).bind(question).bind(now).fetch_optional(pool).await)?)
    }

    /// Counts an attempt before it is made, so that a crash in the middle counts it too.
    pub async fn begin_notification(
        &self,
        of: &Notification,
        next_at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE notifications SET attempts = attempts + 1, available_at = $5
            WHERE org_id = $1 AND kind = $2 AND subject_id = $3 AND question_id = $4";
        let of = of.clone();
        write!(self, Disk, tx => {
            sqlx::query(SQL)
                .bind(of.org_id.uuid()).bind(of.kind.as_str()).bind(of.subject_id).bind(of.question_id).bind(next_at)
                .execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// Records what became of an attempt.
    pub async fn settle_notification(
        &self,
        of: &Notification,
        state: NotificationState,
        error: Option<String>,
    ) -> Result<(), StoreError> {
        const SQL: &str = "UPDATE notifications SET state = $5, last_error = $6
            WHERE org_id = $1 AND kind = $2 AND subject_id = $3 AND question_id = $4 AND state = 'pending'";
        let of = of.clone();
        write!(self, Disk, tx => {
            sqlx::query(SQL)
                .bind(of.org_id.uuid()).bind(of.kind.as_str()).bind(of.subject_id).bind(of.question_id)
                .bind(state.as_str()).bind(error.map(storable))
                .execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// How an organization's notifications fare.
    pub async fn notification_counts(&self, org: OrgId) -> Result<NotificationCounts, StoreError> {
        const COUNT_BY_STATE: &str = "SELECT count(*) FROM notifications WHERE org_id = $1 AND state = $2";
        const LATEST_ERROR: &str = "SELECT last_error FROM notifications
            WHERE org_id = $1 AND last_error IS NOT NULL ORDER BY available_at DESC LIMIT 1";
        let (org, mut counts) = (org.uuid(), [0_i64; 2]);
        for (count, state) in counts.iter_mut().zip([NotificationState::Pending, NotificationState::Failed]) {
            let state = state.as_str();
            *count = read!(self, pool =>
                sqlx::query_scalar(COUNT_BY_STATE).bind(org).bind(state).fetch_one(pool).await)?;
        }
        let last_error =
            read!(self, pool => sqlx::query_scalar(LATEST_ERROR).bind(org).fetch_optional(pool).await)?;
        let [pending, failed] = counts.map(i64::unsigned_abs);
        Ok(NotificationCounts { pending, failed, last_error })
    }

    /// Deletes notifications from before this time that are not to be delivered any more.
    pub async fn forget_notifications(&self, before: DateTime<Utc>) -> Result<(), StoreError> {
        const SQL: &str = "DELETE FROM notifications WHERE created_at < $1 AND state <> 'pending'";
        write!(self, Process, tx => {
            sqlx::query(SQL).bind(before).execute(&mut *tx).await?;
            Ok(())
        })
    }
}
