//! The end of an automation's run, as its agent reports it: run, trigger event, session, transcript, log and outbox change in
//! the transaction of the gate that records the report.

use chrono::{DateTime, TimeDelta, Utc};
use proto::{
    AutomationRunId, AutomationRunStatus, CompletionOutcome, OrgId, RunEventKind, SessionId, TriggerEventId,
};

use serde_json::Value;
use uuid::Uuid;

use super::open_transcript::{OpenTranscript, StoredTranscript, messages, parts, transcript_seq};
use super::rows::{Cell, Rows, Statement};
use crate::automation_machine::{RunStep, event_status, next_status};
use crate::automation_run::WAIT_ENDED;
use crate::row::{JsonText, from_row, word};

/// The agent gets the reply to its report, and may end its turn, before its sandbox ends.
const LAST_WORDS: TimeDelta = TimeDelta::seconds(3);

/// The report of an agent at the end of its run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunCompletion {
    pub org: OrgId,
    pub run: AutomationRunId,
    pub trigger_event: TriggerEventId,
    pub session: SessionId,
    pub outcome: CompletionOutcome,
    /// The same id twice is one report.
    pub completion_id: String,
    pub completion: JsonText,
    pub summary: Option<String>,
    /// The messages of the agent that are not finished yet.
    pub transcript: OpenTranscript,
    pub at: DateTime<Utc>,
}

/// The state of a run before a report.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct OpenRun {
    pub(crate) status: AutomationRunStatus,
    pub(crate) session: Option<SessionId>,
    pub(crate) completion_id: Option<String>,
    /// The JSON of an earlier report.
    pub(crate) completion: Option<String>,
    /// Whether the log has the begin of a wait for an answer, and not its end.
    pub(crate) is_waiting: bool,
    /// The next position of its log.
    pub(crate) position: i64,
}

from_row!(inline OpenRun, row => OpenRun {
    status: word(row.try_get("status")?)?,
    session: row.try_get::<Option<Uuid>, _>("session_id")?.map(Into::into),
    completion_id: row.try_get("completion_id")?,
    completion: row.try_get("completion")?,
    is_waiting: row.try_get::<Option<DateTime<Utc>>, _>("waiting_since")?.is_some(),
    position: row.try_get("position")?,
});

macro_rules! open_run {
    ($lock:literal) => {
        concat!(
            "SELECT r.status, r.session_id, r.completion_id, CAST(r.completion AS TEXT) AS completion, r.waiting_since, (SELECT COALESCE(max(e.position), 0) + 1
            FROM automation_run_events e WHERE e.run_id = r.id) AS position FROM automation_runs r
            JOIN sessions s ON s.org_id = r.org_id AND s.id = r.session_id WHERE r.org_id = $1 AND r.id = $2",
            $lock
        )
    };
}
pub(crate) const OPEN_RUN: &str = open_run!("");
/// For PostgreSQL: the run stays as it is until the end of the transaction, and the session's owner saves no message.
pub(crate) const OPEN_RUN_LOCKED: &str = open_run!(" FOR UPDATE OF r, s");

/// The changes that a report causes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// It ends the run.
    Ends,
    /// The same report has ended the run before.
    Repeated,
    /// The run has ended otherwise, with another report, or belongs to another session.
    Refused,
}

impl RunCompletion {
    pub(crate) fn key(&self) -> (OrgId, AutomationRunId) {
        (self.org, self.run)
    }

    pub(crate) fn against(&self, run: Option<&OpenRun>) -> Report {
        let Some(run) = run.filter(|run| run.session == Some(self.session)) else { return Report::Refused };
        if run.completion_id.as_deref() == Some(&self.completion_id) {
            return if self.says_the_same(run) { Report::Repeated } else { Report::Refused };
        }
        match next_status(run.status, RunStep::Completed(self.outcome)) {
            Some(_) => Report::Ends,
            None => Report::Refused,
        }
    }

    /// Whether an earlier report has the same contents. PostgreSQL stores the fields in another order.
    fn says_the_same(&self, run: &OpenRun) -> bool {
        let parse = |text: &str| serde_json::from_str::<Value>(text).ok();
        run.completion.as_deref().and_then(parse) == parse(self.completion.as_str())
    }

    /// The text of a run that did not succeed, for people.
    fn error(&self) -> Option<&'static str> {
        (self.outcome == CompletionOutcome::Failed).then_some("Run failed")
    }
}

/// A report with the states of its run and its session's transcript before.
pub(crate) type PlannedReport<'a> = (&'a RunCompletion, OpenRun, StoredTranscript);

/// The rows of all reports.
pub(crate) fn completion_rows<'a>(reports: &[PlannedReport<'a>]) -> [Rows<'a>; 7] {
    [
        runs(reports),
        trigger_events(reports),
        sessions(reports),
        messages(reports),
        parts(reports),
        run_events(reports),
        outbox(reports),
    ]
}

