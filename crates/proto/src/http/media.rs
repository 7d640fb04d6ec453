//! Files that the agent uploaded as evidence: `GET /proliferate/{id}/verification-media`.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::iso;

/// The uploaded files under a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MediaFiles {
    pub files: Vec<MediaFile>,
}

/// One uploaded file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MediaFile {
    pub key: String,
    /// The last segment of the key.
    pub name: String,
    /// The key without the requested prefix.
    pub path: String,
    pub content_type: String,
    pub size: u64,
    #[serde(with = "iso")]
    pub last_modified: DateTime<Utc>,
}

/// A temporary URL from which the file can be fetched without a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MediaUrl {
    pub url: String,
}
