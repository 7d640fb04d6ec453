//! `/ready` while PostgreSQL is unreachable: it names the failing check in bounded time and recovers by itself.

use serde_json::Value;
use testkit::{Direction, FaultProxy};

use crate::harness::{Setup, TestGateway, address_of, fresh_database, through, within};

/// The ways in which a dependency can become unreachable.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Refuse,
    BlackHole,
}

async fn break_off(proxy: &FaultProxy, fault: Fault) {
    match fault {
        Fault::Refuse => {
            proxy.refuse().await;
            proxy.reset_now();
        }
        Fault::BlackHole => proxy.black_hole(Direction::ToTarget),
    }
}

/// The names of the failing checks.
async fn down(gateway: &TestGateway) -> Vec<String> {
    let answer = gateway.get("/ready").send().await;
    let body = answer.json();
    let checks = body["checks"].as_array().unwrap();
    let down: Vec<_> = checks.iter().filter(|check| check["ok"] == Value::Bool(false)).collect();
    assert_eq!(
        (answer.status == 200, body["ready"] == Value::Bool(true)),
        (down.is_empty(), down.is_empty()),
        "{body}"
    );
    assert!(answer.status == 200 || answer.status == 503, "{body}");
    assert!(!answer.text().contains("127.0.0.1"), "where things are is for the log: {body}");
    let names = down.iter().map(|check| check["name"].as_str().unwrap().to_owned());
    // The safety lock is stored in the database: two seconds after the database fails, its check fails too.
    let database = down.iter().any(|check| check["name"] == "database");
    names.filter(|name| !database || name != "safety_lock").collect()
}

/// Cuts the dependency off and restores it, with each fault; each answer must arrive before the harness times out.
async fn comes_and_goes(gateway: &TestGateway, proxy: &FaultProxy, part: &str) {
    for fault in [Fault::Refuse, Fault::BlackHole] {
        within(async { while !down(gateway).await.is_empty() {} }).await;
        break_off(proxy, fault).await;
        assert_eq!(down(gateway).await, [part], "{fault:?}");
        assert_eq!(gateway.get("/health").status().await, 200, "alive is another question than ready");
        assert_eq!(down(gateway).await, [part], "{fault:?}, asked again");
        proxy.heal().await.unwrap();
    }
    within(async { while !down(gateway).await.is_empty() {} }).await;
}

#[tokio::test]
async fn an_unreachable_postgres_is_named() {
    let url = fresh_database().await;
    let proxy = FaultProxy::start(address_of(&url)).await.unwrap();
    let setup = Setup::postgres().await.set("DATABASE_URL", &through(&url, proxy.address()));
    let gateway = setup.start().await;
    comes_and_goes(&gateway, &proxy, "database").await;
}

#[tokio::test]
async fn an_unreachable_database_is_a_503_without_details() {
    let url = fresh_database().await;
    let proxy = FaultProxy::start(address_of(&url)).await.unwrap();
    let gateway = Setup::postgres().await.set("DATABASE_URL", &through(&url, proxy.address())).start().await;
    let person =
        crate::people::person(&gateway.app, crate::people::org(&gateway.app).await, proto::Role::Member);
    let person = person.await;
    break_off(&proxy, Fault::Refuse).await;
    let answer = gateway.get("/v1/me").bearer(&person.token).send().await;
    let expected = r#"{"error":"The database is not available","code":"unavailable"}"#;
    assert_eq!((answer.status, answer.text().as_str()), (503, expected));
    proxy.heal().await.unwrap();
    assert_eq!(gateway.get("/v1/me").bearer(&person.token).status().await, 200);
}

#[tokio::test]
async fn an_error_of_the_database_that_no_waiting_heals_is_a_500_and_logged() {
    let logs = crate::logs::Captured::start();
    let gateway = TestGateway::postgres().await;
    let team = crate::people::OrgOf3::new(&gateway.app).await;
    let owner = team.token(proto::Role::Owner);
    let expected = r#"{"error":"Internal server error","code":"internal"}"#;
    // A row that cannot be decoded, a constraint that the code does not know, and a missing table.
    for (sql, method, path) in [
        (
            "ALTER TABLE members DROP CONSTRAINT members_role_check; UPDATE members SET role = 'strange' WHERE role = 'member'",
            "GET",
            "/v1/members",
        ),
        ("ALTER TABLE api_keys ADD CONSTRAINT no_more CHECK (name <> 'k')", "POST", "/v1/keys"),
        ("ALTER TABLE secrets RENAME TO gone", "GET", "/v1/secrets"),
    ] {
        gateway.sql(sql).await;
        let call = gateway.call(method, path).bearer(owner).json(&serde_json::json!({"name": "k"}));
        let answer = call.send().await;
        assert_eq!((answer.status, answer.text().as_str()), (500, expected), "{sql}");
    }
    assert!(logs.text().contains("no_more") && logs.text().contains("secrets"), "{}", logs.text());
}

#[tokio::test]
async fn a_missing_sandbox_engine_is_named() {
    let gateway = Setup::sqlite().set("PATH", "/nonexistent").start().await;
    assert_eq!(down(&gateway).await, ["sandboxes"]);
}
