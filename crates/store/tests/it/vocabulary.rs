//! Compares the CHECK list of every column with the vocabulary of the program.

use std::collections::{BTreeMap, BTreeSet};

use proto::http::{KeyScope, SecretPurpose, SecretScope, TicketKind};
use proto::socket::{MessageRole, MessageSource, QuestionKind, QuestionState, SnapshotTarget, ToolStatus};
use proto::{
    ActionMode, AutomationRunStatus, ClientType, ConfigurationKind, ConfigurationStatus, EgressKind,
    EgressMode, EgressOutcome, FreeForm, IntegrationProvider, IntegrationStatus, ModeSource,
    NotificationKind, NotificationState, Origin, Outcome, PauseReason, PromptState, RepoSource, Risk, Role,
    RunEventKind, RunKind, RunStatus, SessionStatus, SessionType, TitleSource, TriggerEventStatus,
    TriggerKind, WebhookScheme,
};
use store::Migration;

/// The words of one of proto's vocabularies.
macro_rules! words {
    ($vocabulary:ty) => {
        <$vocabulary>::ALL.iter().map(|word| word.as_str()).collect::<BTreeSet<_>>()
    };
}

/// Columns whose words are one of proto's vocabularies.
fn shared() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    BTreeMap::from([
        ("action_modes.mode", words!(ActionMode)),
        ("api_keys.scope", words!(KeyScope)),
        ("automation_run_events.from_status", words!(AutomationRunStatus)),
        ("automation_run_events.kind", words!(RunEventKind)),
        ("automation_run_events.to_status", words!(AutomationRunStatus)),
        ("automation_runs.status", words!(AutomationRunStatus)),
        ("automations.webhook_scheme", words!(WebhookScheme)),
        ("runs.run_kind", words!(RunKind)),
        ("runs.status", words!(RunStatus)),
        ("configurations.kind", words!(ConfigurationKind)),
        ("configurations.status", words!(ConfigurationStatus)),
        ("connector_tools.risk", words!(Risk)),
        ("connectors.default_risk", words!(Risk)),
        ("databases.free_form", words!(FreeForm)),
        ("egress_policies.mode", words!(EgressMode)),
        ("egress_records.kind", words!(EgressKind)),
        ("egress_records.outcome", words!(EgressOutcome)),
        ("integrations.provider", words!(IntegrationProvider)),
        ("integrations.status", words!(IntegrationStatus)),
        ("invocations.mode", words!(ActionMode)),
        ("invocations.mode_source", words!(ModeSource)),
        ("invocations.risk", words!(Risk)),
        ("members.role", words!(Role)),
        ("messages.role", words!(MessageRole)),
        ("messages.source", words!(MessageSource)),
        ("notifications.kind", words!(NotificationKind)),
        ("notifications.state", words!(NotificationState)),
        ("parts.status", words!(ToolStatus)),
        ("prompts.source", words!(MessageSource)),
        ("prompts.state", words!(PromptState)),
        ("questions.kind", words!(QuestionKind)),
        ("questions.state", words!(QuestionState)),
        ("repos.source", words!(RepoSource)),
        ("secrets.purpose", words!(SecretPurpose)),
        ("secrets.scope", words!(SecretScope)),
        ("sessions.client_type", words!(ClientType)),
        ("sessions.origin", words!(Origin)),
        ("sessions.outcome", words!(Outcome)),
        ("sessions.pause_reason", words!(PauseReason)),
        ("sessions.session_type", words!(SessionType)),
        ("sessions.status", words!(SessionStatus)),
        ("sessions.title_source", words!(TitleSource)),
        ("snapshots.target", words!(SnapshotTarget)),
        ("tickets.kind", words!(TicketKind)),
        ("trigger_events.kind", words!(TriggerKind)),
        ("trigger_events.status", words!(TriggerEventStatus)),
    ])
}

/// Columns whose words are in no vocabulary of proto.
const DATABASE_ONLY: [&str; 7] = [
    "artifacts.hash_source",
    "artifacts.scope",
    "automation_outbox.step",
    "idempotency_keys.state",
    "ledger_events.action_type",
    "ledger_events.outcome",
    "parts.kind",
];

#[test]
fn every_check_list_matches_its_vocabulary() {
    let mut found = checked_words();
    for (column, words) in shared() {
        assert_eq!(found.remove(column), Some(words), "{column}");
    }
    let rest: Vec<_> = found.keys().map(String::as_str).collect();
    assert_eq!(rest, DATABASE_ONLY, "name a new list in one of the two tables above");
}

/// Names of columns that suggest a closed set of words, alone or after an underscore.
const CLOSED_COLUMNS: [&str; 11] =
    ["kind", "mode", "origin", "outcome", "provider", "role", "scope", "source", "state", "status", "type"];

/// Columns with such a name that are not a closed set, and why.
const OPEN_COLUMNS: [(&str, &str); 8] = [
    ("artifacts.artifact_kind", "named by whoever made the artifact"),
    ("artifacts.content_type", "a media type"),
    ("configurations.sandbox_provider", "providers come and go without a migration"),
    ("evidence_files.content_type", "a media type"),
    ("notification_settings.origin", "an origin of the web"),
    ("runs.outcome", "free text of the contract"),
    ("sessions.sandbox_provider", "providers come and go without a migration"),
    ("snapshots.sandbox_provider", "providers come and go without a migration"),
];

#[test]
fn columns_named_like_a_closed_vocabulary_have_a_check() {
    let checked = checked_words();
    let sounds_closed = |column: &str| CLOSED_COLUMNS.contains(&column.rsplit(['_', '.']).next().unwrap());
    let columns = text_columns();
    assert!(columns.len() > 80, "only {} columns: the migrations are not read", columns.len());
    let open: Vec<_> =
        columns.iter().filter(|column| sounds_closed(column) && !checked.contains_key(*column)).collect();
    assert_eq!(open, OPEN_COLUMNS.map(|(column, _)| column));
}

/// Every table of the schema: its name and the text between its parentheses. A later migration may create a table anew.
fn tables() -> BTreeMap<&'static str, &'static str> {
    let statements =
        Migration::ALL.iter().flat_map(|migration| migration.text.split("\nCREATE TABLE ").skip(1));
    statements
        .map(|text| {
            let (name, rest) = text.split_once(" (\n").unwrap();
            (name, rest.split_once("\n);").unwrap().0)
        })
        .collect()
}

/// `table.column` and the words of its `CHECK (column IN ('a', 'b'))`.
fn checked_words() -> BTreeMap<String, BTreeSet<&'static str>> {
    let mut found = BTreeMap::new();
    for (table, text) in tables() {
        for check in text.split("CHECK (").skip(1) {
            let Some((column, rest)) = check.split_once(" IN (") else { continue };
            // A condition over several columns is not a list of words.
            if column.chars().all(|c| c.is_ascii_lowercase() || c == '_') {
                let words = rest.split_once(')').unwrap().0;
                let words = words.split(',').map(|word| word.trim().trim_matches('\'')).collect();
                assert!(
                    found.insert(format!("{table}.{column}"), words).is_none(),
                    "{table}.{column} has two lists"
                );
            }
        }
    }
    found
}

/// `table.column` of every column of type TEXT, sorted.
fn text_columns() -> BTreeSet<String> {
    let of_table = |(table, text): (&str, &'static str)| {
        let names = text.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(" TEXT"));
        names.map(|(name, _)| format!("{table}.{name}")).collect::<Vec<_>>()
    };
    tables().into_iter().flat_map(of_table).collect()
}
