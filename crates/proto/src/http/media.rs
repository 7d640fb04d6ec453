//! Files that the agent uploaded as evidence: `GET /proliferate/{id}/verification-media`.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::iso;

/// The files to return, and their form.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct MediaQuery {
    /// Lists the files whose keys start with this.
    pub prefix: Option<String>,
    /// Returns the address of this file.
    pub key: Option<String>,
    /// Returns the bytes of the file instead of its address.
    pub stream: Option<bool>,
}

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

/// The URL of the file's bytes. It needs the same credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MediaUrl {
    pub url: String,
}
