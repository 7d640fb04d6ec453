//! The ledger events of administrative changes: who changed what, never a value. The store writes the event in the
//! transaction of the change.

use ledger::{ActionType, Event, Outcome, Target, TargetType, Text};
use policy::{Claim, ModeKey, ModeSetting};
use proto::{AutomationId, EgressMode, OrgId};
use serde_json::Value;
use store::{NewEvent, Scope};

use super::Gate;
use crate::request::content_hash;

/// The kind of object that was administered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Organization,
    Member,
    Role,
    ApiKey,
    Preference,
    Secret,
    Egress,
    Limits,
    Repository,
    Configuration,
    Automation,
    Connector,
    DatabaseSource,
    Notification,
    Integration,
    Database,
    VaultKey,
    Sandbox,
    Session,
}

impl Subject {
    const fn name(self) -> &'static str {
        match self {
            Self::Organization => "organization",
            Self::Member => "member",
            Self::Role => "role",
            Self::ApiKey => "api_key",
            Self::Preference => "preference",
            Self::Secret => "secret",
            Self::Egress => "egress",
            Self::Limits => "limits",
            Self::Repository => "repository",
            Self::Configuration => "configuration",
            Self::Automation => "automation",
            Self::Connector => "connector",
            Self::DatabaseSource => "database_source",
            Self::Notification => "notification",
            Self::Integration => "integration",
            Self::Database => "database",
            Self::VaultKey => "vault_key",
            Self::Sandbox => "sandbox",
            Self::Session => "session",
        }
    }

    /// The action and target type of an event. Roles, egress rules, limits, connectors and databases of agents decide what
    /// callers may do; the rest is housekeeping.
    const fn action(self) -> (ActionType, TargetType) {
        match self {
            Self::Role | Self::Egress | Self::Limits | Self::Connector | Self::DatabaseSource => {
                (ActionType::PolicyChange, TargetType::Policy)
            }
            _ => (ActionType::System, TargetType::System),
        }
    }
}

/// One change: the kind of object, the operation, and the ids and names involved.
#[derive(Clone, Debug)]
pub struct AdminChange {
    pub subject: Subject,
    pub operation: &'static str,
    pub details: String,
}

impl AdminChange {
    pub fn new(subject: Subject, operation: &'static str, details: impl Into<String>) -> Self {
        Self { subject, operation, details: details.into() }
    }

    /// A change of egress rules. Lists of hosts can be long, so the event has only their lengths and their hash.
    pub fn egress(mode: EgressMode, allow: &[String], deny: &[String]) -> Self {
        let rules = serde_json::json!([mode.as_str(), allow, deny]).to_string();
        let hash = ledger::sha256(rules.as_bytes());
        let details =
            format!("mode {}, {} allowed, {} denied, sha256 {hash}", mode.as_str(), allow.len(), deny.len());
        Self::new(Subject::Egress, "set", details)
    }

    /// A new mode of an action in an automation.
    pub fn automation_mode(automation: AutomationId, key: &ModeKey, setting: &ModeSetting) -> Self {
        let (key, mode) = (key.as_str(), setting.otherwise().as_str());
        let notes = setting_notes(setting.two_person(), setting.conditions());
        Self::new(
            Subject::Automation,
            "change",
            format!("automation {automation}, mode of {key}: {mode}, {notes}"),
        )
    }

    /// A change of secrets. The event has their names, never their values.
    pub fn secrets<'a>(
        operation: &'static str,
        scope: Scope,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let owner = match scope {
            Scope::Org => "the organization".to_owned(),
            Scope::Repo(id) => format!("repository {id}"),
            Scope::Configuration(id) => format!("configuration {id}"),
            Scope::Session(id) => format!("session {id}"),
        };
        let names: Vec<_> = names.into_iter().collect();
        Self::new(Subject::Secret, operation, format!("of {owner}: {}", names.join(", ")))
    }

    pub fn limits(budget_micros: Option<i64>, session_limit: Option<i64>) -> Self {
        let shown = |limit: Option<i64>| limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
        let details =
            format!("budget_micros {}, session_limit {}", shown(budget_micros), shown(session_limit));
        Self::new(Subject::Limits, "set", details)
    }

    pub fn action(&self) -> ActionType {
        self.subject.action().0
    }

    pub(super) fn describe(&self, event: &mut Event) {
        event.target = Some(Target {
            artifact_ref: None,
            name: Text::cut(self.subject.name()),
            operation: Some(Text::cut(self.operation)),
            target_type: self.subject.action().1,
        });
        event.notes = Some(notes(&self.details));
    }
}

/// What the event of a mode says about it besides the word. Conditions can be long, so the event has only their hash.
pub(super) fn setting_notes(two_person: bool, conditions: Option<&Value>) -> String {
    let conditions = conditions.map_or_else(|| "none".to_owned(), |value| content_hash(value).to_string());
    format!("two_person {two_person}, conditions {conditions}")
}

/// Text that is cut off is represented by its hash, so that no change hides behind a long value.
fn notes<const MAX: usize>(details: &str) -> Text<0, MAX> {
    if details.chars().count() <= MAX {
        return Text::cut(details);
    }
    let end = format!("… sha256 {}", ledger::sha256(details.as_bytes()));
    let beginning: String = details.chars().take(MAX.saturating_sub(end.chars().count())).collect();
    Text::cut(&(beginning + &end))
}

impl Gate {
    /// The event of a change that a caller makes over HTTP.
    pub fn admin_event(&self, org: OrgId, actor: &Claim, change: &AdminChange) -> NewEvent {
        let versions = self.rules.policy().pins().versions();
        let mut new = self.audit.event(Some(org), change.action(), Outcome::Success, actor, &versions);
        change.describe(&mut new.event);
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_change_is_told_by_the_hash_of_all_of_it() {
        let short: Text<0, 1000> = notes("risk of a: read");
        assert_eq!(short.as_str(), "risk of a: read");
        let long = |last: &str| format!("{}, risk of z: {last}", "risk of ä: read, ".repeat(100));
        let [one, other]: [Text<0, 1000>; 2] = [notes(&long("read")), notes(&long("danger"))];
        assert_eq!(one.as_str().chars().count(), 1000);
        assert!(one.as_str().ends_with(&ledger::sha256(long("read").as_bytes()).to_string()), "{one:?}");
        assert_ne!(one, other);
    }
}
