//! Every administrative change over HTTP is in the ledger with the user who made it, written in the same transaction.

use std::collections::BTreeSet;

use proto::Role;
use serde_json::{Value, json};

use crate::document::operations;
use crate::harness::{Setup, TestGateway};
use crate::people::OrgOf3;

/// An administrative change: the operation, its path and body, and what the ledger records about it.
type Step = (&'static str, &'static str, Value, [&'static str; 3]);

/// The changes in an order in which each finds what it changes. `{…}` in a path is an id from an earlier answer.
fn steps() -> Vec<Step> {
    let others = other_steps().into_iter().chain(automation_steps()).chain(workspace_steps());
    secret_file_steps().into_iter().chain(others).collect()
}

fn secret_file_steps() -> Vec<Step> {
    vec![
        (
            "PUT /v1/secret-files",
            "/v1/secret-files",
            json!({"path": "key.pem", "content": "hush-hush"}),
            ["system", "secret", "set"],
        ),
        (
            "DELETE /v1/secret-files",
            "/v1/secret-files?path=key.pem",
            Value::Null,
            ["system", "secret", "remove"],
        ),
    ]
}

fn other_steps() -> Vec<Step> {
    let egress = json!({"mode": "open", "allow": [], "deny": ["bad.example"]});
    vec![
        (
            "POST /v1/members",
            "/v1/members",
            json!({"email": "new@test.example", "role": "member"}),
            ["system", "member", "add"],
        ),
        (
            "PATCH /v1/members/{userId}",
            "/v1/members/{userId}",
            json!({"role": "admin"}),
            ["policy_change", "role", "change"],
        ),
        ("DELETE /v1/members/{userId}", "/v1/members/{userId}", Value::Null, ["system", "member", "remove"]),
        ("POST /v1/keys", "/v1/keys", json!({"name": "ci"}), ["system", "api_key", "create"]),
        ("DELETE /v1/keys/{keyId}", "/v1/keys/{id}", Value::Null, ["system", "api_key", "revoke"]),
        (
            "PUT /v1/secrets/{name}",
            "/v1/secrets/TOKEN",
            json!({"value": "hush-hush"}),
            ["system", "secret", "set"],
        ),
        (
            "POST /v1/integrations",
            "/v1/integrations",
            json!({"provider": "linear", "secretKey": "TOKEN"}),
            ["system", "integration", "add"],
        ),
        (
            "PATCH /v1/integrations/{integrationId}",
            "/v1/integrations/{id}",
            json!({"status": "disabled"}),
            ["system", "integration", "change"],
        ),
        (
            "DELETE /v1/integrations/{integrationId}",
            "/v1/integrations/{id}",
            Value::Null,
            ["system", "integration", "remove"],
        ),
        (
            "PUT /v1/preferences",
            "/v1/preferences",
            json!({"sourceId": "linear", "enabled": false}),
            ["system", "preference", "set"],
        ),
        ("DELETE /v1/secrets/{name}", "/v1/secrets/TOKEN", Value::Null, ["system", "secret", "remove"]),
        ("PUT /v1/egress", "/v1/egress", egress, ["policy_change", "egress", "set"]),
        (
            "PUT /v1/action-modes",
            "/v1/action-modes",
            json!({"key": "linear:create_issue", "mode": "deny"}),
            ["policy_change", "linear:create_issue", "deny"],
        ),
        (
            "DELETE /v1/action-modes/{key}",
            "/v1/action-modes/linear:create_issue",
            Value::Null,
            ["policy_change", "linear:create_issue", "unset"],
        ),
    ]
}

fn automation_steps() -> Vec<Step> {
    vec![
        (
            "POST /v1/automations",
            "/v1/automations",
            json!({"name": "triage", "instructions": "Look at new issues."}),
            ["system", "automation", "create"],
        ),
        (
            "PATCH /v1/automations/{automationId}",
            "/v1/automations/{id}",
            json!({"enabled": false}),
            ["system", "automation", "change"],
        ),
        (
            "PUT /v1/automations/{automationId}/integrations",
            "/v1/automations/{id}/integrations",
            json!({"integrationIds": []}),
            ["system", "automation", "change"],
        ),
        (
            "PUT /v1/automations/{automationId}/action-modes",
            "/v1/automations/{id}/action-modes",
            json!({"key": "linear:create_issue", "mode": "deny"}),
            ["system", "automation", "change"],
        ),
        (
            "DELETE /v1/automations/{automationId}/action-modes/{key}",
            "/v1/automations/{id}/action-modes/linear:create_issue",
            Value::Null,
            ["system", "automation", "change"],
        ),
        (
            "DELETE /v1/automations/{automationId}",
            "/v1/automations/{id}",
            Value::Null,
            ["system", "automation", "remove"],
        ),
    ]
}

fn workspace_steps() -> Vec<Step> {
    let repo = json!({"url": "https://git.example/acme/app.git"});
    vec![
        (
            "POST /v1/configurations",
            "/v1/configurations",
            json!({"name": "all", "repos": []}),
            ["system", "configuration", "create"],
        ),
        (
            "PATCH /v1/configurations/{configurationId}",
            "/v1/configurations/{id}",
            json!({"name": "some"}),
            ["system", "configuration", "change"],
        ),
        (
            "DELETE /v1/configurations/{configurationId}",
            "/v1/configurations/{id}",
            Value::Null,
            ["system", "configuration", "remove"],
        ),
        (
            "POST /v1/connectors",
            "/v1/connectors",
            json!({"name": "docs", "url": "https://mcp.example/", "auth": {"type": "none"}}),
            ["policy_change", "connector", "add"],
        ),
        (
            "PATCH /v1/connectors/{connectorId}",
            "/v1/connectors/{id}",
            json!({"enabled": false}),
            ["policy_change", "connector", "change"],
        ),
        (
            "DELETE /v1/connectors/{connectorId}",
            "/v1/connectors/{id}",
            Value::Null,
            ["policy_change", "connector", "remove"],
        ),
        ("POST /v1/repos", "/v1/repos", repo, ["system", "repository", "add"]),
        (
            "PATCH /v1/repos/{repoId}",
            "/v1/repos/{id}",
            json!({"envFiles": []}),
            ["system", "repository", "change"],
        ),
        ("DELETE /v1/repos/{repoId}", "/v1/repos/{id}", Value::Null, ["system", "repository", "remove"]),
    ]
}

/// Operations that change something but are not administrative, by the prefix of their names, each with the reason.
const OTHER_ROUTES: [(&str, &str); 21] = [
    ("POST /v1/invocations/", "a decision about a request is an event of its run"),
    ("POST /llm/", "the model's requests are counted as usage"),
    ("POST /proliferate/", "what is done in a session: its turns and calls are runs of the gate"),
    ("PATCH /proliferate/", "the title of a session"),
    ("DELETE /proliferate/", "services of a session; its deletion has a test that needs a live one"),
    ("POST /v1/connectors/", "validation changes nothing; the review has a test that needs a server"),
    (
        "POST /v1/databases",
        "a database is checked before it is stored, which is recorded too; it has a test of its own",
    ),
    ("PATCH /v1/databases", "as above"),
    ("DELETE /v1/databases", "as above"),
    ("POST /v1/notifications/test", "sends a text that says nothing to the address that is set"),
    (
        "PUT /v1/notifications",
        "has two events, of the secrets and of the setting; its own test looks for them",
    ),
    ("DELETE /v1/notifications", "has events of the setting and of its secrets"),
    ("POST /v1/automations/", "a run that somebody starts; its own log names them"),
    ("POST /v1/automation-runs/", "what is done with a run; its own log names who did it"),
    ("POST /v1/hooks/", "a run that a webhook starts; its own log names the event"),
    ("PUT /proliferate/", "what people do in a sandbox has events of its own; the model of a session"),
    ("POST /v1/device-logins", "the key of the device is recorded when it is made"),
    ("POST /v1/login", "a login is no change of administration"),
    ("POST /v1/logout", "a login is no change of administration"),
    ("POST /v1/tickets", "a ticket lives a minute, or an hour for one proxy"),
    ("DELETE /v1/tickets", "a ticket lives a minute, or an hour for one proxy"),
];
/// Operations of the gate, which records its own events.
const OF_THE_GATE: [&str; 3] = ["POST /mcp", "POST /v1/runs", "POST /v1/tool-calls"];

async fn last_event(gateway: &TestGateway, team: &OrgOf3) -> (usize, Value) {
    let events =
        gateway.get("/v1/audit/events?limit=1000").bearer(team.token(Role::Owner)).send().await.json();
    let events = events["events"].as_array().unwrap().clone();
    (events.len(), events.last().cloned().unwrap_or_default())
}

async fn every_change_is_recorded(setup: Setup) {
    let gateway = setup.start().await;
    let team = OrgOf3::new(&gateway.app).await;
    let owner = team.person(Role::Owner);
    let mut answered = json!({});
    for (name, path, body, [action, target, operation]) in steps() {
        let (before, _) = last_event(&gateway, &team).await;
        let mut path = path.to_owned();
        for id in ["userId", "id"] {
            path = path.replace(&format!("{{{id}}}"), answered[id].as_str().unwrap_or_default());
        }
        let method = name.split_once(' ').unwrap().0;
        let call = gateway.call(method, &path).bearer(&owner.token);
        let answer = if body.is_null() { call.send().await } else { call.json(&body).send().await };
        assert!((200..300).contains(&answer.status), "{name}: {} {}", answer.status, answer.text());
        if method == "POST" {
            answered = answer.json();
        }
        let (after, event) = last_event(&gateway, &team).await;
        assert_eq!(after, before + 1, "{name} left no event");
        let said = [&event["action_type"], &event["target"]["name"], &event["target"]["operation"]];
        assert_eq!(said.map(|it| it.as_str().unwrap()), [action, target, operation], "{name}: {event}");
        let actor = json!({"actor_id": owner.id.to_string(), "actor_type": "human"});
        assert_eq!(event["actor"], actor, "{name}");
        assert!(!event.to_string().contains("hush-hush"), "{name}: {event}");
    }
    // A refused change changes nothing and is not recorded.
    let (before, _) = last_event(&gateway, &team).await;
    let nobody = format!("/v1/members/{}", crate::people::some_uuid());
    assert_eq!(gateway.call("DELETE", &nobody).bearer(&owner.token).send().await.status, 404);
    assert_eq!(last_event(&gateway, &team).await.0, before);
}

#[tokio::test]
async fn every_change_is_recorded_on_sqlite() {
    every_change_is_recorded(Setup::sqlite()).await;
}

#[tokio::test]
async fn every_change_is_recorded_on_postgres() {
    every_change_is_recorded(Setup::postgres().await).await;
}

#[tokio::test]
async fn no_operation_that_changes_something_is_forgotten() {
    let gateway = Setup::sqlite().start().await;
    let known: BTreeSet<String> = steps().into_iter().map(|(name, ..)| name.to_owned()).collect();
    let all: BTreeSet<String> = operations(&gateway)
        .await
        .iter()
        .filter(|operation| operation.method != "GET")
        .map(crate::document::Operation::name)
        .filter(|name| !OTHER_ROUTES.iter().any(|(start, _)| name.starts_with(start)))
        .filter(|name| !OF_THE_GATE.iter().any(|start| name.starts_with(start)))
        .collect();
    assert_eq!(all, known, "an operation without a step above and without a reason to have none");
}

/// The store functions that make administrative changes. They write the event given to `Store::recorded`, so none may
/// be called on a store without an event.
const ADMINISTRATIVE_FUNCTIONS: [&str; 34] = [
    "add_member",
    "change_member",
    "create_configuration",
    "create_connector",
    "create_database",
    "create_integration",
    "create_key",
    "create_org",
    "create_repo",
    "delete_configuration",
    "delete_connector",
    "delete_database",
    "delete_integration",
    "delete_notification_settings",
    "delete_repo",
    "delete_secret",
    "delete_session",
    "find_or_create_cli",
    "find_or_create_managed",
    "pin_connector_tools",
    "put_egress_policy",
    "put_secrets",
    "redeem_device_login",
    "remove_plain_member",
    "revoke_key",
    "set_action_enabled",
    "set_automation_integrations",
    "set_integration_status",
    "set_notification_settings",
    "set_org_limits",
    "update_configuration",
    "update_connector",
    "update_database",
    "update_repo",
];

/// The functions that return a store with an event, and the maximum distance in characters between them and the call.
const RECORDING_CALLS: [&str; 5] = ["administer", "made_by(", "seeding(", "recorded(", "recording_store("];
const MAX_DISTANCE_CHARS: usize = 600;

#[test]
fn nothing_is_administered_through_a_store_without_an_event() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for directory in [root.join("src"), root.join("../cli/src")] {
        sources(&directory, &mut files);
    }
    let mut calls = 0;
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for name in ADMINISTRATIVE_FUNCTIONS {
            for (place, _) in text.match_indices(&format!(".{name}(")) {
                calls += 1;
                // The store must come from one of these functions, a few lines above in the same function.
                let before: String = text[..place].chars().rev().take(MAX_DISTANCE_CHARS).collect();
                let recorded =
                    RECORDING_CALLS.iter().any(|it| before.contains(&it.chars().rev().collect::<String>()));
                assert!(recorded, "{}: .{name}( is not recorded", file.display());
            }
        }
    }
    assert!(calls > 20, "only {calls} calls: the sources are not read");
}

fn sources(directory: &std::path::Path, files: &mut Vec<std::path::PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, files);
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        }
    }
}
