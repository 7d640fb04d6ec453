//! The routes of actions and of what provides them, as the test of access tries them.

use gateway::access::Act;
use serde_json::{Value, json};

use crate::access::{Probe, Things, probe};
use crate::people::some_uuid;

pub(crate) fn of_actions(things: &Things) -> Vec<Probe> {
    let at = |rest: &str| format!("/proliferate/{}{rest}", things.session);
    let unknown = some_uuid();
    let connector = format!("/v1/connectors/{unknown}");
    let null = || Value::Null;
    vec![
        probe("GET /v1/connectors", Act::ManageOrganization, "/v1/connectors", null()),
        probe("POST /v1/connectors", Act::ManageOrganization, "/v1/connectors", json!({})),
        probe("POST /v1/connectors/validate", Act::ManageOrganization, "/v1/connectors/validate", json!({})),
        probe("GET /v1/connectors/{connectorId}", Act::ManageOrganization, &connector, null()),
        probe("PATCH /v1/connectors/{connectorId}", Act::ManageOrganization, &connector, json!({})),
        probe("DELETE /v1/connectors/{connectorId}", Act::ManageOrganization, &connector, null()),
        probe(
            "POST /v1/connectors/{connectorId}/review",
            Act::ManageOrganization,
            &format!("{connector}/review"),
            json!({"tools": {}}),
        ),
        probe("GET /v1/integrations", Act::ReadOrganization, "/v1/integrations", null()),
        probe("POST /v1/integrations", Act::ManageOrganization, "/v1/integrations", json!({})),
        probe(
            "PATCH /v1/integrations/{integrationId}",
            Act::ManageOrganization,
            &format!("/v1/integrations/{unknown}"),
            json!({"status": "active"}),
        ),
        probe(
            "DELETE /v1/integrations/{integrationId}",
            Act::ManageOrganization,
            &format!("/v1/integrations/{unknown}"),
            null(),
        ),
        probe("GET /proliferate/{id}/actions/available", Act::ReadActions, &at("/actions/available"), null()),
        probe("POST /proliferate/{id}/actions/invoke", Act::InvokeAction, &at("/actions/invoke"), json!({})),
        probe(
            "GET /proliferate/{id}/actions/invocations",
            Act::ReadActions,
            &at("/actions/invocations"),
            null(),
        ),
        probe(
            "GET /proliferate/{id}/actions/invocations/{invocationId}",
            Act::ReadActions,
            &at("/actions/invocations/x"),
            null(),
        ),
        probe(
            "POST /proliferate/{id}/actions/invocations/{invocationId}/approve",
            Act::DecideInvocation,
            &at("/actions/invocations/x/approve"),
            json!({}),
        ),
        probe(
            "POST /proliferate/{id}/actions/invocations/{invocationId}/deny",
            Act::DecideInvocation,
            &at("/actions/invocations/x/deny"),
            json!({}),
        ),
        probe("GET /v1/invocations/{invocationId}", Act::ReadActions, "/v1/invocations/x", null()),
        probe(
            "POST /v1/invocations/{invocationId}/approve",
            Act::DecideInvocation,
            "/v1/invocations/x/approve",
            json!({}),
        ),
        probe(
            "POST /v1/invocations/{invocationId}/deny",
            Act::DecideInvocation,
            "/v1/invocations/x/deny",
            json!({}),
        ),
        probe("POST /mcp", Act::UseMcp, "/mcp", json!({})),
        probe(
            "GET /proliferate/{id}/actions/guide/{integration}",
            Act::ReadActions,
            &at("/actions/guide/unknown"),
            null(),
        ),
    ]
}

pub(crate) fn of_databases() -> Vec<Probe> {
    let database = format!("/v1/databases/{}", some_uuid());
    let null = || Value::Null;
    vec![
        probe("GET /v1/databases", Act::ManageOrganization, "/v1/databases", null()),
        probe("POST /v1/databases", Act::ManageOrganization, "/v1/databases", json!({})),
        probe("POST /v1/databases/validate", Act::ManageOrganization, "/v1/databases/validate", json!({})),
        probe("GET /v1/databases/{databaseId}", Act::ManageOrganization, &database, null()),
        probe("PATCH /v1/databases/{databaseId}", Act::ManageOrganization, &database, json!({})),
        probe("DELETE /v1/databases/{databaseId}", Act::ManageOrganization, &database, null()),
    ]
}

/// The routes of notifications and preferences.
pub(crate) fn of_notices() -> Vec<Probe> {
    let null = || Value::Null;
    vec![
        probe("GET /v1/notifications", Act::ManageOrganization, "/v1/notifications", null()),
        probe("PUT /v1/notifications", Act::ManageOrganization, "/v1/notifications", json!({})),
        probe("DELETE /v1/notifications", Act::ManageOrganization, "/v1/notifications", null()),
        probe("POST /v1/notifications/test", Act::ManageOrganization, "/v1/notifications/test", null()),
        probe("GET /v1/preferences", Act::ChangeOwnPreferences, "/v1/preferences", null()),
        probe("PUT /v1/preferences", Act::ChangeOwnPreferences, "/v1/preferences", json!({})),
    ]
}
