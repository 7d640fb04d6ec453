//! The API description at `/openapi.json`: complete, accurate, and the list of operations that other tests iterate
//! over.

use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::harness::TestGateway;
use crate::people::{org, person, some_uuid};

/// The routes that need no credential. Every other route must refuse a caller without one.
const PUBLIC_ROUTES: [&str; 7] = [
    "GET /health",
    "GET /metrics",
    "GET /ready",
    "POST /v1/device-logins",
    "POST /v1/device-logins/token",
    "POST /v1/hooks/{automationId}",
    "POST /v1/login",
];

/// Routes that the API description must contain. It may describe further ones.
const UNDESCRIBED_ROUTES: [&str; 23] = [
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
    "POST /llm/v1/chat/completions",
    "POST /llm/v1/messages",
    "POST /llm/v1/messages/count_tokens",
    "POST /v1/keys",
    "POST /v1/login",
    "POST /v1/logout",
    "POST /v1/members",
    "POST /v1/tickets",
    "PUT /v1/secrets/{name}",
];

/// One operation of the API description.
pub(crate) struct Operation {
    pub(crate) method: String,
    path: String,
    pub(crate) takes_body: bool,
    /// The API description says that the operation needs no credential.
    public: bool,
    statuses: Vec<String>,
}

impl Operation {
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.method, self.path)
    }

    /// The path with every parameter replaced by `value`.
    pub(crate) fn at(&self, value: &str) -> String {
        let parts = self.path.split('/').map(|part| if part.starts_with('{') { value } else { part });
        parts.collect::<Vec<_>>().join("/")
    }

    pub(crate) fn is_public(&self) -> bool {
        self.public
    }

    pub(crate) fn has_holes(&self) -> bool {
        self.path.contains('{')
    }

    /// Whether the API description lists this status.
    pub(crate) fn documents(&self, status: u16) -> bool {
        self.statuses.iter().any(|known| *known == status.to_string() || known == "default")
    }
}

pub(crate) async fn operations(gateway: &TestGateway) -> Vec<Operation> {
    described(&gateway.get("/openapi.json").send().await.json())
}

