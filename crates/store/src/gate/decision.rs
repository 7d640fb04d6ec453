//! Decisions about runs that wait for approval: they start, or they end without having started. The rows that exist when
//! the decision is written decide, so of an approval, a denial and an expiry only one succeeds.

use chrono::{DateTime, TimeDelta, Utc};
use proto::{OrgId, RunStatus, UserId};

use super::Written;
use super::plan::{ExistingRows, Plan, PlannedEnd};
use super::rows::{Cell, Rows, Statement};
use crate::row::from_row;
use crate::{Ended, Run};

/// A decision about a run that waits.
#[derive(Clone, Debug)]
pub struct RunDecision {
    pub org: OrgId,
    pub run_id: String,
    /// Who decided; `None` for an expiry.
    pub by: Option<UserId>,
    pub at: DateTime<Utc>,
    pub verdict: RunVerdict,
}

#[derive(Clone, Debug)]
pub enum RunVerdict {
    /// This instance executes the call, if the request has not expired.
    Start { instance: String },
    /// Ends the run, if the request has not expired.
    Deny(Box<Ended>),
    /// Ends the run, if the request has expired.
    Expire(Box<Ended>),
}

impl RunDecision {
    /// The end of the run, unless the decision starts it.
    pub(crate) fn ended(&self) -> Option<&Ended> {
        match &self.verdict {
            RunVerdict::Start { .. } => None,
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
        let (Some(run), Some(expires_at)) = (waiting, existing.expiries.get(&key)) else {
            return Written::NotYours;
        };
        let overdue = self.at >= *expires_at;
        match &self.verdict {
            RunVerdict::Start { .. } | RunVerdict::Deny(_) if overdue => return Written::Overdue,
            RunVerdict::Expire(_) if !overdue => return Written::NotYours,
            _ => {}
        }
        match (&self.verdict, self.ended()) {
            (RunVerdict::Start { instance }, _) => plan.starts.push((self, instance, started(self, run))),
            (_, Some(ended)) => {
                plan.ends.push(PlannedEnd { org: self.org, run_id: &self.run_id, ended, position });
            }
            (_, None) => return Written::NotYours,
        }
        plan.decisions.push(self);
        Written::Done
    }
}

fn started(decision: &RunDecision, run: &Run) -> DateTime<Utc> {
    RunDecision::started_at(run.created_at, decision.at)
}

/// The key of a run: the first two values of its row.
const KEY: &[(&str, usize)] = &[("org_id", 1), ("run_id", 2)];

/// The rows of all decisions. The stored request is not needed any more.
pub(crate) fn decision_rows<'a>(plan: &Plan<'a>) -> [Rows<'a>; 2] {
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
    let decided = |decision: &&'a RunDecision| {
        let decision: &'a RunDecision = decision;
        vec![
            Cell::from(decision.org.uuid()),
            Cell::from(&decision.run_id),
            Cell::from(decision.by.map(UserId::uuid)),
            Cell::from(decision.at),
            Cell::Json(None),
        ]
    };
    let set = &[("status", 3), ("instance", 4), ("started_at", 5)];
    let starts = Statement::Update { table: "runs", set, key: KEY };
    let set = &[("decided_by", 3), ("decided_at", 4), ("request", 5)];
    let decisions = Statement::Update { table: "invocations", set, key: KEY };
    [
        Rows { statement: starts, values: plan.starts.iter().map(start).collect() },
        Rows { statement: decisions, values: plan.decisions.iter().map(decided).collect() },
    ]
}

/// Until when a run can be approved.
pub(crate) struct Expiry(pub(crate) DateTime<Utc>);

from_row!(inline Expiry, row => Expiry(row.try_get("expires_at")?));

pub(crate) const EXPIRY: &str =
    "SELECT expires_at FROM invocations WHERE org_id = $1 AND run_id = $2 AND expires_at IS NOT NULL";

/// The number of requests of a session that can still be approved.
pub(crate) struct WaitingCount(pub(crate) i64);

from_row!(inline WaitingCount, row => WaitingCount(row.try_get("number")?));

pub(crate) const WAITING: &str =
    "SELECT count(*) AS number FROM runs r JOIN invocations i ON i.org_id = r.org_id AND i.run_id = r.run_id
    WHERE r.org_id = $1 AND r.session_id = $2 AND r.status = 'created' AND i.expires_at > $3";
