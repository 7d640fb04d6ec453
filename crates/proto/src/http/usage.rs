//! Model usage of an organization.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::SessionId;
use crate::string_enums::string_enums;

string_enums! {
    /// The dimension that usage is summed by.
    UsageBy as "grouping of usage" {
        /// Days in UTC, newest first.
        Day = "day",
        /// Models, in alphabetical order.
        Model = "model",
        /// Sessions, newest first.
        Session = "session",
    }
}

/// The filter and the grouping of usage.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase")]
#[into_params(parameter_in = Query)]
pub struct UsageQuery {
    /// The dimension to sum by; defaults to days.
    pub by: Option<UsageBy>,
    /// The first day, as `YYYY-MM-DD` in UTC; defaults to 29 days before the last one.
    pub from: Option<String>,
    /// The last day; defaults to today.
    pub to: Option<String>,
    /// Restricts the sum to this session.
    pub session_id: Option<SessionId>,
    /// Restricts the sum to this model.
    pub model: Option<String>,
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// The `next` of the page before.
    pub after: Option<String>,
}

/// Requests, tokens and cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageSums {
    pub requests: i64,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub cache_read_tokens: i64,
    pub cache_write_tokens: i64,
    /// Millionths of a dollar.
    pub cost_micros: i64,
}

/// The usage of one day, model or session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageEntry {
    /// The day, the model or the id of the session.
    pub key: String,
    /// The title of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(flatten)]
    pub sums: UsageSums,
}

/// The answer to `GET /v1/usage`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsageReport {
    pub by: UsageBy,
    pub from: String,
    pub to: String,
    pub entries: Vec<UsageEntry>,
    /// The sum of all pages.
    pub total: UsageSums,
    /// The budget of the organization and what it has spent since it exists; no budget means no limit.
    pub budget_micros: Option<i64>,
    pub spent_micros: i64,
    pub next: Option<String>,
}
