//! The rows that a transaction of the gate writes, before it is known which database takes them.
//!
//! SQLite takes them one by one in a statement that is prepared once, PostgreSQL all at once as arrays: each what is
//! fastest there. The texts around the rows are the same.

use std::borrow::Cow;
use std::collections::HashMap;

use chrono::{DateTime, Utc};
use ledger::{Entry, Head, Text};
use proto::{OrgId, RunStatus, SessionId};
use uuid::Uuid;

use super::plan::{End, Plan, Told};
use super::{Change, Effect, moment};
use crate::row::JsonText;
use crate::{NewArtifact, NewRun, StoreError};

/// Rows of one statement, and what stands before and after them.
pub(super) struct Rows<'a> {
    pub(super) before: &'static str,
    pub(super) values: Vec<Vec<Cell<'a>>>,
    pub(super) after: &'static str,
}

/// One value of a row. All rows of a statement have the same kinds.
pub(super) enum Cell<'a> {
    Text(Option<Cow<'a, str>>),
    Json(Option<&'a str>),
    Number(i64),
    Flag(bool),
    Id(Option<Uuid>),
    Time(Option<DateTime<Utc>>),
    Bytes(&'a [u8]),
}

impl<'a> From<&'a str> for Cell<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(Some(Cow::Borrowed(text)))
    }
}

impl<'a> From<&'a String> for Cell<'a> {
    fn from(text: &'a String) -> Self {
        Self::from(text.as_str())
    }
}

impl<'a> From<Option<&'a str>> for Cell<'a> {
    fn from(text: Option<&'a str>) -> Self {
        Self::Text(text.map(Cow::Borrowed))
    }
}

impl From<String> for Cell<'_> {
    fn from(text: String) -> Self {
        Self::Text(Some(Cow::Owned(text)))
    }
}

impl<'a> From<&'a JsonText> for Cell<'a> {
    fn from(json: &'a JsonText) -> Self {
        Self::Json(Some(json.as_str()))
    }
}

impl<'a> From<Option<&'a JsonText>> for Cell<'a> {
    fn from(json: Option<&'a JsonText>) -> Self {
        Self::Json(json.map(JsonText::as_str))
    }
}

impl From<u64> for Cell<'_> {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<i64> for Cell<'_> {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Cell<'_> {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<Uuid> for Cell<'_> {
    fn from(id: Uuid) -> Self {
        Self::Id(Some(id))
    }
}

impl From<Option<Uuid>> for Cell<'_> {
    fn from(id: Option<Uuid>) -> Self {
        Self::Id(id)
    }
}

impl From<DateTime<Utc>> for Cell<'_> {
    fn from(at: DateTime<Utc>) -> Self {
        Self::Time(Some(at))
    }
}

impl From<Option<DateTime<Utc>>> for Cell<'_> {
    fn from(at: Option<DateTime<Utc>>) -> Self {
        Self::Time(at)
    }
}

impl<'a> From<&'a [u8]> for Cell<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self::Bytes(bytes)
    }
}

macro_rules! row {
    ($($value:expr),* $(,)?) => { vec![$(Cell::from($value)),*] };
}

/// Everything that a plan writes, apart from the ledger, in the order in which it must be written.
pub(super) fn of_plan<'a>(plan: &Plan<'a>) -> Vec<Rows<'a>> {
    let mut all = vec![begins(&plan.begins), ends(plan), takes(plan), effects(&plan.effects)];
    all.extend(governing(&plan.governing));
    all.extend(artifacts(&plan.artifacts));
    all.retain(|rows| !rows.values.is_empty());
    all
}

/// What a run has given that is under way.
const NO_OUTPUTS: &str = r#"{"artifact_refs":[]}"#;