fn described(document: &Value) -> Vec<Operation> {
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

static DESCRIBED_OPERATIONS: LazyLock<Vec<Operation>> =
    LazyLock::new(|| described(&serde_json::to_value(gateway::edge::api_document()).unwrap()));

/// Fails if a route answers with a status that the API description does not list. Every test request passes through
/// here.
pub(crate) fn assert_described(method: &str, path: &str, status: u16) {
    let asked: Vec<&str> = path.split('/').collect();
    let fits = |operation: &&Operation| {
        let parts: Vec<&str> = operation.path.split('/').collect();
        let same = parts.iter().zip(&asked).all(|(part, asked)| part.starts_with('{') || part == asked);
        operation.method == method && parts.len() == asked.len() && same
    };
    let found =
        DESCRIBED_OPERATIONS.iter().filter(fits).min_by_key(|operation| operation.path.matches('{').count());
    let known = found.is_none_or(|operation| operation.documents(status));
    assert!(known, "{method} {path}: the description does not name {status}");
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
    for name in UNDESCRIBED_ROUTES {
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
async fn only_the_listed_routes_need_no_token() {
    for gateway in TestGateway::both().await {
        let operations = operations(&gateway).await;
        let public: Vec<_> =
            operations.iter().filter(|operation| operation.public).map(Operation::name).collect();
        assert_eq!(public, PUBLIC_ROUTES);
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

/// A valid request for each body whose limits are tested.
fn accepted() -> Vec<(&'static str, &'static str, Value)> {
    let call = json!({"tool_name": "t", "operation": "t.o", "lane_id": "actions.read", "run_id": "run-00000001",
        "actor": {"actor_type": "human", "actor_id": "somebody"}});
    vec![
        ("POST", "/proliferate/sessions", json!({"sessionType": "coding", "clientType": "web"})),
        ("POST", "/v1/keys", json!({"name": "k"})),
        ("POST", "/v1/members", json!({"email": "a@b", "role": "member"})),
        ("POST", "/v1/repos", json!({"url": "https://example.com/x", "name": "x"})),
        ("POST", "/v1/configurations", json!({"name": "c", "repos": []})),
        ("POST", "/v1/automations", json!({"name": "a", "instructions": "Look."})),
        ("PUT", "/v1/egress", json!({"mode": "open"})),
        ("PUT", "/v1/secrets/{name}", json!({"value": "v"})),
        ("POST", "/v1/runs", json!({"run_kind": "agent"})),
        ("POST", "/v1/tool-calls", call),
    ]
}

/// Each text property accepts its minimum and maximum length, and rejects one character less or more.
#[tokio::test]
async fn the_limits_of_the_description_are_those_of_the_routes() {
    let gateway = TestGateway::sqlite().await;
    let owner = person(&gateway.app, org(&gateway.app).await, proto::Role::Owner).await;
    let document = gateway.get("/openapi.json").send().await.json();
    let mut tried = 0;
    for (method, path, body) in accepted() {
        let operation = &document["paths"][path][method.to_lowercase()];
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
        let schema = document.pointer(schema.as_str().unwrap().strip_prefix('#').unwrap()).unwrap();
        for (name, property) in properties(schema) {
            for (limit, wrong) in limits(&name, &property) {
                let status = async |value: Value| {
                    let mut body = body.clone();
                    body[&name] = value;
                    let call = gateway.call(method, &path.replace("{name}", "NAME"));
                    call.bearer(&owner.token).json(&body).send().await
                };
                let (fine, refused) = (status(limit).await, status(wrong).await);
                assert_ne!(fine.status, 400, "{method} {path}: {name}: {}", fine.text());
                assert_eq!(refused.status, 400, "{method} {path}: {name}: {}", refused.text());
                tried += 1;
            }
        }
    }
    assert!(tried > 25, "only {tried} limits were found");
}

/// The properties of a schema, including one that combines several with `allOf`.
fn properties(schema: &Value) -> Vec<(String, Value)> {
    let parts = schema["allOf"].as_array().cloned().unwrap_or_else(|| vec![schema.clone()]);
    let named = |part: Value| part["properties"].as_object().cloned().unwrap_or_default();
    parts.into_iter().flat_map(named).collect()
}

/// A value at each limit of a property, and one beyond it. Properties with their own format are tested elsewhere.
fn limits(name: &str, property: &Value) -> Vec<(Value, Value)> {
    if ["email", "request_hash_sha256"].contains(&name) {
        return Vec::new();
    }
    let text = |long: u64| match name {
        "url" => json!(format!("https://example.com/{}", "x".repeat(usize::try_from(long).unwrap() - 20))),
        _ => json!("x".repeat(usize::try_from(long).unwrap())),
    };
    let mut all = Vec::new();
    if let Some(most) = property["maxLength"].as_u64() {
        all.push((text(most), text(most + 1)));
    }
    if let Some(least) = property["minLength"].as_u64().filter(|least| *least > 1) {
        all.push((text(least), text(least - 1)));
    }
    if let Some(most) = property["maxItems"].as_u64().filter(|_| ["allow", "deny"].contains(&name)) {
        let hosts = |many: u64| (0..many).map(|number| json!(format!("h{number}.example"))).collect();
        all.push((Value::Array(hosts(most)), Value::Array(hosts(most + 1))));
    }
    all
}

#[tokio::test]
async fn a_run_without_an_error_fits_its_description() {
    let document = serde_json::to_value(gateway::edge::api_document()).unwrap();
    let error = &document["components"]["schemas"]["RunRecord"]["properties"]["error"];
    assert!(error.to_string().contains("null"), "{error}");
}
