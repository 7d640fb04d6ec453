//! Notifications: what waits for a person is reported to the organization's webhook, once, signed and without arguments.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::any;
use hmac::{Hmac, KeyInit as _, Mac as _};
use parking_lot::Mutex;
use proto::Role;
use serde_json::{Value, json};
use sha2::Sha256;
use store::RunStep;
use testkit::EffectRecorder;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use crate::actions::{agent, invoke};
use crate::call::Answer;
use crate::harness::{Running, Setup, within};
use crate::inbox::{ask, run_after};
use crate::model_proxy::serve;
use crate::people::{OrgOf3, service_token};
use crate::world::{World, tools};

const SECRET: &str = "0123456789abcdef-notification-canary";

/// A webhook that passes on what it gets.
struct Receiver {
    address: String,
    status: Arc<Mutex<StatusCode>>,
    /// While `true`, requests get no answer.
    held: watch::Sender<bool>,
    requests: UnboundedReceiver<(HeaderMap, String)>,
}

type Shared = (Arc<Mutex<StatusCode>>, watch::Receiver<bool>, UnboundedSender<(HeaderMap, String)>);

async fn answer(
    State((status, mut held, requests)): State<Shared>,
    headers: HeaderMap,
    body: String,
) -> Response {
    let _ = requests.send((headers, body));
    let _ = held.wait_for(|held| !held).await;
    let status = *status.lock();
    (status, [("location", "/elsewhere")], "what the receiver says is not read").into_response()
}

impl Receiver {
    async fn start() -> Self {
        let status = Arc::new(Mutex::new(StatusCode::OK));
        let ((held, held_now), (sender, requests)) = (watch::channel(false), unbounded_channel());
        let router = Router::new().fallback(any(answer)).with_state((status.clone(), held_now, sender));
        Self { address: serve(router).await.to_string(), status, held, requests }
    }

    /// The next request: its body, and whether its signature is right.
    async fn next(&mut self) -> Value {
        let (headers, body) = within(self.requests.recv()).await.unwrap();
        let signature = headers["x-proliferate-signature"].to_str().unwrap();
        let (time, hex) = signature.strip_prefix("t=").unwrap().split_once(",v1=").unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        mac.update(format!("{time}.{body}").as_bytes());
        mac.verify_slice(&hex::decode(hex).unwrap()).unwrap();
        assert_eq!(headers["content-type"], "application/json");
        assert!(!body.contains("canary"), "{body}");
        serde_json::from_str(&body).unwrap()
    }
}

/// A gateway that has not begun to deliver, and a webhook that it may reach.
async fn start(setup: Setup) -> (World, Receiver) {
    let (effects, receiver) = (EffectRecorder::start().await.unwrap(), Receiver::start().await);
    let address = effects.url().trim_start_matches("http://").trim_end_matches('/').to_owned();
    let allowed = format!("{address},{}", receiver.address);
    let gateway = setup.with_tools(&tools(&address), &allowed).start().await;
    let team = OrgOf3::new(&gateway.app).await;
    let token = service_token(&gateway.app, Some(team.org));
    (World { effects, gateway, team, token }, receiver)
}

async fn both() -> [(World, Receiver); 2] {
    [start(Setup::sqlite()).await, start(Setup::postgres().await).await]
}

async fn admin(world: &World, method: &str, path: &str, body: &Value) -> Answer {
    let call = world.gateway.call(method, path).bearer(world.team.token(Role::Admin));
    if body.is_null() { call.send().await } else { call.json(body).send().await }
}

async fn set(world: &World, url: &str) -> Answer {
    admin(world, "PUT", "/v1/notifications", &json!({"url": url, "secret": SECRET})).await
}

/// Sets the receiver, at an address whose path is a credential.
async fn report_to(world: &World, receiver: &Receiver) {
    let url = format!("http://{}/hooks/canary-in-the-path", receiver.address);
    let set = set(world, &url).await;
    assert_eq!(set.status, 200, "{}", set.text());
    assert_eq!(set.json()["origin"], json!(format!("http://{}", receiver.address)));
    assert!(!set.text().contains("canary"), "{}", set.text());
}

