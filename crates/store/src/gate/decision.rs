//! Decisions about runs that wait for approval: they start, or they end without having started. The rows that exist when
//! the decision is written decide, so of an approval, a denial and an expiry only one succeeds.

use chrono::{DateTime, TimeDelta, Utc};
use proto::{OrgId, RunStatus, UserId};
use uuid::Uuid;

use super::Written;
use super::plan::{ExistingRows, Plan, PlannedEnd};
use super::rows::{Cell, Rows, Statement};
use crate::row::{JsonText, from_row};
use crate::{Ended, Run};

/// A decision about a run that waits.
#[derive(Clone, Debug)]
pub struct RunDecision {
    pub org: OrgId,
    pub run_id: String,
    /// The user who decided; `None` for an expiry.
    pub by: Option<UserId>,
    pub at: DateTime<Utc>,
    pub verdict: RunVerdict,
    /// What an approver has seen. If it has changed meanwhile, the approval does not count.
    pub seen: Option<SeenRequest>,
    /// The arguments that an approver has changed.
    pub edit: Option<Box<RequestEdit>>,
}

/// The state of a request that an approval relies on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    pub first_approved_by: Option<UserId>,
    pub edited_hash: Option<String>,
}

/// A request whose arguments an approver has edited.
#[derive(Clone, Debug)]
pub struct RequestEdit {
    /// The complete request, which is executed if it is approved.
    pub request: JsonText,
    /// Redacted and truncated.
    pub params: JsonText,
    /// The hash that binds the approval to the request.
    pub hash: String,
}

#[derive(Clone, Debug)]
pub enum RunVerdict {
    /// The first of two approvals: the run keeps waiting.
    FirstApproval,
    /// This instance executes the call, if the request has not expired and nobody has decided about it.
    Start { instance: String },
    /// The caller may repeat the call until then, which executes it once ([`RunVerdict::Redeem`]).
    Grant { until: DateTime<Utc> },
    /// This instance executes the call that was granted, if the grant has not expired.
    Redeem { instance: String },
    /// Ends the run, if the request has not expired.
    Deny(Box<Ended>),
    /// Ends the run, if the request has expired.
    Expire(Box<Ended>),
}

impl RunDecision {
    /// The end of the run, unless the decision starts it.
    pub(crate) fn ended(&self) -> Option<&Ended> {
        match &self.verdict {
            RunVerdict::FirstApproval
            | RunVerdict::Start { .. }
            | RunVerdict::Grant { .. }
            | RunVerdict::Redeem { .. } => None,
            RunVerdict::Deny(ended) | RunVerdict::Expire(ended) => Some(ended),
        }
    }

    /// When a run that is approved now counts as started: always later than its creation, which tells it from a run
    /// that never waited ([`Run::begun_hash`]).
    pub fn started_at(created_at: DateTime<Utc>, now: DateTime<Utc>) -> DateTime<Utc> {
        now.max(created_at + TimeDelta::microseconds(1))
    }

    /// Plans the decision by the rows that exist.
    pub(crate) fn plan<'a>(&'a self, plan: &mut Plan<'a>, existing: &ExistingRows, position: u64) -> Written {
        let key = (self.org, self.run_id.clone());
        let waiting = existing.runs.get(&key).filter(|run| run.status == RunStatus::Created);
        let (Some(run), Some(state)) = (waiting, existing.waiting_states.get(&key)) else {
            return Written::NotYours;
        };
        if let Some(refused) = self.refused_by(state) {
            return refused;
        }
        plan.edits.extend(self.edit.as_deref().map(|edit| (self, edit)));
        match &self.verdict {
            RunVerdict::FirstApproval => plan.first_approvals.push(self),
            RunVerdict::Start { instance } | RunVerdict::Redeem { instance } => {
                plan.starts.push((self, instance, start_of_run(self, run)));
            }
            RunVerdict::Grant { until } => plan.grants.push((self, *until)),
            RunVerdict::Deny(ended) | RunVerdict::Expire(ended) => {
                plan.ends.push(PlannedEnd { org: self.org, run_id: &self.run_id, ended, position });
            }
        }
        if !matches!(self.verdict, RunVerdict::FirstApproval | RunVerdict::Grant { .. }) {
            plan.decisions.push((self, state.clone()));
        }
        Written::Done
    }

    /// Why the decision does not count, if it does not.
    fn refused_by(&self, state: &WaitingState) -> Option<Written> {
        let overdue = self.at >= state.expires_at;
        let decided = state.decided_by.is_some();
        match &self.verdict {
            RunVerdict::Expire(_) => (!overdue).then_some(Written::NotYours),
            _ if overdue => Some(Written::Overdue),
            RunVerdict::Redeem { .. } => (!decided).then_some(Written::NotYours),
            RunVerdict::Deny(_) => decided.then_some(Written::NotYours),
            RunVerdict::FirstApproval | RunVerdict::Start { .. } | RunVerdict::Grant { .. } => {
                let changed = self.seen.as_ref().is_some_and(|seen| !state.is_as(seen));
                (decided || changed).then_some(Written::NotYours)
            }
        }
    }
}

fn start_of_run(decision: &RunDecision, run: &Run) -> DateTime<Utc> {
    RunDecision::started_at(run.created_at, decision.at)
}

/// The key of a run: the first two values of its row.
const KEY_COLUMNS: &[(&str, usize)] = &[("org_id", 1), ("run_id", 2)];

