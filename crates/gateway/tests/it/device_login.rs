//! A device without a browser logs in: a member approves its code, and it gets one API key, once.

use std::time::Duration;

use clock::Clock;
use futures_util::future::join_all;
use proto::Role;
use serde_json::{Value, json};

use crate::harness::{Setup, TestGateway};
use crate::people::{Person, org, person};

async fn member(gateway: &TestGateway) -> Person {
    person(&gateway.app, org(&gateway.app).await, Role::Member).await
}

/// Starts a login and returns its device code and its user code.
async fn started(gateway: &TestGateway, name: &str) -> (String, String) {
    let answer = gateway.post("/v1/device-logins", &json!({"clientName": name})).send().await;
    assert_eq!(answer.status, 201, "{}", answer.text());
    let body: Value = answer.json();
    let text = |field: &str| body[field].as_str().unwrap().to_owned();
    assert_eq!((&body["expiresIn"], &body["interval"]), (&json!(900), &json!(5)));
    assert!(text("verificationUrl").ends_with(&format!("/device?code={}", text("userCode"))), "{body}");
    (text("deviceCode"), text("userCode"))
}

async fn poll(gateway: &TestGateway, device: &str) -> (u16, Value) {
    let answer = gateway.post("/v1/device-logins/token", &json!({"deviceCode": device})).send().await;
    (answer.status, answer.json())
}

async fn answer(gateway: &TestGateway, code: &str, verb: &str, token: &str) -> u16 {
    let path = format!("/v1/device-logins/{code}/{verb}");
    gateway.post(&path, &json!({})).bearer(token).status().await
}

#[tokio::test]
async fn an_approved_device_gets_one_key_of_the_member_who_approved_it() {
    for gateway in TestGateway::both().await {
        let ada = member(&gateway).await;
        let (device, code) = started(&gateway, "CLI ada@laptop").await;
        let (status, body) = poll(&gateway, &device).await;
        assert_eq!((status, &body["error"]), (400, &json!("authorization_pending")));
        let shown = gateway
            .get(&format!("/v1/device-logins/{}", code.to_lowercase()))
            .bearer(&ada.token)
            .send()
            .await;
        let shown: Value = shown.json();
        assert_eq!((&shown["clientName"], &shown["userCode"]), (&json!("CLI ada@laptop"), &json!(code)));
        assert_eq!(answer(&gateway, &code, "approve", &ada.token).await, 200);
        assert_eq!(answer(&gateway, &code, "deny", &ada.token).await, 404, "it was decided");

        let polls = join_all((0..4).map(|_| poll(&gateway, &device))).await;
        let tokens: Vec<&Value> =
            polls.iter().filter(|(status, _)| *status == 200).map(|(_, body)| body).collect();
        assert_eq!(tokens.len(), 1, "{polls:?}");
        let token = tokens[0]["token"].as_str().unwrap();
        assert_eq!((&tokens[0]["user"]["id"], &tokens[0]["org"]["id"]), (&json!(ada.id), &json!(ada.org)));
        let me: Value = gateway.get("/v1/me").bearer(token).send().await.json();
        assert_eq!((&me["userId"], &me["source"]), (&json!(ada.id), &json!("cli")));
        let (status, body) = poll(&gateway, &device).await;
        assert_eq!((status, &body["error"]), (400, &json!("invalid_device_code")), "a code works once");
        let keys: Value = gateway.get("/v1/keys").bearer(token).send().await.json();
        let key =
            keys["keys"].as_array().unwrap().iter().find(|key| key["id"] == tokens[0]["keyId"]).unwrap();
        assert_eq!(key["name"], "CLI ada@laptop");
        let events: Value = gateway.get("/v1/audit/events?limit=1000").bearer(token).send().await.json();
        assert!(events.to_string().contains("device login"), "the new key is in the ledger: {events}");
        assert!(!events.to_string().contains(&device) && !events.to_string().contains(token));
    }
}

