//! The rows that a transaction of the gate writes, independent of the database.
//!
//! SQLite writes them one by one with a prepared statement, PostgreSQL all at once as arrays: the fastest way of each. Both
//! statements are built from the same parts.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Utc};
use ledger::{Entry, Head, Text};
use proto::{ApiKeyId, InvocationId, OrgId, RunStatus, SessionId};
use uuid::Uuid;

use super::completion::completion_rows;
use super::decision::decision_rows;
use super::plan::{Plan, PlannedEnd, PlannedEvent};
use super::{Change, ConfigurationEffect, Effect, event_time};
use crate::row::JsonText;
use crate::{NewArtifact, NewInvocation, NewRun, StoreError};

/// Rows of one statement.
pub(crate) struct Rows<'a> {
    pub(crate) statement: Statement,
    pub(crate) values: Vec<Vec<Cell<'a>>>,
}

/// A statement without its values.
pub(crate) enum Statement {
    Insert {
        /// The text before the rows.
        into: &'static str,
        /// The text after them.
        conflict: &'static str,
    },
    /// Each column with the number of its value.
    Update {
        table: &'static str,
        set: &'static [(&'static str, usize)],
        key: &'static [(&'static str, usize)],
    },
}

/// One value of a row. All rows of a statement have the same kinds.
pub(crate) enum Cell<'a> {
    Text(Option<Cow<'a, str>>),
    Json(Option<Cow<'a, str>>),
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
        Self::Json(Some(Cow::Borrowed(json.as_str())))
    }
}

impl<'a> From<Option<&'a JsonText>> for Cell<'a> {
    fn from(json: Option<&'a JsonText>) -> Self {
        Self::Json(json.map(|json| Cow::Borrowed(json.as_str())))
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

/// All rows of a plan except the ledger's, in the order in which they must be written.
pub(crate) fn plan_rows<'a>(plan: &Plan<'a>) -> Vec<Rows<'a>> {
    let mut all = vec![begins(&plan.begins), ends(plan), takes(plan), invocations(plan)];
    all.extend(decision_rows(plan));
    all.extend(effects(&plan.effects));
    all.extend(completion_rows(&plan.completions));
    all.extend(governing(&plan.governing));
    all.extend(artifacts(&plan.artifacts));
    all.retain(|rows| !rows.values.is_empty());
    all
}

/// The outputs of a run in flight.
const NO_OUTPUTS: &str = r#"{"artifact_refs":[]}"#;

fn begins<'a>(runs: &[(&'a NewRun, u64)]) -> Rows<'a> {
    let row = |(run, position): &(&'a NewRun, u64)| {
        let (call, end) = (run.call.as_ref(), run.end.as_ref());
        row![
            run.org_id.uuid(),
            &run.run_id,
            run.kind.as_str(),
            status(run).as_str(),
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
            // A denied call never started, and one that waits has not started yet.
            (!run.waits && end.is_none_or(|end| end.status != RunStatus::Denied)).then_some(run.created_at),
            end.and_then(|end| end.response_hash.as_deref()),
            Cell::Json(Some(Cow::Borrowed(end.map_or(NO_OUTPUTS, |end| end.outputs.as_str())))),
            end.and_then(|end| end.error.as_ref()),
            end.map(|end| end.outcome.as_str()),
            end.and_then(|end| end.answer.as_ref()),
            end.map(|end| end.at),
            *position,
        ]
    };
    let into = "INSERT INTO runs (org_id, run_id, run_kind, status, lanes_version,
            roles_version, parent_run_id, root_run_id, run_name, case_id, session_id, correlation_id, actor,
            role_id, lane_id, tool, operation, request_hash, decision, instance, inputs, retry_count,
            retry_reason, created_at, started_at, response_hash, outputs, error, outcome, answer,
            completed_at, begun_position) ";
    Rows { statement: Statement::Insert { into, conflict: "" }, values: runs.iter().map(row).collect() }
}

fn status(run: &NewRun) -> RunStatus {
    let in_flight = if run.waits { RunStatus::Created } else { RunStatus::Running };
    run.end.as_ref().map_or(in_flight, |end| end.status)
}

