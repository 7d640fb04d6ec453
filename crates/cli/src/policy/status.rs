//! `policy status` and `grants ls`: show the lock and the grants that apply to all gateways on this database.

use chrono::{DateTime, Utc};
use ledger::Event;
use proto::iso;
use serde_json::{Value, json};
use store::{OverrideGrant, SafetyLock};

use crate::clean::clean;
use crate::context::Context;
use crate::failure::Failure;
use crate::lookup;

/// Shows the lock, the active grants, and the versions of the policy files that gateways use.
pub(super) async fn show(context: &Context) -> Result<(), Failure> {
    let store = context.store().await?;
    let lock = store.safety_lock().await?;
    let now = context.clock.now();
    let grants: Vec<_> = store
        .override_grants()
        .await?
        .into_iter()
        .filter(|grant| state(grant, now) == ACTIVE_STATUS)
        .collect();
    let loaded = store.last_policy_change().await?;
    let loaded = loaded.and_then(|record| serde_json::from_str::<Event>(&record).ok());
    let pins = loaded.as_ref().map(|event| {
        json!({ "lanes": event.policy_versions.lanes.as_str(), "roles": event.policy_versions.roles.as_str(),
            "since": event.timestamp_utc.as_str() })
    });
    let mut lines = vec![format!("lock    {}", lock_line(lock.as_ref()))];
    lines.push(match &loaded {
        Some(event) => format!(
            "policy  lanes@{} roles@{}, in force since {}",
            event.policy_versions.lanes.as_str(),
            event.policy_versions.roles.as_str(),
            event.timestamp_utc.as_str()
        ),
        None => "policy  none yet: a gateway records it when it starts first".to_owned(),
    });
    lines.push(format!("grants  {} to break the glass", grants.len()));
    let emails = lookup::emails(&store).await?;
    lines.extend(grants.iter().map(|grant| {
        let (user, until) = (emails.name(&grant.user_id.to_string()), iso::text(&grant.valid_until));
        format!("  {}  {}, ticket {}, until {until}", grant.id, clean(&user), clean(&grant.ticket))
    }));
    let value = json!({ "lock": lock.as_ref().map(lock_value), "pins": pins,
        "grants": grants.iter().map(|grant| grant_value(grant, now)).collect::<Vec<_>>() });
    context.out.result(&value, &lines.join("\n"));
    Ok(())
}

pub(super) async fn grants(context: &Context, all: bool) -> Result<(), Failure> {
    let store = context.store().await?;
    let now = context.clock.now();
    let found: Vec<_> = store
        .override_grants()
        .await?
        .into_iter()
        .filter(|grant| all || state(grant, now) == ACTIVE_STATUS)
        .collect();
    let emails = lookup::emails(&store).await?;
    let row = |grant: &OverrideGrant| {
        vec![
            grant.id.to_string(),
            clean(&emails.name(&grant.user_id.to_string())),
            clean(&grant.ticket),
            clean(&emails.name(&grant.granted_by)),
            iso::text(&grant.valid_until),
            state(grant, now).to_owned(),
        ]
    };
    let rows: Vec<_> = found.iter().map(row).collect();
    let values = found.iter().map(|grant| grant_value(grant, now)).collect();
    context.out.list(values, &["ID", "USER", "TICKET", "GRANTED BY", "UNTIL", "STATE"], &rows);
    Ok(())
}

const ACTIVE_STATUS: &str = "active";

fn state(grant: &OverrideGrant, now: DateTime<Utc>) -> &'static str {
    match grant.revoked_at {
        Some(_) => "revoked",
        None if grant.valid_until > now => ACTIVE_STATUS,
        None => "ended",
    }
}

fn lock_line(lock: Option<&SafetyLock>) -> String {
    match lock {
        None => "open: it was never engaged".to_owned(),
        Some(lock) => {
            let word = if lock.locked { "ENGAGED" } else { "open" };
            let (by, at, reason) =
                (clean(&lock.changed_by), iso::text(&lock.changed_at), clean(&lock.reason));
            format!("{word} since {at}, by {by}: {reason}")
        }
    }
}

fn lock_value(lock: &SafetyLock) -> Value {
    json!({ "locked": lock.locked, "changedBy": lock.changed_by, "reason": lock.reason,
        "changedAt": iso::text(&lock.changed_at) })
}

fn grant_value(grant: &OverrideGrant, now: DateTime<Utc>) -> Value {
    json!({ "id": grant.id, "orgId": grant.org_id, "userId": grant.user_id, "ticket": grant.ticket,
        "reason": grant.reason, "grantedBy": grant.granted_by, "validFrom": iso::text(&grant.valid_from),
        "validUntil": iso::text(&grant.valid_until), "revokedBy": grant.revoked_by,
        "revokedAt": grant.revoked_at.as_ref().map(iso::text), "state": state(grant, now) })
}
