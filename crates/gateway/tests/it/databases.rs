//! Databases that agents may query: who may add them, what agents may do with them, and what hostile ones get.

use clock::Rng;
use proto::{Role, SessionId};
use serde_json::{Value, json};

use crate::call::Answer;
use crate::harness::{Setup, TestGateway, address_of, fresh_database, postgres_url};
use crate::people::{OrgOf3, sandbox_token, session};
use crate::pgwire;

/// A gateway with a PostgreSQL database and an SQLite file that agents may query.
struct World {
    gateway: TestGateway,
    team: OrgOf3,
    session: SessionId,
    agent: String,
    /// A role on the test server that can read the table `orders` of this database, and nothing else.
    role: String,
    database: String,
}

impl World {
    async fn on(setup: Setup) -> Self {
        let files = setup.directory().join("files");
        let address = address_of(&postgres_url()).to_string();
        let gateway = setup
            .set("DATABASE_FILES_DIR", files.to_str().unwrap())
            .set("CONNECTOR_ALLOWED_HOSTS", &address)
            .start()
            .await;
        let team = OrgOf3::new(&gateway.app).await;
        let directory = files.join(team.org.to_string());
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("shop.db"), []).unwrap();
        let (role, url) =
            (format!("reader_{}", hex::encode(Rng::system().bytes::<8>())), fresh_database().await);
        pgwire::run(
            &url,
            &format!(
                "CREATE ROLE {role} LOGIN; CREATE TABLE orders (id int, customer text, password text); \
                 INSERT INTO orders SELECT n, 'c' || n, 'hunter' || n FROM generate_series(1, 20) n; \
                 GRANT SELECT ON orders TO {role}"
            ),
        )
        .await;
        let session = session(&gateway.app, team.org).await;
        let agent = sandbox_token(&gateway.app, session).await;
        let database = url::Url::parse(&url).unwrap().path().trim_start_matches('/').to_owned();
        let world = Self { gateway, team, session, agent, role, database };
        let secret =
            world.ask("PUT", "/v1/secrets/ORDERS_PASSWORD", &json!({"value": "s3cret-of-orders"})).await;
        assert!(secret.status < 300, "{}", secret.text());
        world
    }

    fn target(&self) -> Value {
        let address = address_of(&postgres_url());
        json!({"engine": "postgres", "host": address.ip().to_string(), "port": address.port(),
            "database": self.database, "user": self.role, "secretKey": "ORDERS_PASSWORD", "tls": false})
    }

    fn new_database(&self) -> Value {
        json!({"name": "orders", "target": self.target(), "limits": {"maxRows": 5}, "queries": [
            {"name": "by_customer", "description": "Lists the orders of a customer", "sql":
                "SELECT id, password FROM orders WHERE customer = $1 AND id < $2 ORDER BY id",
                "parameters": [{"name": "customer", "schema": {"type": "string", "maxLength": 10}},
                    {"name": "below", "schema": {"type": "integer", "default": 100}, "required": false}]},
            {"name": "all", "description": "Lists all orders", "sql": "SELECT id FROM orders ORDER BY id", "risk": "write"},
            {"name": "wipe", "description": "Tries to write", "sql":
                "WITH gone AS (DELETE FROM orders RETURNING id) SELECT id FROM gone"}]})
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        let call = self.gateway.call(method, path).bearer(self.team.token(Role::Admin));
        if body.is_null() { call.send().await } else { call.json(body).send().await }
    }

    /// Adds a database. Returns its id.
    async fn add(&self, new: &Value) -> String {
        let added = self.ask("POST", "/v1/databases", new).await;
        assert_eq!(added.status, 201, "{}", added.text());
        added.json()["id"].as_str().unwrap().to_owned()
    }

    /// The catalog's entry of a database, for an agent.
    async fn offered(&self, id: &str) -> Value {
        let path = format!("/proliferate/{}/actions/available", self.session);
        let catalog = self.gateway.get(&path).bearer(&self.agent).send().await.json();
        let mut found = catalog["integrations"].as_array().unwrap().iter();
        found.find(|source| source["integration"] == format!("db:{id}")).cloned().unwrap_or_default()
    }

    async fn invoke(&self, id: &str, action: &str, params: Value) -> (u16, Value) {
        let body = json!({"integration": format!("db:{id}"), "action": action, "params": params});
        let path = format!("/proliferate/{}/actions/invoke", self.session);
        let answer = self.gateway.post(&path, &body).bearer(&self.agent).send().await;
        (answer.status, answer.json())
    }

    async fn events(&self) -> String {
        self.ask("GET", "/v1/audit/events?limit=1000", &Value::Null).await.text()
    }
}

