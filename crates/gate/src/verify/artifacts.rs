//! Compares artifacts with the runs that made them, and their content with its hash.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use ledger::sha256;
use proto::OrgId;
use serde_json::{Value, json};
use store::{ArtifactRow, AuditReader, RunRow};

use super::VerifyError;
use super::difference::{Place, readable};
use crate::artifacts::{EVIDENCE_KIND, is_named_by_hash};
use crate::audit_writer::timestamp;

/// Checks that the artifacts made by these runs still exist.
pub(super) async fn check_kept(
    reader: &mut AuditReader,
    runs: &HashMap<(OrgId, String), RunRow>,
) -> Result<(), VerifyError> {
    let mut made: BTreeMap<OrgId, Vec<&str>> = BTreeMap::new();
    for ((org, run_id), row) in runs {
        let ids = made.entry(*org).or_default();
        let own = |found: &&Value| found["lineage"]["run_id"] == run_id.as_str();
        ids.extend(references(&row.run.inputs).filter(own).filter_map(|it| it["artifact_id"].as_str()));
        ids.extend(references(&row.run.outputs).filter(own).filter_map(|it| it["artifact_id"].as_str()));
    }
    for (org, ids) in made {
        if let Some(id) = reader.missing_artifact(org, &ids).await? {
            let key = || format!("org_id={org} artifact_id={id}");
            let place = Place { table: "artifacts", key: &key, record: None };
            return Err(place.difference("artifact_id", "no row".to_owned(), "an artifact".to_owned()));
        }
    }
    Ok(())
}

fn references(list: &Value) -> impl Iterator<Item = &Value> {
    list["artifact_refs"].as_array().into_iter().flatten()
}

/// Checks that every artifact matches its run's record, and its content the hash. Returns the
/// number of artifacts.
pub(super) async fn check_all(reader: &mut AuditReader) -> Result<u64, VerifyError> {
    let (mut count, mut first) = (0, Ok(()));
    let read = reader
        .artifacts(|row| {
            count += 1;
            first = check(row);
            if first.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .await;
    readable("artifacts", read)?;
    first.map(|()| count)
}

fn check(row: &ArtifactRow) -> Result<(), VerifyError> {
    let key = || format!("org_id={} artifact_id={}", row.org_id, row.artifact_id);
    let place = Place { table: "artifacts", key: &key, record: None };
    if row.kind == EVIDENCE_KIND {
        check_evidence(row, &place)?;
        return check_content(row, &place);
    }
    let said = [&row.run_inputs, &row.run_outputs].into_iter().flatten().flat_map(references);
    let Some(said) = said.into_iter().find(|it| it["artifact_id"] == row.artifact_id.as_str()) else {
        let lineage = row.lineage.as_ref().map(Value::to_string).unwrap_or_default();
        return Err(place.difference(
            "artifact_id or lineage",
            format!("{} of {lineage}", row.artifact_id),
            "that this run made no such artifact".to_owned(),
        ));
    };
    let stored = [
        ("artifact_kind", json!(row.kind)),
        ("hash_sha256", json!(row.hash)),
        ("hash_source", json!(row.hash_source)),
        ("scope", json!(row.scope)),
        ("case_id", json!(row.case_id)),
        ("content_type", json!(row.content_type)),
        ("byte_size", json!(row.byte_size)),
        ("created_at_utc", json!(timestamp(row.created_at))),
        ("lineage", json!(row.lineage)),
    ];
    for (field, stored) in stored {
        let column = field.trim_end_matches("_utc");
        place.compare(column, &stored.to_string(), &said[field].to_string())?;
    }
    check_content(row, &place)
}

/// Checks a file of an agent's evidence. The run that stored it names it, unless its call was cut off or failed afterwards.
/// `check_kept` finds what a run names and is gone, and the id contains the hash, so no file takes the place of another.
fn check_evidence(row: &ArtifactRow, place: &Place<'_>) -> Result<(), VerifyError> {
    if !is_named_by_hash(row.org_id, row.case_id.as_deref(), &row.kind, &row.hash, &row.artifact_id) {
        return Err(place.difference(
            "artifact_id, case_id or hash_sha256",
            format!("{} with the hash {}", row.artifact_id, row.hash),
            "the id that follows from hash and case".to_owned(),
        ));
    }
    let mut said = row.run_outputs.iter().flat_map(references);
    let Some(said) = said.find(|it| it["artifact_id"] == row.artifact_id.as_str()) else { return Ok(()) };
    place.compare("byte_size", &json!(row.byte_size).to_string(), &said["byte_size"].to_string())?;
    place.compare("hash_sha256", &json!(row.hash).to_string(), &said["hash_sha256"].to_string())
}

fn check_content(row: &ArtifactRow, place: &Place<'_>) -> Result<(), VerifyError> {
    let content = Place { table: "artifact_contents", ..*place };
    match &row.content {
        Some(bytes) => content.compare(
            "content",
            &format!("bytes with the hash {}", sha256(bytes)),
            &format!("bytes with the hash {}", row.hash),
        ),
        None => Err(content.difference("artifact_id", "no row".to_owned(), "the content".to_owned())),
    }
}
