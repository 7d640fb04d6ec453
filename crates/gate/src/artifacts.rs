//! Artifacts: the inputs and outputs of tools, stored per case and named by their content. Runs and events only refer
//! to them.

use ledger::{ArtifactRef, ArtifactScope, Hash, HashSource, Lineage, Redactor, Text, sha256};
use proto::{OrgId, SessionId};
use serde_json::{Value, json};
use store::{Artifact, JsonText, NewArtifact};

use crate::audit_writer::timestamp;
use crate::judgement::JudgedCall;
use crate::request::CallRequest;

/// The maximum size of an artifact's content. A source refuses to produce a larger result.
pub const MAX_CONTENT_BYTES: usize = 1 << 20;

/// The kind of artifacts that are files from a sandbox.
pub(crate) const EVIDENCE_KIND: &str = "evidence";

/// The parameters of a call without secrets, as an artifact of its case.
pub(crate) fn input(
    call: &JudgedCall,
    redactor: &Redactor,
    at: chrono::DateTime<chrono::Utc>,
) -> Option<NewArtifact> {
    let empty = call.request.target.parameters.as_object().is_none_or(serde_json::Map::is_empty);
    let shown = || redactor.value(&call.request.target.parameters);
    (!empty).then(|| json_artifact(call, "tool_input", &shown(), at))
}

/// The output of a tool, as an artifact of the call's case.
pub(crate) fn output(call: &JudgedCall, value: &Value, at: chrono::DateTime<chrono::Utc>) -> NewArtifact {
    json_artifact(call, "tool_output", value, at)
}

fn json_artifact(
    call: &JudgedCall,
    kind: &str,
    value: &Value,
    at: chrono::DateTime<chrono::Utc>,
) -> NewArtifact {
    // A tool's output may contain numbers without a canonical form. It is stored anyway.
    let content = ledger::canonical(value).unwrap_or_else(|_| value.to_string()).into_bytes();
    let hash = sha256(&content);
    NewArtifact {
        org_id: call.request.caller.org,
        artifact_id: name(call.request.caller.org, call.case.as_deref(), kind, &hash),
        kind: kind.to_owned(),
        hash: hash.to_string(),
        case_id: call.case.clone(),
        content_type: "application/json".to_owned(),
        lineage: JsonText::of(&lineage(&call.request.run.id)),
        at,
        content,
    }
}

/// A file that a tool read for its call, as an artifact of a session's case.
pub fn file_artifact(
    call: &CallRequest,
    session: SessionId,
    content_type: &str,
    content: Vec<u8>,
    at: chrono::DateTime<chrono::Utc>,
) -> NewArtifact {
    let (hash, case) = (sha256(&content), session.to_string());
    NewArtifact {
        org_id: call.caller.org,
        artifact_id: name(call.caller.org, Some(&case), EVIDENCE_KIND, &hash),
        kind: EVIDENCE_KIND.to_owned(),
        hash: hash.to_string(),
        case_id: Some(case),
        content_type: content_type.to_owned(),
        lineage: JsonText::of(&lineage(&call.run.id)),
        at,
        content,
    }
}

/// The reference to an evidence file. A file with the same content may have been stored by another run, or by an attempt of
/// this one that was cut off, so the reference has only what follows from content and case.
pub(crate) fn evidence_reference(file: &NewArtifact, run_id: &str) -> Option<ArtifactRef> {
    let found = new_reference(file, run_id)?;
    Some(ArtifactRef { content_type: None, created_at_utc: None, ..found })
}

/// Whether an artifact's id contains its hash.
pub(crate) fn is_named_by_hash(org: OrgId, case: Option<&str>, kind: &str, hash: &str, id: &str) -> bool {
    hash.parse().is_ok_and(|hash| name(org, case, kind, &hash) == id)
}

fn lineage(run_id: &str) -> Value {
    json!({"derived_from": [], "run_id": run_id})
}

/// The artifact's id. The same content has one id within a case, and different ids in different cases.
fn name(org: OrgId, case: Option<&str>, kind: &str, hash: &Hash) -> String {
    let place = json!([org.to_string(), case, kind, hash.to_string()]).to_string();
    format!("art_{}", &sha256(place.as_bytes()).to_string()[..40])
}

/// Whether an artifact's id matches the columns it was derived from. It does not if the row was changed in the
/// database.
pub fn is_named_right(org: OrgId, found: &Artifact) -> bool {
    is_named_by_hash(org, found.case_id.as_deref(), &found.kind, &found.hash, &found.artifact_id)
}

/// Whether the content matches an artifact's hash.
pub fn is_content_of(found: &Artifact, content: &[u8]) -> bool {
    sha256(content).to_string() == found.hash
}

/// The reference to a new artifact.
pub(crate) fn new_reference(new: &NewArtifact, run_id: &str) -> Option<ArtifactRef> {
    let size = i64::try_from(new.content.len()).ok()?;
    reference(&Artifact {
        artifact_id: new.artifact_id.clone(),
        kind: new.kind.clone(),
        hash: new.hash.clone(),
        case_id: new.case_id.clone(),
        scope: if new.case_id.is_some() { "case".to_owned() } else { "system".to_owned() },
        content_type: Some(new.content_type.clone()),
        byte_size: size,
        lineage: Some(lineage(run_id)),
        created_at: new.at,
    })
}

/// The reference to an artifact of which we know only what the caller claims.
pub fn unknown_reference(artifact_id: Text<3, 120>, hash_sha256: Hash) -> ArtifactRef {
    ArtifactRef {
        artifact_id,
        artifact_kind: Text::fit("unknown"),
        byte_size: None,
        case_id: None,
        confidentiality: None,
        content_type: None,
        created_at_utc: None,
        hash_sha256,
        hash_source: None,
        lineage: None,
        scope: None,
        storage_locator: None,
    }
}

/// The reference to an artifact. `None` for an invalid row, which we never write.
pub fn reference(found: &Artifact) -> Option<ArtifactRef> {
    let run_id = found.lineage.as_ref().and_then(|lineage| lineage["run_id"].as_str());
    Some(ArtifactRef {
        artifact_id: Text::new(found.artifact_id.as_str()).ok()?,
        artifact_kind: Text::new(found.kind.as_str()).ok()?,
        byte_size: u64::try_from(found.byte_size).ok(),
        case_id: found.case_id.as_deref().and_then(|case| Text::new(case).ok()),
        confidentiality: None,
        content_type: found.content_type.as_deref().map(Text::cut),
        created_at_utc: Some(timestamp(found.created_at)),
        hash_sha256: found.hash.parse().ok()?,
        hash_source: Some(HashSource::Bytes),
        lineage: run_id.and_then(|run| {
            Some(Lineage {
                derived_from: Vec::new(),
                run_id: Some(Text::new(run).ok()?),
                transformation: None,
            })
        }),
        scope: Some(if found.case_id.is_some() { ArtifactScope::Case } else { ArtifactScope::System }),
        storage_locator: None,
    })
}