/// Asks the running gateway as an admin.
async fn over_http(running: &Running, team: &OrgOf3, method: &str, path: &str) -> Value {
    let request = crate::harness::client().request(method.parse().unwrap(), running.url(path));
    let answer = within(request.bearer_auth(team.token(Role::Admin)).send()).await.unwrap();
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

#[tokio::test]
async fn what_waits_is_reported_once_signed_and_without_arguments() {
    for (world, mut receiver) in both().await {
        let (own, token) = agent(&world).await;
        let early =
            invoke(&world, &token, own, "effect.open", json!({"a": "before notifications were set"})).await;
        assert_eq!(early.0, 202);
        let (asking, _) = agent(&world).await;
        report_to(&world, &receiver).await;
        ask(&world.gateway.app, asking).await;
        let (status, waiting) = invoke(&world, &token, own, "effect.open", json!({"note": "canary-1"})).await;
        assert_eq!(status, 202, "{waiting}");
        let run = run_after(&world, None, &[RunStep::CannotStart]).await;
        let World { gateway, team, .. } = world;
        let running = gateway.serve();

        let mut all = [receiver.next().await, receiver.next().await, receiver.next().await];
        all.sort_by_key(|body| body["type"].as_str().unwrap().to_owned());
        let page = all[0]["url"].as_str().unwrap();
        assert!(page.ends_with("/#inbox"), "{page}");
        assert_eq!(
            all[0]["text"],
            json!(format!("An action waits for approval: tools effect.open (write). {page}"))
        );
        assert_eq!(
            [&all[0]["id"], &all[0]["sessionId"], &all[0]["action"]],
            [&waiting["invocation"]["id"], &json!(own), &json!("effect.open")]
        );
        assert_eq!(all[1]["text"], json!(format!("An agent has a question. {page}")));
        assert_eq!([&all[1]["id"], &all[1]["sessionId"]], [&json!("que.1"), &json!(asking)]);
        assert_eq!(
            all[2]["text"],
            json!(format!("A run of the automation Nightly &lt;check&gt; failed. {page}"))
        );
        assert_eq!([&all[2]["id"], &all[2]["status"]], [&json!(run), &json!("failed")]);

        let delivered =
            async { while over_http(&running, &team, "GET", "/v1/notifications").await["pending"] != 0 {} };
        within(delivered).await;
        let tested = over_http(&running, &team, "POST", "/v1/notifications/test").await;
        assert_eq!(tested, json!({"ok": true, "error": null}));
        assert_eq!(receiver.next().await["type"], "test", "nothing was reported twice");
        let shown = over_http(&running, &team, "GET", "/v1/notifications").await;
        assert_eq!((&shown["failed"], &shown["lastError"]), (&json!(0), &Value::Null));
        running.stop().await;
    }
}

#[tokio::test]
async fn a_receiver_that_is_down_is_asked_again_also_after_a_restart() {
    for (world, mut receiver) in both().await {
        let (own, token) = agent(&world).await;
        report_to(&world, &receiver).await;
        *receiver.status.lock() = StatusCode::SERVICE_UNAVAILABLE;
        let (status, waiting) = invoke(&world, &token, own, "effect.open", json!({})).await;
        assert_eq!(status, 202, "{waiting}");
        let World { gateway, team, .. } = world;
        let running = gateway.serve();
        let id = waiting["invocation"]["id"].clone();
        for _ in 0..2 {
            assert_eq!(receiver.next().await["id"], id, "it is asked again");
        }
        let failing = async {
            while over_http(&running, &team, "GET", "/v1/notifications").await["lastError"]
                != "the receiver answered HTTP 503"
            {}
        };
        within(failing).await;
        let setup = running.stop().await;
        *receiver.status.lock() = StatusCode::OK;
        // Requests from before the stop.
        while receiver.requests.try_recv().is_ok() {}
        let running = setup.start().await.serve();
        assert_eq!(receiver.next().await["id"], id);
        let settled =
            async { while over_http(&running, &team, "GET", "/v1/notifications").await["pending"] != 0 {} };
        within(settled).await;
        running.stop().await;
    }
}

#[tokio::test]
async fn an_invocation_does_not_wait_for_a_receiver_that_does_not_answer() {
    let (world, mut receiver) = start(Setup::sqlite()).await;
    let (own, token) = agent(&world).await;
    report_to(&world, &receiver).await;
    receiver.held.send_replace(true);
    assert_eq!(invoke(&world, &token, own, "effect.open", json!({})).await.0, 202);
    let running = world.gateway.serve();
    let first = receiver.next().await;
    let request = crate::harness::client()
        .post(running.url(&format!("/proliferate/{own}/actions/invoke")))
        .bearer_auth(&token)
        .header("content-type", "application/json")
        .body(json!({"integration": "tools", "action": "effect.open", "params": {}}).to_string());
    let answer = within(request.send()).await.unwrap();
    assert_eq!(answer.status().as_u16(), 202, "while the first request still has no answer");
    receiver.held.send_replace(false);
    let second = receiver.next().await;
    assert_ne!(first["id"], second["id"]);
    running.stop().await;
}

#[tokio::test]
async fn what_waits_no_more_is_not_reported() {
    let (world, mut receiver) = start(Setup::sqlite()).await;
    let (own, token) = agent(&world).await;
    report_to(&world, &receiver).await;
    let (_, waiting) = invoke(&world, &token, own, "effect.open", json!({})).await;
    let path = format!("/v1/invocations/{}/deny", waiting["invocation"]["id"].as_str().unwrap());
    assert_eq!(admin(&world, "POST", &path, &json!({})).await.status, 200);
    let (_, other) = invoke(&world, &token, own, "effect.open", json!({})).await;
    let running = world.gateway.serve();
    assert_eq!(receiver.next().await["id"], other["invocation"]["id"]);
    running.stop().await;
}

#[tokio::test]
async fn only_allowed_addresses_get_requests_and_redirects_are_not_followed() {
    let (world, mut receiver) = start(Setup::sqlite()).await;
    assert_eq!(admin(&world, "GET", "/v1/notifications", &Value::Null).await.status, 404);
    assert_eq!(admin(&world, "POST", "/v1/notifications/test", &Value::Null).await.status, 404);
    for url in [
        "",
        "x",
        "ftp://example.com/",
        "http://example.com/",
        "https://10.0.0.1/",
        "https://[::1]/",
        "https://169.254.169.254/latest",
        "https://user:canary@example.com/",
        "https://example.com/#x",
        "http://127.0.0.1:1/",
    ] {
        let refused = set(&world, url).await;
        assert!(refused.status == 400 && !refused.text().contains("canary"), "{url}: {}", refused.text());
    }
    for secret in ["short", "two\nlines-that-are-long-enough"] {
        let body = json!({"url": "https://example.com/", "secret": secret});
        assert_eq!(admin(&world, "PUT", "/v1/notifications", &body).await.status, 400, "{secret}");
    }
    report_to(&world, &receiver).await;
    *receiver.status.lock() = StatusCode::FOUND;
    let tested = async || admin(&world, "POST", "/v1/notifications/test", &Value::Null).await.json();
    let problem = "the receiver answered with a redirect, which is not followed";
    assert_eq!(tested().await, json!({"ok": false, "error": problem}));
    receiver.next().await;
    assert!(receiver.requests.try_recv().is_err(), "the redirect was followed");

    // A value that somebody put into the vault by hand is checked too.
    let body = json!({"value": "http://127.0.0.1:1/"});
    let path = "/v1/secrets/PROLIFERATE_NOTIFICATION_URL";
    assert!(admin(&world, "PUT", path, &body).await.status < 300);
    let answer = tested().await;
    assert!(answer["error"].as_str().unwrap().contains("CONNECTOR_ALLOWED_HOSTS"), "{answer}");

    let events = admin(&world, "GET", "/v1/audit/events?limit=1000", &Value::Null).await.text();
    assert!(events.contains("\"notification\"") && !events.contains("canary"), "{events}");
    let shown = admin(&world, "GET", "/v1/notifications", &Value::Null).await.text();
    assert!(!shown.contains("canary") && !shown.contains("/hooks"), "{shown}");
    assert_eq!(admin(&world, "DELETE", "/v1/notifications", &Value::Null).await.status, 200);
    let secrets = admin(&world, "GET", "/v1/secrets", &Value::Null).await;
    assert_eq!(secrets.json()["secrets"], json!([]), "the secrets went with it");
    assert_eq!(admin(&world, "DELETE", "/v1/notifications", &Value::Null).await.status, 404);

    let made = admin(&world, "PUT", "/v1/notifications", &json!({"url": "https://example.com/hook"})).await;
    assert_eq!(made.json()["secret"].as_str().unwrap().len(), 64, "generated, and shown once");
    let again = admin(&world, "PUT", "/v1/notifications", &json!({"url": "https://example.com/other"})).await;
    assert!(again.status == 200 && again.json().get("secret").is_none(), "{}", again.text());
}
