//! Network access of sandboxes: the rules, and the records of what was accessed.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{EgressKind, EgressMode, EgressOutcome, SessionId, iso};

/// The egress rules of an organization; a PUT replaces all of them. Entries are `example.com`,
/// `*.example.com`, `example.com:22` or `example.com:8000-8080`. A deny rule always wins. Strict, because a misspelled list would
/// be replaced with nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct EgressRules {
    pub mode: EgressMode,
    #[serde(default)]
    #[schema(max_items = 1000)]
    pub allow: Vec<String>,
    #[serde(default)]
    #[schema(max_items = 1000)]
    pub deny: Vec<String>,
}

/// Selects egress records.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct EgressQuery {
    pub session_id: Option<SessionId>,
    /// The number of records: at most 1000; the default is 100.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
}

/// One attempt of a sandbox to reach a host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct EgressEntry {
    #[serde(with = "iso")]
    pub started_at: DateTime<Utc>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionId>,
    pub sandbox_id: String,
    pub kind: EgressKind,
    /// Absent if the request could not be parsed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    pub outcome: EgressOutcome,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub bytes_up: u64,
    pub bytes_down: u64,
    pub duration_ms: u64,
}

/// Egress records, newest first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EgressList {
    pub records: Vec<EgressEntry>,
}