fn invocations<'a>(plan: &Plan<'a>) -> Rows<'a> {
    let row = |(run, new): &(&'a NewRun, &'a NewInvocation)| {
        let (run, new): (&'a NewRun, &'a NewInvocation) = (run, new);
        let waiting = new.waiting.as_ref();
        row![
            run.org_id.uuid(),
            &run.run_id,
            new.id.uuid(),
            run.session_id.map(SessionId::uuid),
            &new.integration,
            &new.action,
            new.risk.as_str(),
            new.mode.as_str(),
            new.mode_source.as_str(),
            new.mode_reason.as_deref(),
            &new.params,
            new.definition_hash.as_deref(),
            waiting.map(|waiting| &waiting.request),
            new.key_id.map(ApiKeyId::uuid),
            new.two_person,
            waiting.map(|waiting| waiting.expires_at),
            run.created_at,
        ]
    };
    let into = "INSERT INTO invocations (org_id, run_id, id, session_id, integration, action, risk, mode,
        mode_source, mode_reason, params, definition_hash, request, key_id, two_person,
        expires_at, created_at) ";
    let statement = Statement::Insert { into, conflict: "" };
    Rows { statement, values: plan.invocations.iter().map(row).collect() }
}

fn ends<'a>(plan: &Plan<'a>) -> Rows<'a> {
    let rows = plan.ends.iter().map(|PlannedEnd { org, run_id, ended: end, position }| {
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
    let set = &[
        ("status", 3),
        ("outcome", 4),
        ("error", 5),
        ("answer", 6),
        ("response_hash", 7),
        ("outputs", 8),
        ("completed_at", 9),
        ("ended_position", 10),
    ];
    Rows { statement: Statement::Update { table: "runs", set, key: RUN_KEY }, values: rows.collect() }
}

/// The key of a run: the first two values of its row.
const RUN_KEY: &[(&str, usize)] = &[("org_id", 1), ("run_id", 2)];

fn takes<'a>(plan: &Plan<'a>) -> Rows<'a> {
    Rows {
        statement: Statement::Update { table: "runs", set: &[("instance", 3)], key: RUN_KEY },
        values: plan.takes.iter().map(|(org, run, to)| row![org.uuid(), *run, *to]).collect(),
    }
}

/// The changes of tools to configurations: one statement for each column.
fn effects<'a>(effects: &[&'a Effect]) -> [Rows<'a>; 2] {
    const COMMAND_COLUMNS: &[(&str, usize)] = &[
        ("service_commands", 3),
        ("service_commands_updated_by", 4),
        ("service_commands_updated_at", 5),
        ("updated_at", 5),
    ];
    const ENV_FILE_COLUMNS: &[(&str, usize)] =
        &[("env_files", 3), ("env_files_updated_by", 4), ("env_files_updated_at", 5), ("updated_at", 5)];
    let (mut commands, mut files) = (Vec::new(), Vec::new());
    for effect in effects {
        let (rows, ConfigurationEffect { org, configuration, value, by, at }) = match effect {
            Effect::SaveServiceCommands(change) => (&mut commands, change),
            Effect::SaveEnvFiles(change) => (&mut files, change),
            Effect::CompleteRun(_) => continue,
        };
        rows.push(row![org.uuid(), configuration.uuid(), value, by, *at]);
    }
    let key = &[("org_id", 1), ("id", 2)];
    let update = |set| Statement::Update { table: "configurations", set, key };
    [
        Rows { statement: update(COMMAND_COLUMNS), values: commands },
        Rows { statement: update(ENV_FILE_COLUMNS), values: files },
    ]
}