async fn worlds() -> [World; 2] {
    [World::on(Setup::sqlite()).await, World::on(Setup::postgres().await).await]
}

#[tokio::test]
async fn a_defined_query_is_an_action_from_the_catalog_to_the_ledger() {
    for world in worlds().await {
        let id = world.add(&world.new_database()).await;
        let offered = world.offered(&id).await;
        assert_eq!(offered["displayName"], "orders");
        let actions = offered["actions"].as_array().unwrap();
        let modes: Vec<_> = actions.iter().map(|it| (&it["name"], &it["riskLevel"], &it["mode"])).collect();
        let read = (&json!("read"), &json!("allow"));
        assert_eq!(
            modes,
            [
                (&json!("by_customer"), read.0, read.1),
                (&json!("all"), &json!("write"), &json!("require_approval")),
                (&json!("wipe"), read.0, read.1)
            ]
        );
        assert_eq!(actions[0]["params"]["required"], json!(["customer"]), "the complete schema");

        let (status, body) = world.invoke(&id, "by_customer", json!({"customer": "c7"})).await;
        assert_eq!(status, 200, "{body}");
        let text = body["invocation"]["result"].to_string();
        assert!(text.contains("\"id\":7") && text.contains("[REDACTED]"), "{text}");
        assert!(!text.contains("hunter"), "a column named like a secret is redacted: {text}");
        let (status, body) = world.invoke(&id, "by_customer", json!({"customer": "c7", "below": 7})).await;
        assert!(
            status == 200 && body["invocation"]["result"].to_string().contains("\"rowCount\":0"),
            "{body}"
        );
        let (status, body) = world.invoke(&id, "by_customer", json!({"customer": 7, "more": 1})).await;
        let said = body["error"].as_str().unwrap_or_default().to_owned();
        assert!(
            status == 400 && said.contains("customer must be a text") && said.contains("other"),
            "{body}"
        );
        let (status, body) = world.invoke(&id, "wipe", json!({})).await;
        assert!(status == 502 && body.to_string().contains("the database answers"), "{status} {body}");

        let (status, body) = world.invoke(&id, "all", json!({})).await;
        assert_eq!(status, 202, "{body}");
        let invocation = body["invocation"]["id"].as_str().unwrap();
        let path = format!("/proliferate/{}/actions/invocations/{invocation}/approve", world.session);
        let owner = world.team.token(Role::Owner);
        let approved = world.gateway.post(&path, &json!({})).bearer(owner).send().await;
        assert_eq!(approved.status, 200, "{}", approved.text());
        assert!(approved.text().contains("\"truncated\":true"), "5 of 20 rows: {}", approved.text());
        assert_eq!(
            world.invoke(&id, "query", json!({"sql": "SELECT 1"})).await.0,
            404,
            "free-form SQL is off"
        );

        let events = world.events().await;
        assert!(
            events.contains(&format!("db:{id}:by_customer")) && events.contains("database_source"),
            "{events}"
        );
        assert!(!events.contains("s3cret") && !events.contains("hunter"), "{events}");
        gate::verify_database(&world.gateway.app.store, Vec::new(), None, &|_| ()).await.unwrap();
    }
}

