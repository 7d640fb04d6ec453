//! Checks that the current safety lock, break-glass grants and action modes follow from the events that changed
//! them.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use ledger::{ActionType, Event, TargetType, Text};
use proto::OrgId;
use store::{AuditReader, EventRow, OrgActionMode, OverrideGrant, SafetyLock};
use uuid::Uuid;

use super::VerifyError;
use super::difference::{Place, readable};
use crate::audit_writer;
use crate::governance::{GRANT_PREFIX, UNSET_OPERATION, mode_notes};

/// The state in force according to the events.
#[derive(Default)]
pub(super) struct GovernanceState {
    lock: Option<(u64, SafetyLock)>,
    grants: BTreeMap<Uuid, (u64, OverrideGrant)>,
    /// The modes by organization and action key.
    modes: BTreeMap<(OrgId, String), (u64, Mode)>,
}

/// The mode of an action, who set it and when.
struct Mode {
    word: String,
    /// The parts of the row that the event's notes describe.
    notes: String,
    by: String,
    at: DateTime<Utc>,
}

impl GovernanceState {
    pub(super) fn note(&mut self, row: &EventRow, event: &Event) {
        let Some(target) = event.target.as_ref().filter(|it| it.target_type == TargetType::Policy) else {
            return;
        };
        let operation = target.operation.as_ref().map(Text::as_str);
        match (event.action_type, target.name.as_str(), operation, row.org_id) {
            (ActionType::PolicyChange, "safety_lock", Some(operation), None) => {
                let lock = SafetyLock {
                    locked: operation == "lock",
                    changed_by: event.actor.actor_id.as_str().to_owned(),
                    reason: reason(event),
                    changed_at: audit_writer::moment(event),
                };
                self.lock = Some((row.entry.position, lock));
            }
            // An action key contains a colon; none of our other targets does.
            (ActionType::PolicyChange, key, Some(UNSET_OPERATION), Some(org)) if key.contains(':') => {
                self.modes.remove(&(org, key.to_owned()));
            }
            (ActionType::PolicyChange, key, Some(mode), Some(org)) if key.contains(':') => {
                let by = event.actor.actor_id.as_str().to_owned();
                let notes = event.notes.as_ref().map(|notes| notes.as_str().to_owned()).unwrap_or_default();
                let mode = Mode { word: mode.to_owned(), notes, by, at: audit_writer::moment(event) };
                self.modes.insert((org, key.to_owned()), (row.entry.position, mode));
            }
            (ActionType::Override, "override_grant", Some("grant"), Some(org)) => {
                if let Some(grant) = granted_override(org, event) {
                    self.grants.insert(grant.id, (row.entry.position, grant));
                }
            }
            (ActionType::Override, "override_grant", Some("revoke"), Some(_)) => {
                let id = event
                    .notes
                    .as_ref()
                    .and_then(|notes| notes.as_str().strip_prefix(GRANT_PREFIX)?.parse().ok());
                if let Some((position, grant)) = id.and_then(|id: Uuid| self.grants.get_mut(&id)) {
                    *position = row.entry.position;
                    grant.revoked_by = Some(event.actor.actor_id.as_str().to_owned());
                    grant.revoked_at = Some(audit_writer::moment(event));
                }
            }
            _ => {}
        }
    }

    pub(super) async fn check(self, reader: &mut AuditReader) -> Result<(), VerifyError> {
        check_lock(readable("safety_lock", reader.safety_lock().await)?, self.lock)?;
        check_grants(readable("override_grants", reader.grants().await)?, self.grants)?;
        check_modes(readable("action_modes", reader.action_modes().await)?, self.modes)
    }
}

fn check_lock(stored: Option<SafetyLock>, said: Option<(u64, SafetyLock)>) -> Result<(), VerifyError> {
    let record = said.as_ref().map(|(position, _)| *position);
    let place = Place { table: "safety_lock", key: &|| "id=1".to_owned(), record };
    let (stored, said) = match (stored, said) {
        (None, None) => return Ok(()),
        (Some(stored), Some((_, said))) => (stored, said),
        (stored, said) => {
            let said = said.map(|(_, said)| said);
            let (stored, said) = (stored.map(|lock| lock.locked), said.map(|lock| lock.locked));
            return Err(place.differs("locked", &stored, &said));
        }
    };
    place.compare("locked", &stored.locked, &said.locked)?;
    place.compare("changed_by", &stored.changed_by, &said.changed_by)?;
    place.compare("reason", &stored.reason, &said.reason)?;
    place.compare("changed_at", &stored.changed_at, &said.changed_at)
}

