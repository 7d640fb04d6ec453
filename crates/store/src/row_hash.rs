//! Hashes of a run's row, which its events contain so that `audit verify` detects a change of the row.
//!
//! An event of Contract v1 has no field for most columns of a run, so its notes end with a line that has their hash:
//! one hash for the columns that are written at the start of the run, one for those that are written at its end.

use chrono::{DateTime, Utc};
use ledger::{Event, Hash, Text, canonical, sha256};
use proto::{OrgId, RunStatus};
use sqlx::types::JsonValue;

use crate::gate::{Change, NewEvent};
use crate::row::JsonText;
use crate::{Ended, NewRun, Run};

/// The columns that a hash covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunColumns {
    /// Written at the start of the run. For a run that starts and ends in one transaction it covers all columns.
    Begun,
    /// Written at its end.
    Ended,
}

impl RunColumns {
    const fn label(self) -> &'static str {
        match self {
            Self::Begun => "begun_run_sha256 ",
            Self::Ended => "ended_run_sha256 ",
        }
    }
}

/// Other notes are truncated to this many characters, to leave room for the hash.
const OTHER_NOTES: usize = 800;

/// The hash of a run's row in an event.
pub fn run_hash(event: &Event) -> Option<(RunColumns, Hash)> {
    let last = event.notes.as_ref()?.as_str().lines().next_back()?;
    [RunColumns::Begun, RunColumns::Ended].into_iter().find_map(|columns| {
        let digits = last.strip_prefix(columns.label())?;
        Some((columns, digits.parse().ok()?))
    })
}

/// Adds the hash of the row that a change writes to the first event that the run references.
pub(crate) fn add_run_hash(change: &Change, events: &mut [NewEvent]) {
    let Some(first) = events.iter_mut().find(|new| change.references(new)) else { return };
    let (columns, hash) = match change {
        Change::Begin(run) => (RunColumns::Begun, run.row_hash()),
        Change::End { org, run_id, ended, .. } => (RunColumns::Ended, ended.row_hash(*org, run_id)),
        Change::Decide(decision) => match decision.ended() {
            Some(ended) => (RunColumns::Ended, ended.row_hash(decision.org, &decision.run_id)),
            None => return,
        },
        _ => return,
    };
    let line = format!("{}{hash}", columns.label());
    let notes = first.event.notes.as_ref().map(|notes| notes.as_str().chars().take(OTHER_NOTES).collect());
    let notes = notes.map_or_else(|| line.clone(), |notes: String| format!("{notes}\n{line}"));
    first.event.notes = Some(Text::cut(&notes));
}

impl NewRun {
    fn row_hash(&self) -> Hash {
        let (call, end) = (self.call.as_ref(), self.end.as_ref());
        let started = !self.waits && end.is_none_or(|end| end.status != RunStatus::Denied);
        begun_hash(&RunStart {
            org: self.org_id,
            run_id: &self.run_id,
            texts: [
                Some(self.kind.as_str()),
                Some(&self.lanes_version),
                Some(&self.roles_version),
                self.parent_run_id.as_deref(),
                Some(&self.root_run_id),
                self.run_name.as_deref(),
                self.case_id.as_deref(),
                self.correlation_id.as_deref(),
                Some(&self.role_id),
                self.lane_id.as_deref(),
                call.map(|call| call.tool.as_str()),
                call.map(|call| call.operation.as_str()),
                call.map(|call| call.request_hash.as_str()),
                self.retry_reason.as_deref(),
            ],
            session: self.session_id.map(|id| id.to_string()),
            actor: &self.actor.value(),
            inputs: &self.inputs.value(),
            retry_count: self.retry_count,
            created_at: self.created_at,
            started_at: started.then_some(self.created_at),
            end: end.map(|end| end.row_hash(self.org_id, &self.run_id)),
        })
    }
}

impl Ended {
    fn row_hash(&self, org: OrgId, run_id: &str) -> Hash {
        let optional = |json: &Option<JsonText>| json.as_ref().map(JsonText::value);
        // The answer may be large, and `response_hash` covers it already.
        let answer = if self.response_hash.is_some() { None } else { optional(&self.answer) };
        let error = optional(&self.error);
        let end = End {
            status: self.status,
            outcome: Some(&self.outcome),
            response_hash: self.response_hash.as_deref(),
            error: error.as_ref(),
            outputs: &self.outputs.value(),
            answer: answer.as_ref(),
            started_at: self.started_at,
            at: Some(self.at),
        };
        ended_hash(org, run_id, &end)
    }
}