#[tokio::test]
async fn free_form_statements_need_approval_unless_an_admin_decides_otherwise() {
    let world = World::on(Setup::sqlite()).await;
    let mut new = world.new_database();
    new["freeForm"] = json!("write");
    let id = world.add(&new).await;
    let ask = json!({"sql": "SELECT id FROM orders WHERE id = $1", "params": [3]});
    assert_eq!(world.invoke(&id, "query", ask.clone()).await.0, 202);
    let changed = world.ask("PATCH", &format!("/v1/databases/{id}"), &json!({"freeForm": "read"})).await;
    assert_eq!((changed.status, &changed.json()["freeForm"]), (200, &json!("read")), "{}", changed.text());
    let (status, body) = world.invoke(&id, "query", ask).await;
    assert!(status == 200 && body.to_string().contains("\"id\":3"), "{body}");
    // What the ledger cannot hash, and what is nested too deeply, does not break the record.
    for (sql, part) in [
        ("SELECT 0.1::float8 AS f, 1e300::float8 AS g, '{\"k\": 0.25}'::jsonb AS j", "0.25"),
        ("SELECT (repeat('[', 100) || repeat(']', 100))::jsonb AS j", "truncated"),
        ("SELECT (repeat('[', 1000) || repeat(']', 1000))::jsonb AS j", "truncated"),
    ] {
        let (status, body) = world.invoke(&id, "query", json!({"sql": sql})).await;
        assert!(status == 200 && body.to_string().contains(part), "{sql}: {status} {body}");
    }
    gate::verify_database(&world.gateway.app.store, Vec::new(), None, &|_| ()).await.unwrap();
    for (sql, code) in [
        ("DELETE FROM orders", 502),
        ("SELECT 1; DELETE FROM orders", 502),
        ("SELECT pg_read_file('/etc/passwd')", 502),
        ("SELECT $1", 400),
        ("", 400),
    ] {
        let (status, body) = world.invoke(&id, "query", json!({"sql": sql})).await;
        assert_eq!(status, code, "{sql}: {body}");
        assert!(!body.to_string().contains("s3cret"), "{body}");
    }
    let mode = json!({"key": format!("db:{id}:query"), "mode": "deny"});
    assert_eq!(world.ask("PUT", "/v1/action-modes", &mode).await.status, 200);
    assert_eq!(world.invoke(&id, "query", json!({"sql": "SELECT 1"})).await.0, 403);
}

#[tokio::test]
async fn a_large_result_keeps_its_first_rows() {
    let world = World::on(Setup::sqlite()).await;
    let mut new = world.new_database();
    (new["freeForm"], new["limits"]) = (json!("read"), json!({"maxRows": 1000}));
    let id = world.add(&new).await;
    let offered = world.offered(&id).await.to_string();
    assert!(offered.contains("at most 10240 bytes of JSON"), "{offered}");
    let sql = "SELECT n AS id, repeat('x', 100) AS text FROM generate_series(1, 500) n";
    let (status, body) = world.invoke(&id, "query", json!({"sql": sql})).await;
    let result = &body["result"];
    let rows = result["rows"].as_array().unwrap();
    assert!(status == 200 && (50..500).contains(&rows.len()), "{status}: {} rows", rows.len());
    assert_eq!(rows[rows.len() - 1]["id"], json!(rows.len()), "the first rows in order");
    assert_eq!((&result["rowCount"], &result["truncated"]), (&json!(rows.len()), &json!(true)));
    assert_eq!(result["totalRowCount"], json!(500));
    let sql = "SELECT repeat('x', 20000) AS text";
    let (status, body) = world.invoke(&id, "query", json!({"sql": sql})).await;
    assert!(status == 502 && body.to_string().contains("not even one row"), "{status} {body}");
    // The message repeats a long value, which ends with a secret.
    let sql = "SELECT (repeat('x ', 128) || 's3cret-of-orders')::int";
    let (status, body) = world.invoke(&id, "query", json!({"sql": sql})).await;
    assert!(status == 502 && body.to_string().contains("invalid input syntax"), "{status} {body}");
    assert!(!body.to_string().contains("s3c"), "{body}");
}

