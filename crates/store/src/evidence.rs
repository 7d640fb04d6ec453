//! Files that agents upload as evidence of their work. The contents are artifacts of the session's case.

use chrono::{DateTime, Utc};
use proto::{OrgId, SessionId};
use sqlx::types::Json;
use uuid::Uuid;

use crate::db::{read, write};
use crate::row::from_row;
use crate::{NewArtifact, Store, StoreError};

/// The files of one upload.
#[derive(Clone, Debug)]
pub struct NewEvidence {
    pub org_id: OrgId,
    pub session_id: SessionId,
    /// The call that uploads them. Earlier files of this call are replaced.
    pub run_id: String,
    pub files: Vec<NewEvidenceFile>,
    pub at: DateTime<Utc>,
}

#[derive(Clone, Debug)]
pub struct NewEvidenceFile {
    /// The file's name for clients, unique in the session.
    pub key: String,
    pub artifact: NewArtifact,
}

/// An uploaded file without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EvidenceFile {
    pub key: String,
    pub artifact_id: String,
    pub content_type: String,
    pub byte_size: i64,
    pub created_at: DateTime<Utc>,
}

from_row!(EvidenceFile, row => EvidenceFile {
    key: row.try_get("key")?,
    artifact_id: row.try_get("artifact_id")?,
    content_type: row.try_get("content_type")?,
    byte_size: row.try_get("byte_size")?,
    created_at: row.try_get("created_at")?,
});

/// The SELECT of evidence files, followed by the rest of a query.
macro_rules! evidence {
    ($rest:literal) => {
        concat!("SELECT key, artifact_id, content_type, byte_size, created_at FROM evidence_files ", $rest)
    };
}

const INSERT_CONTENT: &str =
    "INSERT INTO artifact_contents (org_id, artifact_id, content) VALUES ($1, $2, $3)
    ON CONFLICT (org_id, artifact_id) DO NOTHING";
const INSERT_ARTIFACT: &str = "INSERT INTO artifacts (org_id, artifact_id, artifact_kind, hash_sha256, hash_source, scope,
    case_id, content_type, byte_size, lineage, created_at)
    VALUES ($1, $2, $3, $4, 'bytes', 'case', $5, $6, $7, $8, $9) ON CONFLICT (org_id, artifact_id) DO NOTHING";
const INSERT_FILE: &str =
    "INSERT INTO evidence_files (org_id, session_id, key, run_id, artifact_id, content_type, byte_size,
    created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";

impl Store {
    /// Saves all files of an upload, or none. Saving the files of one call again replaces them.
    pub async fn save_evidence(&self, new: NewEvidence) -> Result<(), StoreError> {
        const DELETE_FILES: &str =
            "DELETE FROM evidence_files WHERE org_id = $1 AND session_id = $2 AND run_id = $3";
        write!(self, Disk, tx => {
            let (org, session) = (new.org_id.uuid(), new.session_id.uuid());
            sqlx::query(DELETE_FILES).bind(org).bind(session).bind(&new.run_id).execute(&mut *tx).await?;
            for NewEvidenceFile { key, artifact } in new.files {
                let size = i64::try_from(artifact.content.len()).unwrap_or(i64::MAX);
                let id = artifact.artifact_id;
                sqlx::query(INSERT_CONTENT).bind(org).bind(&id).bind(artifact.content).execute(&mut *tx).await?;
                sqlx::query(INSERT_ARTIFACT)
                    .bind(org).bind(&id).bind(artifact.kind).bind(artifact.hash).bind(artifact.case_id)
                    .bind(&artifact.content_type).bind(size).bind(Json(artifact.lineage.value())).bind(artifact.at)
                    .execute(&mut *tx).await?;
                sqlx::query(INSERT_FILE)
                    .bind(org).bind(session).bind(key).bind(&new.run_id).bind(&id)
                    .bind(&artifact.content_type).bind(size).bind(new.at)
                    .execute(&mut *tx).await?;
            }
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this file", "this session"))
    }

    /// The bytes of all evidence of a session, without that of this run, which its next upload replaces.
    pub async fn evidence_size(&self, session: SessionId, except_run: &str) -> Result<i64, StoreError> {
        const SQL: &str = "SELECT CAST(COALESCE(sum(byte_size), 0) AS BIGINT) FROM evidence_files
            WHERE session_id = $1 AND run_id <> $2";
        let session = session.uuid();
        Ok(read!(self, pool => sqlx::query_scalar(SQL).bind(session).bind(except_run).fetch_one(pool).await)?)
    }

    /// The evidence of a session whose keys start with `prefix`, sorted by key.
    pub async fn evidence(
        &self,
        session: SessionId,
        prefix: &str,
        limit: i64,
    ) -> Result<Vec<EvidenceFile>, StoreError> {
        const SQL: &str =
            evidence!("WHERE session_id = $1 AND substr(key, 1, length($2)) = $2 ORDER BY key LIMIT $3");
        let session = session.uuid();
        Ok(
            read!(self, pool => sqlx::query_as(SQL).bind(session).bind(prefix).bind(limit).fetch_all(pool).await)?,
        )
    }

    pub async fn evidence_file(
        &self,
        session: SessionId,
        key: &str,
    ) -> Result<Option<EvidenceFile>, StoreError> {
        const SQL: &str = evidence!("WHERE session_id = $1 AND key = $2");
        let session: Uuid = session.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(session).bind(key).fetch_optional(pool).await)?)
    }
}