impl Run {
    /// The hash that its first event must have. `ended_later`: the run did not end in the transaction that created it.
    pub fn begun_hash(&self, ended_later: bool) -> Hash {
        let in_flight = matches!(self.status, RunStatus::Created | RunStatus::Running);
        let ended_at_once = !ended_later && (!in_flight || self.shows_an_end());
        begun_hash(&RunStart {
            org: self.org_id,
            run_id: &self.run_id,
            texts: [
                Some(self.kind.as_str()),
                Some(&self.lanes_version),
                Some(&self.roles_version),
                self.parent_run_id.as_deref(),
                Some(&self.root_run_id),
                self.run_name.as_deref(),
                self.case_id.as_deref(),
                self.correlation_id.as_deref(),
                Some(&self.role_id),
                self.lane_id.as_deref(),
                self.tool.as_deref(),
                self.operation.as_deref(),
                self.request_hash.as_deref(),
                self.retry_reason.as_deref(),
            ],
            session: self.session_id.map(|id| id.to_string()),
            actor: &self.actor,
            inputs: &self.inputs,
            retry_count: self.retry_count,
            created_at: self.created_at,
            // A run that waited had not started when it was created.
            started_at: self.started_at.filter(|at| *at <= self.created_at),
            end: ended_at_once.then(|| self.ended_hash()),
        })
    }

    /// Whether any column is set that only the end of a run sets.
    fn shows_an_end(&self) -> bool {
        let outputs = self.outputs.get("artifact_refs").and_then(JsonValue::as_array);
        self.outcome.is_some()
            || self.error.is_some()
            || self.answer.is_some()
            || self.response_hash.is_some()
            || self.completed_at.is_some()
            || outputs.is_some_and(|references| !references.is_empty())
    }

    /// The hash of the ended row, which the first event at the run's end must contain.
    pub fn ended_hash(&self) -> Hash {
        let end = End {
            status: self.status,
            outcome: self.outcome.as_deref(),
            response_hash: self.response_hash.as_deref(),
            error: self.error.as_ref(),
            outputs: &self.outputs,
            answer: self.answer.as_ref().filter(|_| self.response_hash.is_none()),
            started_at: self.started_at.filter(|at| *at > self.created_at),
            at: self.completed_at,
        };
        ended_hash(self.org_id, &self.run_id, &end)
    }
}

struct RunStart<'a> {
    org: OrgId,
    run_id: &'a str,
    /// `run_kind`, both pins, `parent_run_id`, `root_run_id`, `run_name`, `case_id`, `correlation_id`, `role_id`,
    /// `lane_id`, `tool`, `operation`, `request_hash`, `retry_reason`.
    texts: [Option<&'a str>; 14],
    session: Option<String>,
    actor: &'a JsonValue,
    inputs: &'a JsonValue,
    retry_count: i64,
    created_at: DateTime<Utc>,
    started_at: Option<DateTime<Utc>>,
    end: Option<Hash>,
}

struct End<'a> {
    status: RunStatus,
    outcome: Option<&'a str>,
    response_hash: Option<&'a str>,
    error: Option<&'a JsonValue>,
    outputs: &'a JsonValue,
    answer: Option<&'a JsonValue>,
    /// The start time of a run that waited for approval.
    started_at: Option<DateTime<Utc>>,
    at: Option<DateTime<Utc>>,
}

fn begun_hash(row: &RunStart<'_>) -> Hash {
    let mut columns = Columns::of_run(row.org, row.run_id);
    for text in row.texts {
        columns.text(text);
    }
    columns.text(row.session.as_deref());
    columns.json(Some(row.actor));
    columns.json(Some(row.inputs));
    columns.text(Some(&row.retry_count.to_string()));
    columns.time(Some(row.created_at));
    columns.time(row.started_at);
    columns.text(row.end.map(|hash| hash.to_string()).as_deref());
    columns.hash()
}

fn ended_hash(org: OrgId, run_id: &str, row: &End<'_>) -> Hash {
    let mut columns = Columns::of_run(org, run_id);
    columns.text(Some(row.status.as_str()));
    columns.text(row.outcome);
    columns.text(row.response_hash);
    columns.json(row.error);
    columns.json(Some(row.outputs));
    columns.json(row.answer);
    columns.time(row.at);
    if row.started_at.is_some() {
        columns.time(row.started_at);
    }
    columns.hash()
}

/// Hashes columns, each prefixed with its length, so that no two rows have the same input.
struct Columns(String);

impl Columns {
    fn of_run(org: OrgId, run_id: &str) -> Self {
        let mut columns = Self("proliferate/run/v1\n".to_owned());
        columns.text(Some(&org.to_string()));
        columns.text(Some(run_id));
        columns
    }

    fn text(&mut self, text: Option<&str>) {
        match text {
            None => self.0.push_str("-\n"),
            Some(text) => {
                self.0.push_str(&text.len().to_string());
                self.0.push(':');
                self.0.push_str(text);
                self.0.push('\n');
            }
        }
    }

    /// PostgreSQL reformats JSON, so the canonical form is hashed.
    fn json(&mut self, value: Option<&JsonValue>) {
        let text = value.map(|value| canonical(value).unwrap_or_else(|_| value.to_string()));
        self.text(text.as_deref());
    }

    /// In microseconds, because PostgreSQL stores no more.
    fn time(&mut self, at: Option<DateTime<Utc>>) {
        self.text(at.map(|at| at.timestamp_micros().to_string()).as_deref());
    }

    fn hash(&self) -> Hash {
        sha256(self.0.as_bytes())
    }
}
