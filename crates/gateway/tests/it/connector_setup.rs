//! Adding, checking and changing connectors: what is refused, and what the ledger says about it.

use std::sync::Arc;

use proto::Role;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::connectors::{World, worlds};
use crate::harness::Setup;
use crate::people::OrgOf3;

#[tokio::test]
async fn a_connector_is_created_with_its_overrides_or_not_at_all() {
    for world in worlds().await {
        world.set_secret("DOCS_KEY").await;
        let mut new = world.new_connector("docs");
        new["riskPolicy"]["overrides"] = json!({"echo": "danger"});
        let added = world.ask("POST", "/v1/connectors", &new).await;
        assert_eq!(added.json()["riskPolicy"]["overrides"], json!({"echo": "danger"}), "{}", added.text());
        let events = world.ask("GET", "/v1/audit/events?limit=1000", &Value::Null).await.text();
        assert!(events.contains("risk of echo: danger"), "{events}");

        let store = &world.gateway.app.store;
        let stored = store.connectors(world.team.org).await.unwrap().remove(0);
        let other =
            store::Connector { id: uuid::Uuid::from_u128(7).into(), name: "other".to_owned(), ..stored };
        let risks = vec![("x".repeat(129), Some(proto::Risk::Danger))];
        assert!(store.create_connector(other, risks).await.is_err(), "the name of the tool is too long");
        assert_eq!(store.connectors(world.team.org).await.unwrap().len(), 1);
    }
}

/// Attacks 11, 14 and 19.
#[tokio::test]
async fn misleading_addresses_and_headers_are_refused_when_a_connector_is_created() {
    let world = World::on(Setup::sqlite()).await;
    let path = world.add("docs").await;
    for url in [
        "http://127.0.0.1:1/",
        "https://127.0.0.1/",
        "https://169.254.169.254/latest",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://0x7f.1/",
        "https://2130706433/",
        "https://10.0.0.1/",
        "http://example.com/",
        "https://user:pass@example.com/",
        "https://example.com/#x",
        "file:///etc/passwd",
        "ftp://example.com/",
        "",
        "https://",
        "https://example.com\\@127.0.0.1/",
    ] {
        for (method, path, body) in [
            ("POST", "/v1/connectors", json!({"name": "bad", "url": url, "auth": {"type": "none"}})),
            ("POST", "/v1/connectors/validate", json!({"name": "bad", "url": url, "auth": {"type": "none"}})),
            ("PATCH", path.as_str(), json!({"url": url})),
        ] {
            let answer = world.ask(method, path, &body).await;
            let backslash = url.contains('\\');
            // The one parser reads the backslash as a slash, so the host is example.com, for the check and for the use.
            assert_eq!(answer.status == 400, !backslash, "{method} {url}: {}", answer.text());
        }
    }
    for auth in [
        json!({"type": "custom_header", "secretKey": "K", "headerName": "x-a\r\nx-b"}),
        json!({"type": "custom_header", "secretKey": "K", "headerName": "Host"}),
        json!({"type": "custom_header", "secretKey": "K", "headerName": "mcp-session-id"}),
        json!({"type": "bearer", "secretKey": "../K"}),
        json!({"type": "oauth", "tokenUrl": "https://127.0.0.1/", "clientIdKey": "A", "clientSecretKey": "B"}),
        json!({"type": "unknown"}),
    ] {
        let body = json!({"name": "bad", "url": world.url, "auth": auth});
        let answer = world.ask("POST", "/v1/connectors", &body).await;
        assert_eq!(answer.status, 400, "{auth}: {}", answer.text());
    }
}

