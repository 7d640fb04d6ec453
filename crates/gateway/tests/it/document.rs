//! The description of the API: complete, true, and the list that other tests walk.

use serde_json::Value;

use crate::harness::TestGateway;
use crate::people::{org, person, some_uuid};

/// What needs no credential. A route that is missing here must refuse whoever has none.
const PUBLIC: [&str; 4] = ["GET /health", "GET /metrics", "GET /ready", "POST /v1/login"];

/// What the router has; a route that comes later may be described before it is listed here.
const ROUTES: [&str; 22] = [
    "DELETE /v1/keys/{keyId}",
    "DELETE /v1/members/{userId}",
    "DELETE /v1/secrets/{name}",
    "DELETE /v1/tickets/{ticketId}",
    "GET /health",
    "GET /llm/v1/models",
    "GET /metrics",
    "GET /proliferate/sessions/{id}/status",
    "GET /ready",
    "GET /v1/keys",
    "GET /v1/me",
    "GET /v1/members",
    "GET /v1/secrets",
    "PATCH /v1/members/{userId}",
    "POST /llm/v1/messages",
    "POST /llm/v1/messages/count_tokens",
    "POST /v1/keys",
    "POST /v1/login",
    "POST /v1/logout",
    "POST /v1/members",
    "POST /v1/tickets",
    "PUT /v1/secrets/{name}",
];

/// One operation of the description.
pub(crate) struct Operation {
    pub(crate) method: String,
    path: String,
    pub(crate) takes_body: bool,
    /// Needs no credential, as the description says.
    public: bool,
    statuses: Vec<String>,
}

impl Operation {
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// The path with `value` in all its holes.
    pub(crate) fn at(&self, value: &str) -> String {
        let parts = self.path.split('/').map(|part| if part.starts_with('{') { value } else { part });
        parts.collect::<Vec<_>>().join("/")
    }

    pub(crate) fn has_holes(&self) -> bool {
        self.path.contains('{')
    }

    /// Whether the description names this status.
    pub(crate) fn documents(&self, status: u16) -> bool {
        self.statuses.contains(&status.to_string())
    }
}

pub(crate) async fn operations(gateway: &TestGateway) -> Vec<Operation> {
    let document = gateway.get("/openapi.json").send().await.json();
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            all.push(Operation {
                method: method.to_uppercase(),
                path: path.clone(),
                takes_body: operation.get("requestBody").is_some(),
                public: operation
                    .get("security")
                    .is_some_and(|security| *security == serde_json::json!([{}])),
                statuses: operation["responses"].as_object().unwrap().keys().cloned().collect(),
            });
        }
    }
    all.sort_by_key(Operation::name);
    all
}

#[tokio::test]
async fn the_description_names_every_route_and_the_bearer_scheme() {
    let gateway = TestGateway::sqlite().await;
    let answer = gateway.get("/openapi.json").send().await;
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let document = answer.json();
    assert_eq!(document["components"]["securitySchemes"]["bearer"]["scheme"], "bearer");
    assert_eq!(document["security"], serde_json::json!([{"bearer": []}]));
    let names: Vec<_> = operations(&gateway).await.iter().map(Operation::name).collect();
    for name in ROUTES {
        assert!(names.iter().any(|known| known == name), "{name} is not described");
    }
    let references = references(&document);
    assert!(!references.is_empty());
    for reference in references {
        let found = document.pointer(reference.strip_prefix('#').unwrap());
        assert!(found.is_some(), "{reference} leads nowhere");
    }
}

/// Every `$ref` in a document.
fn references(value: &Value) -> Vec<String> {
    match value {
        Value::Object(entries) => {
            let own = entries.get("$ref").and_then(Value::as_str).map(str::to_owned);
            own.into_iter().chain(entries.values().flat_map(references)).collect()
        }
        Value::Array(items) => items.iter().flat_map(references).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn every_described_route_is_there() {
    let gateway = TestGateway::sqlite().await;
    let owner = person(&gateway.app, org(&gateway.app).await, proto::Role::Owner).await;
    for operation in operations(&gateway).await {
        let path = operation.at(&some_uuid().to_string());
        let answer = gateway.call(&operation.method, &path).bearer(&owner.token).send().await;
        assert_ne!(answer.status, 405, "{}", operation.name());
        assert!(answer.text() != r#"{"error":"Not found","code":"not_found"}"#, "{}", operation.name());
        assert!(
            operation.documents(answer.status),
            "{}: {} is not described",
            operation.name(),
            answer.status
        );
    }
}

#[tokio::test]
async fn all_but_the_named_routes_refuse_whoever_has_no_token() {
    for gateway in TestGateway::both().await {
        let operations = operations(&gateway).await;
        let public: Vec<_> =
            operations.iter().filter(|operation| operation.public).map(Operation::name).collect();
        assert_eq!(public, PUBLIC);
        for operation in operations.iter().filter(|operation| !operation.public) {
            let call = || gateway.call(&operation.method, &operation.at(&some_uuid().to_string())).body("{}");
            assert_eq!(call().status().await, 401, "{}", operation.name());
            assert_eq!(call().bearer("x").status().await, 401, "{} with a bad token", operation.name());
            assert!(operation.documents(401), "{} does not say so", operation.name());
            let bad_path = gateway.call(&operation.method, &operation.at("%ff")).status().await;
            assert_eq!(bad_path, 401, "{} looks at the path first", operation.name());
        }
    }
}