#[tokio::test]
async fn an_approval_does_not_count_for_another_statement() {
    let world = World::on(Setup::sqlite()).await;
    let id = world.add(&world.new_database()).await;
    let (status, body) = world.invoke(&id, "all", json!({})).await;
    assert_eq!(status, 202, "{body}");
    let mut queries = world.new_database()["queries"].clone();
    queries[1]["sql"] = json!("SELECT password FROM orders");
    let changed = world.ask("PATCH", &format!("/v1/databases/{id}"), &json!({"queries": queries})).await;
    assert_eq!(changed.status, 200, "{}", changed.text());
    assert!(world.events().await.contains("queries sha256"), "the change is in the ledger");
    let invocation = body["invocation"]["id"].as_str().unwrap();
    let path = format!("/proliferate/{}/actions/invocations/{invocation}/approve", world.session);
    let approved = world.gateway.post(&path, &json!({})).bearer(world.team.token(Role::Owner)).send().await;
    assert!(approved.status >= 400 && !approved.text().contains("hunter"), "{}", approved.text());
}

#[tokio::test]
async fn what_could_write_or_lead_astray_is_not_stored() {
    for world in worlds().await {
        let administrator = url::Url::parse(&postgres_url()).unwrap().username().to_owned();
        let with = |pointer: &str, value: Value| {
            let mut new = world.new_database();
            *new.pointer_mut(pointer).unwrap() = value;
            new
        };
        for (new, part) in [
            (with("/target/user", json!(administrator)), "superuser"),
            (with("/target/user", json!("nobody")), "refuses the user"),
            (with("/target/host", json!("10.0.0.1")), "without TLS"),
            (
                with(
                    "/target",
                    json!({"engine": "postgres", "host": "10.0.0.1", "database": "d", "user": "u"}),
                ),
                "private",
            ),
            (
                with(
                    "/target",
                    json!({"engine": "postgres", "host": "localhost", "database": "d", "user": "u"}),
                ),
                "private",
            ),
            (
                with(
                    "/target",
                    json!({"engine": "postgres", "host": "169.254.169.254", "database": "d", "user": "u"}),
                ),
                "private",
            ),
            (with("/target/host", json!("a b")), "not the name"),
            (with("/target/secretKey", json!("a b")), "secretKey"),
            (
                with("/target/secretKey", json!("NOT_SET")),
                "target.secretKey: the organization has no platform secret",
            ),
            (with("/target/secretKey", json!("NOT_SET")), "`proliferate secrets set NOT_SET -`"),
            (with("/target", json!({"engine": "sqlite", "file": "../shop.db"})), "relative path"),
            (with("/target", json!({"engine": "sqlite", "file": "/etc/passwd"})), "relative path"),
            (with("/target", json!({"engine": "sqlite", "file": "other.db"})), "does not exist"),
            (with("/name", json!(" ")), "name"),
            (with("/limits", json!({"timeoutMs": 600_000})), "timeoutMs is 10 to 30000"),
            (with("/queries/0/name", json!("query")), "choose another"),
            (
                with("/queries/0/parameters/0/schema", json!({"type": "text"})),
                "query by_customer: the schema of the parameter customer is wrong",
            ),
            (
                with("/queries/0/parameters/0/schema", json!({"$ref": "http://10.0.0.1/x"})),
                "query by_customer: the schema of the parameter customer contains $ref",
            ),
        ] {
            let refused = world.ask("POST", "/v1/databases", &new).await;
            assert!(refused.status == 400 && refused.text().contains(part), "{new}: {}", refused.text());
            assert!(!refused.text().contains("s3cret"), "{}", refused.text());
        }
        let large = with("/queries/0/parameters/0/schema", json!({"description": "x".repeat(140_000)}));
        let refused = world.ask("POST", "/v1/databases", &large).await;
        assert!(refused.status == 400 && refused.text().contains("128 KiB"), "{}", refused.status);
        let none = world.ask("GET", "/v1/databases", &Value::Null).await.json();
        assert_eq!(none, json!({"databases": []}));
        let checked = world.ask("POST", "/v1/databases/validate", &world.new_database()).await;
        assert_eq!((checked.status, checked.json()), (200, json!({"ok": true, "error": null})));
        assert!(world.events().await.contains("validate"), "a check is recorded: it sends a secret");
    }
}