/// Changes of operators, which are rare.
fn governing<'a>(changes: &[&'a Change]) -> [Rows<'a>; 4] {
    let (mut locks, mut grants, mut revoked) = (Vec::new(), Vec::new(), Vec::new());
    let mut modes = BTreeMap::new();
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
            // PostgreSQL refuses a statement that sets a row twice, so only the last of several changes is written.
            Change::SetMode(set) => {
                let row = row![
                    set.org_id.uuid(),
                    &set.key,
                    set.mode.as_str(),
                    Cell::Json(set.conditions.as_ref().map(|conditions| conditions.to_string().into())),
                    set.two_person,
                    set.invocation.map(InvocationId::uuid),
                    &set.changed_by,
                    set.changed_at,
                ];
                modes.insert((set.org_id, &set.key), row);
            }
            Change::RevokeGrant { id, by, at } => revoked.push(row![*id, by, *at]),
            _ => {}
        }
    }
    // There is one lock, so only the last of several changes is written.
    locks.drain(..locks.len().saturating_sub(1));
    let locks = Rows {
        statement: Statement::Insert {
            into: "INSERT INTO safety_lock (id, locked, changed_by, reason, changed_at) ",
            conflict: " ON CONFLICT (id) DO UPDATE SET locked = excluded.locked,
                changed_by = excluded.changed_by, reason = excluded.reason, changed_at = excluded.changed_at",
        },
        values: locks,
    };
    let grants = Rows {
        statement: Statement::Insert {
            into: "INSERT INTO override_grants (id, org_id, user_id, ticket, reason, granted_by, valid_from,
                valid_until) ",
            conflict: "",
        },
        values: grants,
    };
    let modes = Rows {
        statement: Statement::Insert {
            into: "INSERT INTO action_modes (org_id, action_key, mode, conditions, two_person, invocation_id,
                changed_by, changed_at) ",
            conflict: " ON CONFLICT (org_id, action_key) DO UPDATE SET mode = excluded.mode,
                conditions = excluded.conditions, two_person = excluded.two_person,
                invocation_id = excluded.invocation_id, changed_by = excluded.changed_by,
                changed_at = excluded.changed_at",
        },
        values: modes.into_values().collect(),
    };
    let set = &[("revoked_by", 2), ("revoked_at", 3)];
    let statement = Statement::Update { table: "override_grants", set, key: &[("id", 1)] };
    [locks, grants, modes, Rows { statement, values: revoked }]
}

fn artifacts<'a>(artifacts: &[&'a NewArtifact]) -> [Rows<'a>; 2] {
    let conflict = " ON CONFLICT (org_id, artifact_id) DO NOTHING";
    let into = "INSERT INTO artifact_contents (org_id, artifact_id, content) ";
    let row = |new: &&'a NewArtifact| row![new.org_id.uuid(), &new.artifact_id, new.content.as_slice()];
    let contents =
        Rows { statement: Statement::Insert { into, conflict }, values: artifacts.iter().map(row).collect() };
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
    let into = "INSERT INTO artifacts (org_id, artifact_id, artifact_kind, hash_sha256, hash_source, scope,
        case_id, content_type, byte_size, lineage, created_at) ";
    [contents, Rows { statement: Statement::Insert { into, conflict }, values: described.collect() }]
}

/// The rows of the ledger: linked events, the new heads of the chains, and the size of the tree.
pub(crate) fn ledger_rows<'a>(
    events: &[PlannedEvent<'a>],
    entries: &'a [Entry],
    heads: &'a HashMap<String, Head>,
    size: u64,
) -> Result<[Rows<'a>; 3], StoreError> {
    let mut rows = Vec::with_capacity(events.len());
    for (planned, entry) in events.iter().zip(entries) {
        let (new, event) = (planned.new, &planned.new.event);
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
            planned.unattached,
            &entry.record,
            entry.prev_hash.to_string(),
            entry.hash.to_string(),
            event_time(event)?,
        ]);
    }
    let into = "INSERT INTO ledger_events (chain, sequence, position, event_id, org_id, action_type, outcome,
        run_id, case_id, unattached, record, prev_hash, hash, created_at) ";
    let appended = Rows { statement: Statement::Insert { into, conflict: "" }, values: rows };
    let orgs: HashMap<_, _> =
        events.iter().zip(entries).map(|(planned, entry)| (entry.chain.as_str(), planned.new.org)).collect();
    let new_heads = heads.iter().map(|(chain, head)| {
        let org = orgs.get(chain.as_str()).copied().flatten().map(OrgId::uuid);
        row![chain, org, head.sequence, head.hash.to_string()]
    });
    let new_heads = Rows {
        statement: Statement::Insert {
            into: "INSERT INTO ledger_heads (chain, org_id, sequence, hash) ",
            conflict: " ON CONFLICT (chain) DO UPDATE SET sequence = excluded.sequence, hash = excluded.hash",
        },
        values: new_heads.collect(),
    };
    let tree = Rows {
        statement: Statement::Update { table: "ledger_tree", set: &[("size", 2)], key: &[("id", 1)] },
        values: vec![row![1_i64, size + entries.len() as u64]],
    };
    Ok([appended, new_heads, tree])
}