fn begins<'a>(runs: &[(&'a NewRun, u64)]) -> Rows<'a> {
    let row = |(run, position): &(&'a NewRun, u64)| {
        let (call, end) = (run.call.as_ref(), run.end.as_ref());
        row![
            run.org_id.uuid(),
            &run.run_id,
            run.kind.as_str(),
            end.map_or(RunStatus::Running, |end| end.status).as_str(),
            "v1",
            &run.lanes_version,
            &run.roles_version,
            run.parent_run_id.as_deref(),
            &run.root_run_id,
            run.run_name.as_deref(),
            run.case_id.as_deref(),
            run.session_id.map(SessionId::uuid),
            run.correlation_id.as_deref(),
            &run.actor,
            &run.role_id,
            run.lane_id.as_deref(),
            call.map(|call| call.tool.as_str()),
            call.map(|call| call.operation.as_str()),
            call.map(|call| call.request_hash.as_str()),
            call.map(|call| &call.decision),
            call.map(|call| call.instance.as_str()),
            &run.inputs,
            run.retry_count,
            run.retry_reason.as_deref(),
            run.created_at,
            // What was denied has never begun.
            end.is_none_or(|end| end.status != RunStatus::Denied).then_some(run.created_at),
            end.and_then(|end| end.response_hash.as_deref()),
            Cell::Json(Some(end.map_or(NO_OUTPUTS, |end| end.outputs.as_str()))),
            end.and_then(|end| end.error.as_ref()),
            end.map(|end| end.outcome.as_str()),
            end.and_then(|end| end.answer.as_ref()),
            end.map(|end| end.at),
            *position,
        ]
    };
    Rows {
        before: "INSERT INTO runs (org_id, run_id, run_kind, status, contract_version, lanes_version,
            roles_version, parent_run_id, root_run_id, run_name, case_id, session_id, correlation_id, actor,
            role_id, lane_id, tool, operation, request_hash, decision, instance, inputs, retry_count,
            retry_reason, created_at, started_at, response_hash, outputs, error, outcome, answer,
            completed_at, begun_position) ",
        values: runs.iter().map(row).collect(),
        after: "",
    }
}

fn ends<'a>(plan: &Plan<'a>) -> Rows<'a> {
    let rows = plan.ends.iter().map(|End { org, run_id, ended: end, position }| {
        row![
            org.uuid(),
            *run_id,
            end.status.as_str(),
            &end.outcome,
            end.error.as_ref(),
            end.answer.as_ref(),
            end.response_hash.as_deref(),
            &end.outputs,
            end.at,
            *position,
        ]
    });
    Rows {
        before:
            "UPDATE runs SET status = v.column3, outcome = v.column4, error = v.column5, answer = v.column6,
            response_hash = v.column7, outputs = v.column8, completed_at = v.column9,
            ended_position = v.column10 FROM (",
        values: rows.collect(),
        after: ") AS v WHERE runs.org_id = v.column1 AND runs.run_id = v.column2",
    }
}

fn takes<'a>(plan: &Plan<'a>) -> Rows<'a> {
    Rows {
        before: "UPDATE runs SET instance = v.column3 FROM (",
        values: plan.takes.iter().map(|(org, run, to)| row![org.uuid(), *run, *to]).collect(),
        after: ") AS v WHERE runs.org_id = v.column1 AND runs.run_id = v.column2",
    }
}

fn effects<'a>(effects: &[&'a Effect]) -> Rows<'a> {
    let row = |effect: &&'a Effect| {
        let Effect::SaveServiceCommands { org, configuration, commands, by, at } = effect;
        row![org.uuid(), configuration.uuid(), commands, by, *at]
    };
    Rows {
        before:
            "UPDATE configurations SET service_commands = v.column3, service_commands_updated_by = v.column4,
            service_commands_updated_at = v.column5, updated_at = v.column5 FROM (",
        values: effects.iter().map(row).collect(),
        after: ") AS v WHERE configurations.org_id = v.column1 AND configurations.id = v.column2",
    }
}

