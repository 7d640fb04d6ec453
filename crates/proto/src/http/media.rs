//! Files that the agent has uploaded as evidence: `GET /proliferate/{id}/verification-media`.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::iso;

/// The files below a prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MediaFiles {
    pub files: Vec<MediaFile>,
}

/// One stored file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct MediaFile {
    pub key: String,
    /// The last segment of the key.
    pub name: String,
    /// The key without the prefix that was asked for.
    pub path: String,
    pub content_type: String,
    pub size: u64,
    #[serde(with = "iso")]
    pub last_modified: DateTime<Utc>,
}

/// Where one file can be fetched for a while without a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MediaUrl {
    pub url: String,
}