/// The key of a row: its first two values.
const KEY_COLUMNS: &[(&str, usize)] = &[("org_id", 1), ("id", 2)];

fn runs<'a>(reports: &[PlannedReport<'a>]) -> Rows<'a> {
    const SET_COLUMNS: &[(&str, usize)] = &[
        ("status", 3),
        ("status_reason", 4),
        ("completion_id", 5),
        ("completion", 6),
        ("completed_at", 7),
        ("waiting_since", 8),
    ];
    let row = |(report, ..): &PlannedReport<'a>| {
        let report: &'a RunCompletion = report;
        vec![
            Cell::from(report.org.uuid()),
            Cell::from(report.run.uuid()),
            Cell::from(report.outcome.status().as_str()),
            Cell::from(report.outcome.as_str()),
            Cell::from(&report.completion_id),
            Cell::from(&report.completion),
            Cell::from(report.at),
            Cell::Time(None),
        ]
    };
    let statement = Statement::Update { table: "automation_runs", set: SET_COLUMNS, key: KEY_COLUMNS };
    Rows { statement, values: reports.iter().map(row).collect() }
}

fn trigger_events<'a>(reports: &[PlannedReport<'a>]) -> Rows<'a> {
    const SET_COLUMNS: &[(&str, usize)] = &[("status", 3), ("error", 4)];
    let row = |(report, ..): &PlannedReport<'a>| {
        vec![
            Cell::from(report.org.uuid()),
            Cell::from(report.trigger_event.uuid()),
            Cell::from(event_status(report.outcome.status()).as_str()),
            Cell::from(report.error()),
        ]
    };
    let statement = Statement::Update { table: "trigger_events", set: SET_COLUMNS, key: KEY_COLUMNS };
    Rows { statement, values: reports.iter().map(row).collect() }
}

fn sessions<'a>(reports: &[PlannedReport<'a>]) -> Rows<'a> {
    const SET_COLUMNS: &[(&str, usize)] = &[("outcome", 3), ("summary", 4), ("transcript_seq", 5)];
    let row = |planned: &PlannedReport<'a>| {
        let report: &'a RunCompletion = planned.0;
        vec![
            Cell::from(report.org.uuid()),
            Cell::from(report.session.uuid()),
            Cell::from(report.outcome.as_str()),
            Cell::from(report.summary.as_deref()),
            Cell::from(transcript_seq(planned)),
        ]
    };
    let statement = Statement::Update { table: "sessions", set: SET_COLUMNS, key: KEY_COLUMNS };
    Rows { statement, values: reports.iter().map(row).collect() }
}

fn run_events<'a>(reports: &[PlannedReport<'a>]) -> Rows<'a> {
    let into =
        "INSERT INTO automation_run_events (run_id, position, org_id, kind, from_status, to_status, actor,
            detail, created_at) ";
    let end = |(report, before, _): &PlannedReport<'a>| {
        vec![
            Cell::from(report.run.uuid()),
            Cell::from(before.position + i64::from(before.is_waiting)),
            Cell::from(report.org.uuid()),
            Cell::from(RunEventKind::Completion.as_str()),
            Cell::from(before.status.as_str()),
            Cell::from(report.outcome.status().as_str()),
            Cell::from(format!("session {}", report.session)),
            Cell::from(report.outcome.as_str()),
            Cell::from(report.at),
        ]
    };
    // A quick agent reports before the runner has recorded that it continued.
    let waited = |(report, before, _): &PlannedReport<'a>| {
        before.is_waiting.then(|| {
            vec![
                Cell::from(report.run.uuid()),
                Cell::from(before.position),
                Cell::from(report.org.uuid()),
                Cell::from(RunEventKind::Waiting.as_str()),
                Cell::Text(None),
                Cell::Text(None),
                Cell::from("gateway"),
                Cell::from(WAIT_ENDED),
                Cell::from(report.at),
            ]
        })
    };
    let values = reports.iter().flat_map(|report| waited(report).into_iter().chain([end(report)])).collect();
    Rows { statement: Statement::Insert { into, conflict: "" }, values }
}

/// The id of the run serves as the id of the row: a run ends its session once.
fn outbox<'a>(reports: &[PlannedReport<'a>]) -> Rows<'a> {
    let into =
        "INSERT INTO automation_outbox (id, org_id, run_id, step, attempts, available_at, created_at) ";
    let conflict = " ON CONFLICT (run_id, step) DO NOTHING";
    let row = |(report, ..): &PlannedReport<'a>| {
        vec![
            Cell::from(report.run.uuid()),
            Cell::from(report.org.uuid()),
            Cell::from(report.run.uuid()),
            Cell::from("end_session"),
            Cell::from(0_i64),
            Cell::from(report.at + LAST_WORDS),
            Cell::from(report.at),
        ]
    };
    Rows { statement: Statement::Insert { into, conflict }, values: reports.iter().map(row).collect() }
}