#[tokio::test]
async fn a_secret_that_no_header_can_carry_is_refused_when_a_connector_is_set_up() {
    let world = World::on(Setup::sqlite()).await;
    let path = world.add("docs").await;
    for value in ["two\nlines", "ends with a break\r\n"] {
        let set = world.ask("PUT", "/v1/secrets/BAD_KEY", &json!({ "value": value })).await;
        assert!(set.status < 300, "{}", set.text());
        for auth in [
            json!({"type": "bearer", "secretKey": "BAD_KEY"}),
            json!({"type": "custom_header", "secretKey": "BAD_KEY", "headerName": "X-Key"}),
        ] {
            let new = json!({"name": "bad", "url": world.url, "auth": auth});
            for (method, path, body) in [
                ("POST", "/v1/connectors", &new),
                ("POST", "/v1/connectors/validate", &new),
                ("PATCH", path.as_str(), &json!({ "auth": auth })),
            ] {
                let answer = world.ask(method, path, body).await;
                let (status, text) = (answer.status, answer.text());
                assert!(status == 400 && text.contains("auth.secretKey"), "{method} {auth}: {status} {text}");
                assert!(!text.contains(value), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn a_connector_with_a_secret_that_does_not_exist_is_refused() {
    let world = World::on(Setup::sqlite()).await;
    let path = world.add("docs").await;
    let variable = json!({"value": "x", "purpose": "env"});
    assert!(world.ask("PUT", "/v1/secrets/VARIABLE", &variable).await.status < 300);
    let oauth = |id: &str, secret: &str| json!({"type": "oauth", "tokenUrl": world.url, "clientIdKey": id, "clientSecretKey": secret});
    for (auth, field, name) in [
        (json!({"type": "bearer", "secretKey": "LATER"}), "auth.secretKey", "LATER"),
        (json!({"type": "bearer", "secretKey": "VARIABLE"}), "auth.secretKey", "VARIABLE"),
        (
            json!({"type": "custom_header", "secretKey": "LATER", "headerName": "X-Key"}),
            "auth.secretKey",
            "LATER",
        ),
        (oauth("LATER", "DOCS_KEY"), "auth.clientIdKey", "LATER"),
        (oauth("DOCS_KEY", "LATER"), "auth.clientSecretKey", "LATER"),
    ] {
        let new = json!({"name": "new", "url": world.url, "auth": auth});
        for (method, path, body) in [
            ("POST", "/v1/connectors", &new),
            ("POST", "/v1/connectors/validate", &new),
            ("PATCH", path.as_str(), &json!({ "auth": auth })),
        ] {
            let answer = world.ask(method, path, body).await;
            let (status, text) = (answer.status, answer.text());
            let remedy = format!("`proliferate secrets set {name} -`");
            assert!(
                status == 400 && text.contains(field) && text.contains(&remedy),
                "{method} {auth}: {text}"
            );
        }
    }
}

#[tokio::test]
async fn the_ledger_keeps_the_origin_of_a_connectors_address_only() {
    let world = World::on(Setup::sqlite()).await;
    let path = world.add("docs").await;
    let mut new = world.new_connector("new");
    new["url"] = json!(format!("{}?key=in-the-query", world.url));
    assert_eq!(world.ask("POST", "/v1/connectors", &new).await.status, 201);
    let moved = json!({"url": format!("{}/in-the-path", world.url)});
    assert_eq!(world.ask("PATCH", &path, &moved).await.status, 200);
    let events = world.ask("GET", "/v1/audit/events?limit=1000", &Value::Null).await.text();
    let origin = world.url.trim_end_matches("/mcp");
    assert!(events.matches(origin).count() >= 3 && events.contains(&format!("url at {origin}")), "{events}");
    assert!(!events.contains("in-the-query") && !events.contains("in-the-path"), "{events}");
}

#[tokio::test]
async fn a_validation_is_recorded_before_it_is_sent_and_keeps_nothing() {
    let world = World::on(Setup::sqlite()).await;
    world.add("docs").await;
    let mut new = world.new_connector("new");
    new["url"] = json!(format!("{}?token=in-the-query", world.url));
    let events = async || {
        let events = world.ask("GET", "/v1/audit/events?limit=1000", &Value::Null).await.text();
        (events.matches("validate").count(), events)
    };
    let (before, _) = events().await;
    let kept = world.gateway.app.connectors.cached_listings();
    for _ in 0..3 {
        let offer = world.ask("POST", "/v1/connectors/validate", &new).await;
        assert_eq!((offer.status, &offer.json()["ok"]), (200, &json!(true)), "{}", offer.text());
    }
    assert_eq!(world.gateway.app.connectors.cached_listings(), kept);
    let (after, text) = events().await;
    assert!(after >= before + 3, "{text}");
    let origin = world.url.trim_end_matches("/mcp");
    assert!(text.contains(&format!("{origin}, secret DOCS_KEY")), "{text}");
    assert!(!text.contains("s3cret") && !text.contains("in-the-query"), "{text}");

    let (listing, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    world.script.lock().pause = Some((listing.clone(), go_on.clone()));
    let look_meanwhile = async {
        listing.notified().await;
        let seen = events().await.0;
        go_on.notify_one();
        seen
    };
    let (offer, seen) = tokio::join!(world.ask("POST", "/v1/connectors/validate", &new), look_meanwhile);
    assert_eq!(offer.status, 200, "{}", offer.text());
    assert!(seen > after, "the server was asked before the ledger knew");
}

#[tokio::test]
async fn a_connector_of_another_organization_does_not_exist() {
    let world = World::on(Setup::sqlite()).await;
    let path = world.add("docs").await;
    let other = OrgOf3::new(&world.gateway.app).await;
    for (method, path) in
        [("GET", path.clone()), ("DELETE", path.clone()), ("POST", format!("{path}/review"))]
    {
        let call =
            world.gateway.call(method, &path).bearer(other.token(Role::Owner)).json(&json!({"tools": {}}));
        assert_eq!(call.status().await, 404, "{method} {path}");
    }
    let listed = world.gateway.get("/v1/connectors").bearer(other.token(Role::Owner)).send().await;
    assert_eq!(listed.json(), json!({"connectors": []}));
}