fn check_grants(
    stored: Vec<OverrideGrant>,
    mut said: BTreeMap<Uuid, (u64, OverrideGrant)>,
) -> Result<(), VerifyError> {
    for row in stored {
        let found = said.remove(&row.id);
        let key = || format!("id={}", row.id);
        let record = found.as_ref().map(|(position, _)| *position);
        let place = Place { table: "override_grants", key: &key, record };
        let Some((_, grant)) = found else {
            return Err(place.difference("id", row.id.to_string(), "no such grant".to_owned()));
        };
        place.compare("org_id", &row.org_id, &grant.org_id)?;
        place.compare("user_id", &row.user_id, &grant.user_id)?;
        place.compare("ticket", &row.ticket, &grant.ticket)?;
        place.compare("reason", &row.reason, &grant.reason)?;
        place.compare("granted_by", &row.granted_by, &grant.granted_by)?;
        place.compare("valid_from", &row.valid_from, &grant.valid_from)?;
        place.compare("valid_until", &row.valid_until, &grant.valid_until)?;
        place.compare("revoked_by", &row.revoked_by, &grant.revoked_by)?;
        place.compare("revoked_at", &row.revoked_at, &grant.revoked_at)?;
    }
    match said.into_iter().next() {
        None => Ok(()),
        Some((id, (position, _))) => {
            let key = || format!("id={id}");
            let place = Place { table: "override_grants", key: &key, record: Some(position) };
            Err(place.difference("id", "no row".to_owned(), "a grant".to_owned()))
        }
    }
}

fn check_modes(
    stored: Vec<OrgActionMode>,
    mut said: BTreeMap<(OrgId, String), (u64, Mode)>,
) -> Result<(), VerifyError> {
    for row in stored {
        let key = || format!("org_id={} action_key={}", row.org_id, row.key);
        // An event has only the first part of a long key.
        let cut: Text<0, 200> = Text::cut(&row.key);
        let Some((position, mode)) = said.remove(&(row.org_id, cut.as_str().to_owned())) else {
            let place = Place { table: "action_modes", key: &key, record: None };
            return Err(place.difference("action_key", row.mode.as_str().to_owned(), "no mode".to_owned()));
        };
        let place = Place { table: "action_modes", key: &key, record: Some(position) };
        place.compare("mode", &row.mode.as_str(), &mode.word.as_str())?;
        for (stored, said) in mode_notes(&row).split(", ").zip(mode.notes.split(", ")) {
            let column = stored.split(' ').next().unwrap_or_default();
            place.compare(column, &stored, &said)?;
        }
        place.compare("changed_by", &row.changed_by, &mode.by)?;
        place.compare("changed_at", &row.changed_at, &mode.at)?;
    }
    match said.into_iter().next() {
        None => Ok(()),
        Some(((org, action), (position, mode))) => {
            let key = || format!("org_id={org} action_key={action}");
            let place = Place { table: "action_modes", key: &key, record: Some(position) };
            Err(place.difference("action_key", "no row".to_owned(), mode.word))
        }
    }
}

/// Parses the grant from an event's notes: `grant ID: user ID, ticket TEXT, until TIME`.
fn granted_override(org: OrgId, event: &Event) -> Option<OverrideGrant> {
    let notes = event.notes.as_ref()?.as_str().strip_prefix(GRANT_PREFIX)?;
    let (id, notes) = notes.split_once(": user ")?;
    let (user, notes) = notes.split_once(", ticket ")?;
    let (ticket, until) = notes.rsplit_once(", until ")?;
    Some(OverrideGrant {
        id: id.parse().ok()?,
        org_id: org,
        user_id: user.parse().ok()?,
        ticket: ticket.to_owned(),
        reason: reason(event),
        granted_by: event.actor.actor_id.as_str().to_owned(),
        valid_from: audit_writer::moment(event),
        valid_until: DateTime::parse_from_rfc3339(until).ok()?.with_timezone(&Utc),
        revoked_by: None,
        revoked_at: None,
    })
}

fn reason(event: &Event) -> String {
    event.outcome_reason.as_ref().map(Text::as_str).unwrap_or_default().to_owned()
}