/// Rare: by hand.
fn governing<'a>(changes: &[&'a Change]) -> [Rows<'a>; 2] {
    let (mut locks, mut grants) = (Vec::new(), Vec::new());
    for change in changes {
        match change {
            Change::Lock(lock) => {
                locks.push(row![1_i64, lock.locked, &lock.changed_by, &lock.reason, lock.changed_at]);
            }
            Change::Grant(grant) => grants.push(row![
                grant.id,
                grant.org_id.uuid(),
                grant.user_id.uuid(),
                &grant.ticket,
                &grant.reason,
                &grant.granted_by,
                grant.valid_from,
                grant.valid_until,
            ]),
            _ => {}
        }
    }
    // There is one lock, so of several changes the last one is what stays.
    locks.drain(..locks.len().saturating_sub(1));
    let locks = Rows {
        before: "INSERT INTO safety_lock (id, locked, changed_by, reason, changed_at) ",
        values: locks,
        after: " ON CONFLICT (id) DO UPDATE SET locked = excluded.locked, changed_by = excluded.changed_by,
            reason = excluded.reason, changed_at = excluded.changed_at",
    };
    let grants = Rows {
        before: "INSERT INTO override_grants (id, org_id, user_id, ticket, reason, granted_by, valid_from,
            valid_until) ",
        values: grants,
        after: "",
    };
    [locks, grants]
}

fn artifacts<'a>(artifacts: &[&'a NewArtifact]) -> [Rows<'a>; 2] {
    let contents = Rows {
        before: "INSERT INTO artifact_contents (org_id, artifact_id, content) ",
        values: artifacts
            .iter()
            .map(|new| row![new.org_id.uuid(), &new.artifact_id, new.content.as_slice()])
            .collect(),
        after: " ON CONFLICT (org_id, artifact_id) DO NOTHING",
    };
    let described = artifacts.iter().map(|new| {
        row![
            new.org_id.uuid(),
            &new.artifact_id,
            &new.kind,
            &new.hash,
            "bytes",
            if new.case_id.is_some() { "case" } else { "system" },
            new.case_id.as_deref(),
            &new.content_type,
            new.content.len() as u64,
            &new.lineage,
            new.at,
        ]
    });
    let described = Rows {
        before: "INSERT INTO artifacts (org_id, artifact_id, artifact_kind, hash_sha256, hash_source, scope,
            case_id, content_type, byte_size, lineage, created_at) ",
        values: described.collect(),
        after: " ON CONFLICT (org_id, artifact_id) DO NOTHING",
    };
    [contents, described]
}

/// Events with their links, where the chains end now, and how large the tree is.
pub(super) fn of_ledger<'a>(
    events: &[Told<'a>],
    entries: &'a [Entry],
    heads: &'a HashMap<String, Head>,
    size: u64,
) -> Result<[Rows<'a>; 3], StoreError> {
    let mut rows = Vec::with_capacity(events.len());
    for (told, entry) in events.iter().zip(entries) {
        let (new, event) = (told.new, &told.new.event);
        rows.push(row![
            entry.chain.as_str(),
            entry.sequence,
            entry.position,
            event.event_id.as_str(),
            new.org.map(OrgId::uuid),
            event.action_type.as_str(),
            event.outcome.as_str(),
            event.run_id.as_ref().map(Text::as_str),
            event.case_id.as_ref().map(Text::as_str),
            told.loose,
            &entry.record,
            entry.prev_hash.to_string(),
            entry.hash.to_string(),
            moment(event)?,
        ]);
    }
    let appended = Rows {
        before:
            "INSERT INTO ledger_events (chain, sequence, position, event_id, org_id, action_type, outcome,
            run_id, case_id, loose, record, prev_hash, hash, created_at) ",
        values: rows,
        after: "",
    };
    let orgs: HashMap<_, _> =
        events.iter().zip(entries).map(|(told, entry)| (entry.chain.as_str(), told.new.org)).collect();
    let ends = heads.iter().map(|(chain, head)| {
        let org = orgs.get(chain.as_str()).copied().flatten().map(OrgId::uuid);
        row![chain, org, head.sequence, head.hash.to_string()]
    });
    let ends = Rows {
        before: "INSERT INTO ledger_heads (chain, org_id, sequence, hash) ",
        values: ends.collect(),
        after: " ON CONFLICT (chain) DO UPDATE SET sequence = excluded.sequence, hash = excluded.hash",
    };
    let tree = Rows {
        before: "UPDATE ledger_tree SET size = v.column1 FROM (",
        values: vec![row![size + entries.len() as u64]],
        after: ") AS v WHERE ledger_tree.id = 1",
    };
    Ok([appended, ends, tree])
}
