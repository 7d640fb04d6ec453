//! Action modes: of organizations and automations.

use ledger::{ActionType, Actor, ActorType, Event, Outcome, PolicyVersions, Text, Timestamp};
use proto::{ActionMode, AutomationId, OrgId};
use serde_json::{Value, json};
use store::{Change, GateWrite, NewEvent, OrgActionMode, Store, StoreError, Written};

use crate::backend::{Backend, on_both};
use crate::world::{at, id, org, session};

on_both! {
    a_mode_belongs_to_one_organization_and_the_last_change_wins
    a_mode_with_conditions_is_returned_as_it_was_set_until_it_is_removed
    modes_of_an_automation_are_returned_beside_those_of_its_organization
    concurrent_changes_of_an_automations_modes_lose_none
}

const KEY: &str = "tools:weather.set";

async fn set(store: &Store, org: OrgId, key: &str, mode: ActionMode) {
    set_with(store, org, key, mode, None).await;
}

fn policy_change(id: &str) -> Event {
    Event::new(
        Text::fit(id),
        Timestamp::try_from("2025-06-15T00:00:00.000Z".to_owned()).unwrap(),
        ActionType::PolicyChange,
        Outcome::Success,
        Actor {
            actor_id: Text::fit("operator"),
            actor_type: ActorType::System,
            agent_name: None,
            user_display: None,
        },
        PolicyVersions { lanes: Text::fit("lanes-1"), roles: Text::fit("roles-1") },
    )
}

async fn set_with(store: &Store, org: OrgId, key: &str, mode: ActionMode, conditions: Option<Value>) {
    let event = policy_change(&format!("evt_{}_{}", store.ledger_size().await.unwrap(), key.len()));
    let (key, changed_by) = (key.to_owned(), "operator".to_owned());
    let change = Change::SetMode(OrgActionMode {
        org_id: org,
        key,
        mode,
        conditions: conditions.clone(),
        two_person: conditions.is_some(),
        invocation: None,
        changed_by,
        changed_at: at(0),
    });
    let write = GateWrite::new(change, vec![NewEvent { org: Some(org), event }]);
    assert!(matches!(store.gate_write(write).await.unwrap(), Written::Done));
}

async fn a_mode_belongs_to_one_organization_and_the_last_change_wins(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    set(&b.store, one, KEY, ActionMode::Deny).await;
    // Concurrently, so that they may share a statement, which must not set a row twice.
    tokio::join!(
        set(&b.store, one, KEY, ActionMode::Allow),
        set(&b.store, one, "git:push_tag", ActionMode::Deny)
    );
    let found = b.store.action_modes_for(one, None, KEY).await.unwrap();
    assert_eq!((found.org.get(KEY), found.automation), (Some(&json!("allow")), None));
    assert!(b.store.action_modes_for(two, None, KEY).await.unwrap().org.is_empty());
    assert!(b.store.action_modes_for(one, None, "tools:weather.look").await.unwrap().org.is_empty());
    let listed = b.store.org_action_modes(one).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|mode| (mode.key.as_str(), mode.mode)).collect();
    assert_eq!(listed, [("git:push_tag", ActionMode::Deny), (KEY, ActionMode::Allow)]);
    assert!(b.store.org_action_modes(two).await.unwrap().is_empty());
}

async fn a_mode_with_conditions_is_returned_as_it_was_set_until_it_is_removed(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let rules = json!([{"when": {"properties": {"a": {"multipleOf": 0.01}}}, "mode": "deny"}]);
    let conditions = json!({ "rules": rules, "examples": [] });
    set_with(&b.store, one, KEY, ActionMode::Allow, Some(conditions.clone())).await;
    let value = json!({"else": "allow", "twoPerson": true, "rules": rules, "examples": []});
    let found = b.store.action_modes_for(one, None, KEY).await.unwrap();
    assert_eq!(found.org.get(KEY), Some(&value));
    assert_eq!(b.store.all_action_modes(one, None).await.unwrap().org.get(KEY), Some(&value));
    assert_eq!(b.store.org_action_modes(one).await.unwrap()[0].conditions, Some(conditions));
    let recorded = |id: &str, org| b.store.recorded(NewEvent { org: Some(org), event: policy_change(id) });
    let foreign = recorded("evt_foreign", two).unset_action_mode(two, KEY).await;
    assert!(matches!(foreign, Err(StoreError::Missing(_))), "{foreign:?}");
    recorded("evt_removed", one).unset_action_mode(one, KEY).await.unwrap();
    assert!(b.store.org_action_modes(one).await.unwrap().is_empty());
    let again = recorded("evt_removed_2", one).unset_action_mode(one, KEY).await;
    assert!(matches!(again, Err(StoreError::Missing(_))), "{again:?}");
    assert_eq!(b.store.ledger_size().await.unwrap(), 2, "what failed is not recorded");
}

/// Creates an automation of the first organization that denies one action.
async fn automation(b: &Backend) -> AutomationId {
    let automation = "INSERT INTO automations (id, org_id, name, instructions, enabled, action_modes, created_at,
        updated_at) VALUES (#80, #1, 'a', '', true, '{\"tools:weather.set\":\"deny\"}', '2025-06-15T00:00:00Z',
        '2025-06-15T00:00:00Z')";
    b.raw().await.execute(automation).await.unwrap();
    id(80)
}

async fn modes_of_an_automation_are_returned_beside_those_of_its_organization(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let (started, alone) = (session(&b.store, one, 40).await, session(&b.store, one, 41).await);
    automation(b).await;
    let mut raw = b.raw().await;
    raw.execute("UPDATE sessions SET automation_id = #80 WHERE id = #40").await.unwrap();
    let found = b.store.action_modes_for(one, Some(started), KEY).await.unwrap();
    assert_eq!(found.automation.unwrap().get(KEY), Some(&json!("deny")));
    assert_eq!(b.store.action_modes_for(one, Some(alone), KEY).await.unwrap().automation, None);
    let foreign = b.store.action_modes_for(two, Some(started), KEY).await.unwrap();
    assert_eq!(foreign.automation, None, "a session of another organization");
}

async fn concurrent_changes_of_an_automations_modes_lose_none(b: &Backend) {
    let one = org(&b.store, 1).await;
    let automation = automation(b).await;
    let changes = (0..16).map(|number| async move {
        let event = policy_change(&format!("evt_{number}"));
        let store = b.store.recorded(NewEvent { org: Some(one), event });
        let mode = (number > 0).then(|| json!("allow"));
        let key = if number > 0 { format!("tools:action.{number}") } else { KEY.to_owned() };
        store.set_automation_mode(one, automation, &key, mode).await.unwrap();
    });
    futures_util::future::join_all(changes).await;
    let modes = b.store.automation_modes(one, automation).await.unwrap().unwrap();
    let expected: Vec<_> = (1..16).map(|number| format!("tools:action.{number}")).collect();
    assert!(modes.len() == 15 && expected.iter().all(|key| modes[key] == "allow"), "{modes:?}");
}
