//! Compares runs with the events that reference them. An event has the hash of the row that was written with it.
//! If the hash differs, the columns that the event itself contains are compared, to find the one that was changed.

use std::collections::HashMap;

use ledger::{Event, Hash, Outcome, Text};
use policy::Claim;
use proto::{OrgId, RunStatus};
use serde::Deserialize as _;
use serde_json::{Value, json};
use store::{AuditReader, EventRow, Run, RunColumns, RunRow, run_hash};

use super::VerifyError;
use super::difference::{Place, readable};
use crate::result::CallResult;

/// The number of events in one write that can be found through its run (`events_of_runs`).
const EVENTS_PER_WRITE: u64 = 4;

/// The counts of runs that match their events.
#[derive(Default)]
pub(super) struct Runs {
    begun: u64,
    /// The runs that claim to have ended in a write of their own, and those whose end was found.
    end_later: u64,
    ended: u64,
}

impl Runs {
    pub(super) fn check(
        &mut self,
        row: &EventRow,
        event: &Event,
        runs: &HashMap<(OrgId, String), RunRow>,
    ) -> Result<(), VerifyError> {
        let position = row.entry.position;
        let hash = run_hash(event);
        let loose_key = || format!("position={position}");
        let loose = Place { table: "ledger_events", key: &loose_key, record: Some(position) };
        if row.unattached {
            return if hash.is_none() { Ok(()) } else { Err(loose.differs("unattached", &true, &false)) };
        }
        let (Some(org), Some(run_id)) = (row.org_id, &row.run_id) else {
            return Err(loose.differs("unattached", &false, &true));
        };
        let key = || format!("org_id={org} run_id={run_id}");
        let place = Place { table: "runs", key: &key, record: Some(position) };
        let Some(found) = runs.get(&(org, run_id.clone())) else {
            return Err(place.difference("run_id", "no row".to_owned(), "a run".to_owned()));
        };
        let (begun, ended) = (to_position(found.begun_position), to_position(found.ended_position));
        match hash {
            Some((RunColumns::Begun, _)) => place.compare("begun_position", &begun, &Some(position))?,
            Some((RunColumns::Ended, _)) => place.compare("ended_position", &ended, &Some(position))?,
            None => {}
        }
        let window = |first: Option<u64>| {
            first.is_some_and(|first| (first..first + EVENTS_PER_WRITE).contains(&position))
        };
        if begun == Some(position) {
            self.begun += 1;
            self.end_later += u64::from(ended.is_some());
            check_begun(&place, found, event, hash.map(|(_, hash)| hash))
        } else if ended == Some(position) {
            self.ended += 1;
            check_ended(&place, &found.run, event, hash.map(|(_, hash)| hash))
        } else if window(begun) || window(ended) {
            Ok(())
        } else {
            Err(loose.differs("unattached", &false, &true))
        }
    }

    /// Checks that every run has its events. Returns the number of runs.
    pub(super) async fn finish(self, reader: &mut AuditReader) -> Result<u64, VerifyError> {
        let runs = reader.count_runs().await?;
        if (runs, self.end_later) == (self.begun, self.ended) {
            return Ok(runs);
        }
        let Some(row) = readable("runs", reader.unrecorded_run().await)? else { return Ok(runs) };
        let key = || format!("org_id={} run_id={}", row.run.org_id, row.run.run_id);
        let place = Place { table: "runs", key: &key, record: None };
        let positions = format!("{:?} and {:?}", row.begun_position, row.ended_position);
        Err(place.difference(
            "begun_position or ended_position",
            positions,
            "no event of this run there".to_owned(),
        ))
    }
}

fn to_position(position: Option<i64>) -> Option<u64> {
    position.and_then(|position| u64::try_from(position).ok())
}

fn check_begun(
    place: &Place<'_>,
    row: &RunRow,
    event: &Event,
    recorded: Option<Hash>,
) -> Result<(), VerifyError> {
    let (run, ended_later) = (&row.run, row.ended_position.is_some());
    let computed = run.begun_hash(ended_later);
    if recorded == Some(computed) {
        return if ended_later { Ok(()) } else { check_answer(place, run) };
    }
    let cut = |text: Option<&str>, most: usize| text.map(|text| text.chars().take(most).collect::<String>());
    let said = |text: Option<&str>| text.map(str::to_owned);
    let target = event.target.as_ref();
    let name = target.map(|target| target.name.as_str());
    let operation = target.and_then(|target| target.operation.as_ref()).map(Text::as_str);
    place.compare("lanes_version", &run.lanes_version.as_str(), &event.policy_versions.lanes.as_str())?;
    place.compare("roles_version", &run.roles_version.as_str(), &event.policy_versions.roles.as_str())?;
    place.compare(
        "parent_run_id",
        &run.parent_run_id,
        &said(event.parent_run_id.as_ref().map(Text::as_str)),
    )?;
    place.compare("case_id", &run.case_id, &said(event.case_id.as_ref().map(Text::as_str)))?;
    let correlation = said(event.correlation_id.as_ref().map(Text::as_str));
    place.compare("correlation_id", &run.correlation_id, &correlation)?;
    place.compare(
        "role_id",
        &cut(Some(&run.role_id), 80),
        &said(event.role_id.as_ref().map(Text::as_str)),
    )?;
    place.compare("lane_id", &run.lane_id, &said(event.lane_id.as_ref().map(Text::as_str)))?;
    check_actor(place, run, event)?;
    // The target of a run that is not a call is its kind.
    if run.tool.is_some() || operation.is_none_or(|kind| kind != run.kind.as_str()) {
        place.compare("tool", &cut(run.tool.as_deref(), 200), &said(name))?;
        place.compare("operation", &cut(run.operation.as_deref(), 200), &said(operation))?;
    }
    let request = event.request_hash_sha256.map(|hash| hash.to_string());
    place.compare("request_hash", &run.request_hash, &request)?;
    if !ended_later && run.status != RunStatus::Running && event.outcome == Outcome::Allow {
        place.compare("status", &run.status.as_str(), &RunStatus::Running.as_str())?;
    }
    only_hash(place, UNNAMED_BEGUN, computed, recorded)
}