/// The rows of all decisions. The stored request is not needed any more, except by a grant until it is redeemed.
pub(crate) fn decision_rows<'a>(plan: &Plan<'a>) -> [Rows<'a>; 5] {
    let start = |(decision, instance, at): &(&'a RunDecision, &'a String, DateTime<Utc>)| {
        let instance: &'a String = instance;
        let decision: &'a RunDecision = decision;
        vec![
            Cell::from(decision.org.uuid()),
            Cell::from(&decision.run_id),
            Cell::from(RunStatus::Running.as_str()),
            Cell::from(instance),
            Cell::from(*at),
        ]
    };
    let decided = |(decision, before): &(&'a RunDecision, WaitingState)| {
        let decision: &'a RunDecision = decision;
        vec![
            Cell::from(decision.org.uuid()),
            Cell::from(&decision.run_id),
            // What becomes of a grant does not change who gave it, and when.
            Cell::from(decision.by.map(UserId::uuid).or(before.decided_by)),
            Cell::from(before.decided_at.unwrap_or(decision.at)),
            Cell::Json(None),
        ]
    };
    let granted = |(decision, until): &(&'a RunDecision, DateTime<Utc>)| {
        let decision: &'a RunDecision = decision;
        vec![
            Cell::from(decision.org.uuid()),
            Cell::from(&decision.run_id),
            Cell::from(decision.by.map(UserId::uuid)),
            Cell::from(decision.at),
            Cell::from(*until),
        ]
    };
    let first = |decision: &&'a RunDecision| {
        let decision: &'a RunDecision = decision;
        vec![
            Cell::from(decision.org.uuid()),
            Cell::from(&decision.run_id),
            Cell::from(decision.by.map(UserId::uuid)),
            Cell::from(decision.at),
            Cell::from(true),
        ]
    };
    let edited = |(decision, edit): &(&'a RunDecision, &'a RequestEdit)| {
        let (decision, edit): (&'a RunDecision, &'a RequestEdit) = (decision, edit);
        vec![
            Cell::from(decision.org.uuid()),
            Cell::from(&decision.run_id),
            Cell::from(&edit.request),
            Cell::from(&edit.params),
            Cell::from(&edit.hash),
        ]
    };
    let set = &[("first_approved_by", 3), ("first_approved_at", 4), ("two_person", 5)];
    let firsts = Statement::Update { table: "invocations", set, key: KEY_COLUMNS };
    let set = &[("request", 3), ("params", 4), ("edited_hash", 5)];
    let edits = Statement::Update { table: "invocations", set, key: KEY_COLUMNS };
    let set = &[("status", 3), ("instance", 4), ("started_at", 5)];
    let starts = Statement::Update { table: "runs", set, key: KEY_COLUMNS };
    let set = &[("decided_by", 3), ("decided_at", 4), ("request", 5)];
    let decisions = Statement::Update { table: "invocations", set, key: KEY_COLUMNS };
    let set = &[("decided_by", 3), ("decided_at", 4), ("expires_at", 5)];
    let grants = Statement::Update { table: "invocations", set, key: KEY_COLUMNS };
    [
        // Before the decisions, which remove the stored request.
        Rows { statement: edits, values: plan.edits.iter().map(edited).collect() },
        Rows { statement: firsts, values: plan.first_approvals.iter().map(first).collect() },
        Rows { statement: starts, values: plan.starts.iter().map(start).collect() },
        Rows { statement: decisions, values: plan.decisions.iter().map(decided).collect() },
        Rows { statement: grants, values: plan.grants.iter().map(granted).collect() },
    ]
}

/// How far the decision about a waiting run has come.
#[derive(Clone)]
pub(crate) struct WaitingState {
    pub(crate) expires_at: DateTime<Utc>,
    pub(crate) decided_by: Option<Uuid>,
    pub(crate) decided_at: Option<DateTime<Utc>>,
    pub(crate) first_approved_by: Option<Uuid>,
    pub(crate) edited_hash: Option<String>,
}

impl WaitingState {
    fn is_as(&self, seen: &SeenRequest) -> bool {
        let SeenRequest { first_approved_by, edited_hash } = seen;
        self.first_approved_by == first_approved_by.map(UserId::uuid) && self.edited_hash == *edited_hash
    }
}

from_row!(inline WaitingState, row => WaitingState {
    expires_at: row.try_get("expires_at")?,
    decided_by: row.try_get("decided_by")?,
    decided_at: row.try_get("decided_at")?,
    first_approved_by: row.try_get("first_approved_by")?,
    edited_hash: row.try_get("edited_hash")?,
});

macro_rules! waiting_state {
    ($lock:literal) => {
        concat!(
            "SELECT expires_at, decided_by, decided_at, first_approved_by, edited_hash
            FROM invocations WHERE org_id = $1 AND run_id = $2 AND expires_at IS NOT NULL",
            $lock
        )
    };
}

pub(crate) const WAITING_STATE: &str = waiting_state!("");
/// For PostgreSQL: a stop of the session, which lets the request expire, comes before or after the decision.
pub(crate) const WAITING_STATE_LOCKED: &str = waiting_state!(" FOR UPDATE");

/// The number of requests of a session or an API key that can still be approved.
pub(crate) struct WaitingCount(pub(crate) i64);

from_row!(inline WaitingCount, row => WaitingCount(row.try_get("number")?));

/// Two counts, because one that selects sessions OR keys reads every waiting request of the organization.
pub(crate) const COUNT_WAITING: &str = "SELECT
    (SELECT count(*) FROM runs r JOIN invocations i ON i.org_id = r.org_id AND i.run_id = r.run_id
    WHERE r.org_id = $1 AND r.status = 'created' AND r.session_id = $2 AND i.expires_at > $3) +
    (SELECT count(*) FROM runs r JOIN invocations i ON i.org_id = r.org_id AND i.run_id = r.run_id
    WHERE r.org_id = $1 AND r.status = 'created' AND r.session_id IS NULL AND i.key_id = $2 AND i.expires_at > $3)
    AS number";
