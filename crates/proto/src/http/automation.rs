//! Automations and their runs.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    AutomationId, AutomationRunId, AutomationRunStatus, ConfigurationId, JsonObject, Resolution,
    RunEventKind, SessionId, TriggerEventId, TriggerEventStatus, TriggerKind, UserId, WaitingFor,
    WebhookScheme, iso,
};

/// An automation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutomationEntry {
    pub id: AutomationId,
    pub name: String,
    pub enabled: bool,
    /// The prompt of every run.
    pub instructions: String,
    /// The model of its sessions; absent means the default.
    pub model: Option<String>,
    /// The configuration that its sessions start from; absent means an empty workspace.
    pub configuration_id: Option<ConfigurationId>,
    /// Replaces the base of the agent's system prompt.
    pub system_prompt: Option<String>,
    pub webhook: Option<WebhookEntry>,
    pub cron: Option<CronEntry>,
    pub created_by: Option<UserId>,
    #[serde(with = "iso")]
    pub created_at: DateTime<Utc>,
    #[serde(with = "iso")]
    pub updated_at: DateTime<Utc>,
}

/// The webhook of an automation.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WebhookEntry {
    pub scheme: WebhookScheme,
    /// The URL that receives the webhook's requests.
    pub url: String,
    /// The secret that signs requests: only in the answer to the request that made the gateway generate it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Hides the secret.
impl fmt::Debug for WebhookEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookEntry")
            .field("scheme", &self.scheme)
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

/// The schedule of an automation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CronEntry {
    pub schedule: String,
    pub time_zone: String,
    /// The time of the next firing; absent while the automation is disabled.
    #[serde(with = "iso::option")]
    pub next_at: Option<DateTime<Utc>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AutomationList {
    pub automations: Vec<AutomationEntry>,
}

/// A request to create an automation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct CreateAutomation {
    #[schema(min_length = 1, max_length = 100)]
    pub name: String,
    #[schema(min_length = 1, max_length = 65_536)]
    pub instructions: String,
    /// Defaults to `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configuration_id: Option<ConfigurationId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 32_768)]
    pub system_prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<SetWebhook>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cron: Option<SetCron>,
}

/// A request to change an automation. Absent fields stay as they are, and `null` removes what may be absent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangeAutomation {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 100)]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 65_536)]
    pub instructions: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub model: Option<Option<String>>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<ConfigurationId>)]
    pub configuration_id: Option<Option<ConfigurationId>>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, max_length = 32_768)]
    pub system_prompt: Option<Option<String>>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SetWebhook>)]
    pub webhook: Option<Option<SetWebhook>>,
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<SetCron>)]
    pub cron: Option<Option<SetCron>>,
}

/// Tells `null` from an absent field.
#[expect(clippy::option_option, reason = "absent, null and a value are three things")]
fn present<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

/// A webhook. Without a secret the gateway keeps the present one, or generates one and shows it once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetWebhook {
    pub scheme: WebhookScheme,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 16, max_length = 200)]
    pub secret: Option<String>,
}

/// Hides the secret.
impl fmt::Debug for SetWebhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetWebhook").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// A schedule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SetCron {
    /// Five fields: minute, hour, day of the month, month, day of the week.
    #[schema(max_length = 200)]
    pub schedule: String,
    /// A name of the IANA database, such as `Europe/Berlin`; defaults to `UTC`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 100)]
    pub time_zone: Option<String>,
}

/// A request to run an automation by hand.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StartAutomationRun {
    /// The object that the agent finds as `payload` in `trigger-context.json`, of at most 448 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub context: Option<JsonObject>,
}

/// The answer to an accepted webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HookReply {
    /// Absent for a request that asks for nothing, such as GitHub's `ping`.
    pub event_id: Option<TriggerEventId>,
    /// The run that the request started; absent if it was skipped.
    pub run_id: Option<AutomationRunId>,
    /// The request had been accepted before and started nothing now.
    pub duplicate: bool,
}

/// A run of an automation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutomationRunEntry {
    pub id: AutomationRunId,
    pub automation_id: AutomationId,
    pub automation_name: String,
    pub status: AutomationRunStatus,
    /// Why the run is in this state, for people.
    pub status_reason: Option<String>,
    pub waiting_for: Option<WaitingFor>,
    pub trigger: TriggerKind,
    pub trigger_event_id: TriggerEventId,
    /// The run that this one repeats.
    pub rerun_of: Option<AutomationRunId>,
    pub session_id: Option<SessionId>,
    /// The report of the agent.
    pub completion: Option<Completion>,
    pub assigned_to: Option<UserId>,
    #[serde(with = "iso::option")]
    pub assigned_at: Option<DateTime<Utc>>,
    #[serde(with = "iso")]
    pub queued_at: DateTime<Utc>,
    #[serde(with = "iso::option")]
    pub started_at: Option<DateTime<Utc>>,
    #[serde(with = "iso::option")]
    pub completed_at: Option<DateTime<Utc>>,
    /// The time at which the run times out. It moves on while the agent waits for an answer.
    #[serde(with = "iso")]
    pub deadline_at: DateTime<Utc>,
}

/// The report of an agent with `automation_complete`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Completion {
    pub completion_id: String,
    pub outcome: crate::CompletionOutcome,
    pub summary_markdown: Option<String>,
    pub citations: Vec<String>,
    pub diff_ref: Option<String>,
    pub test_report_ref: Option<String>,
    pub side_effect_refs: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AutomationRunList {
    pub runs: Vec<AutomationRunEntry>,
}

/// A run with its log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AutomationRunDetail {
    #[serde(flatten)]
    pub run: AutomationRunEntry,
    pub events: Vec<RunEventEntry>,
}

/// An entry in the log of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RunEventEntry {
    pub kind: RunEventKind,
    pub from: Option<AutomationRunStatus>,
    pub to: Option<AutomationRunStatus>,
    /// A user, the agent's session, or `gateway`.
    pub actor: String,
    pub detail: Option<String>,
    #[serde(with = "iso")]
    pub at: DateTime<Utc>,
}

/// Something that started a run, or was skipped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TriggerEventEntry {
    pub id: TriggerEventId,
    pub kind: TriggerKind,
    pub status: TriggerEventStatus,
    /// Why the event started no run.
    pub skip_reason: Option<String>,
    /// Why its run did not succeed.
    pub error: Option<String>,
    /// The provider's name of the event.
    pub event_name: Option<String>,
    pub run_id: Option<AutomationRunId>,
    /// The time of the firing, for cron.
    #[serde(with = "iso::option")]
    pub scheduled_for: Option<DateTime<Utc>>,
    /// The number of missed firings that this one makes up for, for cron.
    pub missed: u64,
    #[serde(with = "iso")]
    pub received_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct TriggerEventList {
    pub trigger_events: Vec<TriggerEventEntry>,
}

/// The filter of a list of runs, newest first.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct AutomationRunQuery {
    pub status: Option<AutomationRunStatus>,
    /// Defaults to 20, at most 100.
    pub limit: Option<u32>,
}

/// A request to assign a run. Without a user the caller claims it; `null` leaves it to nobody.
/// Strict, because with a misspelled user the caller would claim it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct AssignRun {
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<UserId>)]
    pub user_id: Option<Option<UserId>>,
}

/// A request to settle a run that did not succeed. Strict as [`AssignRun`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResolveRun {
    pub outcome: Resolution,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(max_length = 2000)]
    pub comment: Option<String>,
}