/// The columns that no event contains.
const UNNAMED_BEGUN: &str = "run_kind, root_run_id, run_name, session_id, inputs, retry_count, retry_reason, \
    created_at, started_at, status, outcome, error, response_hash, outputs, answer or completed_at";
const UNNAMED_ENDED: &str = "outcome, answer or completed_at";

/// Reports a hash mismatch that no single column explains. A record from before events had hashes proves only the
/// columns it contains.
fn only_hash(
    place: &Place<'_>,
    columns: &str,
    computed: Hash,
    recorded: Option<Hash>,
) -> Result<(), VerifyError> {
    match recorded {
        None => Ok(()),
        Some(recorded) => Err(place.difference(
            columns,
            format!("what has the hash {computed}"),
            format!("what has the hash {recorded}"),
        )),
    }
}

fn check_actor(place: &Place<'_>, run: &Run, event: &Event) -> Result<(), VerifyError> {
    let actor: Option<Claim> = serde_json::from_value(run.actor.clone()).ok();
    let id = actor.map(|actor| actor.actor_id.chars().take(120).collect::<String>());
    let said = event.actor.actor_id.as_str();
    // Events pad short names.
    let same = id.as_deref().is_some_and(|id| id == said || (said.starts_with(id) && said.len() == 3));
    if same { Ok(()) } else { Err(place.differs("actor", &run.actor.to_string(), &said)) }
}

fn check_ended(
    place: &Place<'_>,
    run: &Run,
    event: &Event,
    recorded: Option<Hash>,
) -> Result<(), VerifyError> {
    let computed = run.ended_hash();
    if recorded == Some(computed) {
        return check_answer(place, run);
    }
    let fits = match event.outcome {
        Outcome::Success | Outcome::Allow => run.status == RunStatus::Completed,
        Outcome::Deny => matches!(run.status, RunStatus::Denied | RunStatus::Cancelled),
        Outcome::Failure => matches!(run.status, RunStatus::Failed | RunStatus::Cancelled),
    };
    if !fits {
        return Err(place.differs("status", &run.status.as_str(), &event.outcome.as_str()));
    }
    let response = event.response_hash_sha256.map(|hash| hash.to_string());
    place.compare("response_hash", &run.response_hash, &response)?;
    let error = event.error.as_ref().map(|error| json!(error));
    let stored = run.error.as_ref();
    let code = |error: Option<&Value>| {
        error.map(|error| [&error["error_code"], &error["retryable"]].map(Value::to_string))
    };
    if code(stored) != code(error.as_ref()) || message(stored) != message(error.as_ref()) {
        return Err(place.differs("error", &stored.map(Value::to_string), &error.map(|it| it.to_string())));
    }
    let outputs = json!({ "artifact_refs": event.output_artifacts });
    place.compare("outputs", &run.outputs.to_string(), &outputs.to_string())?;
    only_hash(place, UNNAMED_ENDED, computed, recorded)
}

fn message(error: Option<&Value>) -> Option<String> {
    error?["message"].as_str().map(|text| text.chars().take(1_000).collect())
}

/// Checks that the stored answer for retried calls matches the response hash.
fn check_answer(place: &Place<'_>, run: &Run) -> Result<(), VerifyError> {
    let Some(recorded) = &run.response_hash else { return Ok(()) };
    let answer = run.answer.as_ref();
    let result = answer.and_then(|answer| CallResult::deserialize(answer).ok());
    // Deserialize and serialize it again, so that nothing can hide in fields that are not hashed.
    let result = result.filter(|result| serde_json::to_value(result).ok().as_ref() == answer);
    let hash = result.and_then(|result| result.response_hash()).map(|hash| hash.to_string());
    if hash.as_ref() != Some(recorded) {
        let stored =
            hash.map_or_else(|| "no answer".to_owned(), |hash| format!("an answer with the hash {hash}"));
        return Err(place.difference("answer", stored, format!("one with the hash {recorded}")));
    }
    let outcome = answer.map_or(&Value::Null, |answer| &answer["outcome"]);
    let expected =
        run.error.as_ref().map_or_else(|| json!("success"), |it| json!({"failed": it["error_code"]}));
    place.compare("answer", &outcome.to_string(), &expected.to_string())
}
