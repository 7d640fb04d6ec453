//! Artifacts: the inputs and outputs of tools, by case. Events and runs never hold content.

use chrono::{DateTime, Utc};
use proto::OrgId;
use sqlx::types::{Json, JsonValue};

use crate::db::read;
use crate::row::{JsonText, from_row};
use crate::{Store, StoreError};

/// A new artifact with its content. Without a case it belongs to the system.
#[derive(Clone, Debug)]
pub struct NewArtifact {
    pub org_id: OrgId,
    pub artifact_id: String,
    pub kind: String,
    pub hash: String,
    pub case_id: Option<String>,
    pub content_type: String,
    pub lineage: JsonText,
    pub at: DateTime<Utc>,
    pub content: Vec<u8>,
}

/// An artifact without its content.
#[derive(Clone, Debug, PartialEq)]
pub struct Artifact {
    pub artifact_id: String,
    pub kind: String,
    pub hash: String,
    pub case_id: Option<String>,
    pub scope: String,
    pub content_type: Option<String>,
    pub byte_size: i64,
    pub lineage: Option<JsonValue>,
    pub created_at: DateTime<Utc>,
}

from_row!(Artifact, row => Artifact {
    artifact_id: row.try_get("artifact_id")?,
    kind: row.try_get("artifact_kind")?,
    hash: row.try_get("hash_sha256")?,
    case_id: row.try_get("case_id")?,
    scope: row.try_get("scope")?,
    content_type: row.try_get("content_type")?,
    byte_size: row.try_get("byte_size")?,
    lineage: row.try_get::<Option<Json<_>>, _>("lineage")?.map(|json| json.0),
    created_at: row.try_get("created_at")?,
});

/// The one SELECT of artifacts.
macro_rules! artifacts {
    ($rest:literal) => {
        concat!(
            "SELECT artifact_id, artifact_kind, hash_sha256, case_id, scope, content_type, byte_size, lineage,
            created_at FROM artifacts ",
            $rest
        )
    };
}

impl Store {
    /// An artifact of an organization, whatever its case: the caller must check the case.
    pub async fn artifact(&self, org: OrgId, id: &str) -> Result<Option<Artifact>, StoreError> {
        const SQL: &str = artifacts!("WHERE org_id = $1 AND artifact_id = $2");
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(id).fetch_optional(pool).await)?)
    }

    /// The oldest artifacts of a case.
    pub async fn artifacts(&self, org: OrgId, case: &str, limit: i64) -> Result<Vec<Artifact>, StoreError> {
        const SQL: &str =
            artifacts!("WHERE org_id = $1 AND case_id = $2 ORDER BY created_at, artifact_id LIMIT $3");
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(case).bind(limit).fetch_all(pool).await)?)
    }

    pub async fn artifact_content(&self, org: OrgId, id: &str) -> Result<Option<Vec<u8>>, StoreError> {
        const SQL: &str = "SELECT content FROM artifact_contents WHERE org_id = $1 AND artifact_id = $2";
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_scalar(SQL).bind(org).bind(id).fetch_optional(pool).await)?)
    }
}