#[tokio::test]
async fn a_device_login_ends_when_it_is_denied_or_expires_and_with_its_approver() {
    let clock = Clock::manual(Clock::system().now());
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let gateway = setup.clock(&clock).start().await;
        let ada = member(&gateway).await;
        let (denied, code) = started(&gateway, "one").await;
        assert_eq!(answer(&gateway, &code, "deny", &ada.token).await, 200);
        assert_eq!(poll(&gateway, &denied).await.1["error"], "access_denied");

        let (first, code) = started(&gateway, "a stolen key").await;
        assert_eq!(answer(&gateway, &code, "approve", &ada.token).await, 200);
        let (_, stolen) = poll(&gateway, &first).await;
        let (heir, code) = started(&gateway, "its heir").await;
        assert_eq!(answer(&gateway, &code, "approve", stolen["token"].as_str().unwrap()).await, 200);
        let key = format!("/v1/keys/{}", stolen["keyId"].as_str().unwrap());
        assert_eq!(gateway.call("DELETE", &key).bearer(&ada.token).status().await, 200);
        assert_eq!(poll(&gateway, &heir).await.1["error"], "invalid_device_code");

        let (left, code) = started(&gateway, "two").await;
        assert_eq!(answer(&gateway, &code, "approve", &ada.token).await, 200);
        gateway.app.store.change_member(ada.org, ada.id, None, gateway.app.clock.now()).await.unwrap();
        assert_eq!(poll(&gateway, &left).await.1["error"], "invalid_device_code");

        let bob = member(&gateway).await;
        let (late, code) = started(&gateway, "three").await;
        clock.advance(Duration::from_mins(15));
        assert_eq!(answer(&gateway, &code, "approve", &bob.token).await, 404);
        assert_eq!(poll(&gateway, &late).await.1["error"], "expired_token");
        assert_eq!(poll(&gateway, "00").await.1["error"], "invalid_device_code");
    }
}

#[tokio::test]
async fn device_logins_and_guesses_of_codes_are_limited() {
    let gateway = TestGateway::sqlite().await;
    let ada = member(&gateway).await;
    let mut statuses = Vec::new();
    for _ in 0..30 {
        statuses.push(gateway.post("/v1/device-logins", &json!({"clientName": "x"})).status().await);
    }
    assert!(statuses.contains(&201) && statuses.contains(&429), "{statuses:?}");
    let mut guesses = Vec::new();
    for number in 0..30 {
        guesses.push(answer(&gateway, &format!("ABCD-{number:04}"), "approve", &ada.token).await);
    }
    assert!(guesses.contains(&404) && guesses.contains(&429), "{guesses:?}");
    let other = TestGateway::sqlite().await;
    for wrong in ["x".repeat(81), "CLI ada\u{202e}moc.live".to_owned(), "CLI ad\u{200b}a".to_owned()] {
        let answer = other.post("/v1/device-logins", &json!({"clientName": wrong})).send().await;
        assert_eq!(answer.status, 400, "{wrong:?}");
        assert!(answer.text().contains("clientName"), "{}", answer.text());
    }
}

#[tokio::test]
async fn one_client_of_a_proxy_does_not_keep_the_others_from_logging_in() {
    let gateway = TestGateway::sqlite().await;
    let ada = member(&gateway).await;
    let (device, code) = started(&gateway, "waits").await;
    let call = async |path: &str, body: Value, client: &str| {
        gateway.post(path, &body).header("x-forwarded-for", client).status().await
    };
    let start = async |client: &str| call("/v1/device-logins", json!({"clientName": "x"}), client).await;
    let guess =
        async |client: &str| call("/v1/device-logins/token", json!({"deviceCode": "00"}), client).await;
    let used_up = async |client: &str| {
        for _ in 0..30 {
            start(client).await;
        }
        start(client).await == 429
    };
    // What a client says about itself does not count, only what the proxy adds.
    assert!(used_up("203.0.113.7, 192.0.2.1").await);
    assert_eq!((start("198.51.100.1, 192.0.2.1").await, start("192.0.2.2").await), (429, 201));
    let mut guesses = 0;
    while guess("192.0.2.3").await == 400 {
        guesses += 1;
        assert!(guesses < 100, "wrong codes are not limited");
    }
    // Somebody who invents addresses uses up the share of the proxy, and a device that waits still gets its key.
    let mut invented = 0;
    while start(&format!("10.0.{}.{}", invented / 250, invented % 250)).await == 201 {
        invented += 1;
        assert!(invented < 1000, "invented addresses are not limited");
    }
    assert_eq!(poll(&gateway, &device).await.1["error"], "authorization_pending");
    assert_eq!(answer(&gateway, &code, "approve", &ada.token).await, 200);
    assert_eq!(poll(&gateway, &device).await.0, 200);
}