#[tokio::test]
async fn databases_are_changed_disabled_and_removed_by_admins_of_their_organization() {
    for world in worlds().await {
        let id = world.add(&world.new_database()).await;
        let path = format!("/v1/databases/{id}");
        assert_eq!(world.ask("POST", "/v1/databases", &world.new_database()).await.status, 409);
        let shown = world.ask("GET", &path, &Value::Null).await.json();
        assert_eq!(
            (&shown["check"]["ok"], &shown["actions"][0]["key"]),
            (&json!(true), &json!(format!("db:{id}:by_customer")))
        );
        let other = OrgOf3::new(&world.gateway.app).await;
        for (method, body) in
            [("GET", Value::Null), ("PATCH", json!({"enabled": false})), ("DELETE", Value::Null)]
        {
            let call = world.gateway.call(method, &path).bearer(other.token(Role::Owner));
            let answer = if body.is_null() { call.send().await } else { call.json(&body).send().await };
            assert_eq!(answer.status, 404, "{method}: {}", answer.text());
        }
        let theirs = session(&world.gateway.app, other.org).await;
        let agent = sandbox_token(&world.gateway.app, theirs).await;
        let body =
            json!({"integration": format!("db:{id}"), "action": "by_customer", "params": {"customer": "c1"}});
        let invoke = format!("/proliferate/{theirs}/actions/invoke");
        assert_eq!(
            world.gateway.post(&invoke, &body).bearer(&agent).status().await,
            404,
            "another organization's"
        );

        let elsewhere = json!({"target": {"engine": "sqlite", "file": "missing.db"}});
        assert_eq!(world.ask("PATCH", &path, &elsewhere).await.status, 400);
        assert_eq!(world.ask("PATCH", &path, &json!({"enabled": false, "name": "o"})).await.status, 200);
        assert_eq!(world.offered(&id).await, Value::Null);
        assert_eq!(world.invoke(&id, "by_customer", json!({"customer": "c1"})).await.0, 404);
        assert_eq!(world.ask("DELETE", &path, &Value::Null).await.status, 200);
        assert_eq!(world.ask("GET", &path, &Value::Null).await.status, 404);
        let events = world.events().await;
        for part in [format!("database {id}, name, disabled"), "\"remove\"".to_owned()] {
            assert!(events.contains(&part), "{part}: {events}");
        }
    }
}

#[tokio::test]
async fn an_sqlite_file_belongs_to_one_organization() {
    let world = World::on(Setup::sqlite()).await;
    let new = json!({"name": "shop", "target": {"engine": "sqlite", "file": "shop.db"}, "freeForm": "read"});
    let id = world.add(&new).await;
    let (status, body) = world.invoke(&id, "query", json!({"sql": "SELECT ?1 AS a", "params": ["x"]})).await;
    assert!(status == 200 && body.to_string().contains("\"a\":\"x\""), "{body}");
    let attach = format!("ATTACH '{}' AS g", world.gateway.setup.data_dir().join("proliferate.db").display());
    let (status, body) = world.invoke(&id, "query", json!({"sql": attach})).await;
    assert_eq!(status, 502, "{body}");
    let other = OrgOf3::new(&world.gateway.app).await;
    let theirs = world.gateway.post("/v1/databases", &new).bearer(other.token(Role::Owner)).send().await;
    assert!(theirs.status == 400 && theirs.text().contains("does not exist"), "{}", theirs.text());
}
