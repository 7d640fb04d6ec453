//! Automations over HTTP: settings and their limits, webhooks, schedules, and what people do with runs. No session starts
//! here.

use std::time::Duration;

use chrono::DateTime;
use clock::Clock;
use hmac::{Hmac, KeyInit as _, Mac as _};
use proto::Role;
use serde_json::{Value, json};
use sha2::Sha256;

use crate::call::{Answer, Call};
use crate::harness::{Setup, TestGateway};
use crate::logs::Captured;
use crate::people::{OrgOf3, Person, org, person, some_uuid, user_token};

const SECRET: &str = "0123456789abcdef-webhook-canary";

struct World {
    gateway: TestGateway,
    clock: Clock,
    team: OrgOf3,
}

impl World {
    async fn new(setup: Setup) -> Self {
        let clock = Clock::manual(DateTime::from_timestamp(1_800_000_000, 0).unwrap());
        let gateway = setup.clock(&clock).start().await;
        let team = OrgOf3::new(&gateway.app).await;
        Self { gateway, clock, team }
    }

    async fn both() -> [Self; 2] {
        [Self::new(Setup::sqlite()).await, Self::new(Setup::postgres().await).await]
    }

    fn admin(&self) -> &Person {
        self.team.person(Role::Admin)
    }

    async fn ask(&self, method: &str, path: &str, body: &Value) -> Answer {
        // A new token, because the clock is moved by more than the life of one.
        let token = user_token(&self.gateway.app, self.admin().id, self.team.org);
        let call = self.gateway.call(method, path).bearer(&token);
        if body.is_null() { call.send().await } else { call.json(body).send().await }
    }

    /// Creates an automation with these additional fields, and returns its entry.
    async fn automation(&self, more: Value) -> Value {
        let mut body = json!({"name": "triage", "instructions": "Look at the issue."});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = self.ask("POST", "/v1/automations", &body).await;
        assert_eq!(answer.status, 201, "{}", answer.text());
        answer.json()
    }

    fn hook(&self, id: &str, body: &str, headers: &[(&str, String)]) -> Call {
        let call = self.gateway.call("POST", &format!("/v1/hooks/{id}")).body(body.to_owned());
        headers.iter().fold(call, |call, (name, value)| call.header(name, value))
    }

    /// The header of the scheme `generic`, signed this many seconds ago.
    fn signed(&self, body: &str, age: i64) -> (&'static str, String) {
        let time = (self.clock.now().timestamp() - age).to_string();
        let hex = mac(&[time.as_bytes(), b".", body.as_bytes()]);
        ("x-proliferate-signature", format!("t={time},v1={hex}"))
    }

    async fn runs(&self, automation: &str) -> Vec<Value> {
        let runs = self.ask("GET", &format!("/v1/automations/{automation}/runs"), &Value::Null).await;
        runs.json()["runs"].as_array().unwrap().clone()
    }
}

fn mac(parts: &[&[u8]]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
    for part in parts {
        mac.update(part);
    }
    hex::encode(mac.finalize().into_bytes())
}

fn id(entry: &Value) -> &str {
    entry["id"].as_str().unwrap()
}

#[tokio::test]
async fn an_automation_is_created_changed_and_removed() {
    for world in World::both().await {
        let cron = json!({"schedule": "0 9 * * *", "timeZone": "Europe/Berlin"});
        let made = world
            .automation(json!({"cron": cron, "webhook": {"scheme": "github"}, "model": "claude-opus-4-6"}))
            .await;
        let path = format!("/v1/automations/{}", id(&made));
        assert_eq!((&made["enabled"], &made["model"]), (&json!(true), &json!("claude-opus-4.6")));
        assert_eq!(made["cron"]["nextAt"], json!("2027-01-16T08:00:00.000Z"));
        assert_eq!(made["createdBy"], json!(world.admin().id.to_string()));
        let secret = made["webhook"]["secret"].as_str().unwrap().to_owned();
        assert_eq!(secret.len(), 64);
        assert!(made["webhook"]["url"].as_str().unwrap().ends_with(&format!("/v1/hooks/{}", id(&made))));
        let listed = world.ask("GET", "/v1/automations", &Value::Null).await;
        assert_eq!(listed.json()["automations"][0]["name"], "triage");
        assert!(!listed.text().contains(&secret), "the secret is shown once");

        let off = world.ask("PATCH", &path, &json!({"enabled": false, "model": null})).await.json();
        assert_eq!((&off["cron"]["nextAt"], &off["model"]), (&Value::Null, &Value::Null));
        assert_eq!(off["webhook"]["scheme"], "github");
        world.clock.advance(Duration::from_hours(48));
        let on = world.ask("PATCH", &path, &json!({"enabled": true})).await.json();
        assert_eq!(on["cron"]["nextAt"], json!("2027-01-18T08:00:00.000Z"), "nothing is made up for");
        let bare =
            world.ask("PATCH", &path, &json!({"cron": null, "webhook": null, "name": "b"})).await.json();
        assert_eq!(
            (&bare["cron"], &bare["webhook"], &bare["name"]),
            (&Value::Null, &Value::Null, &json!("b"))
        );
        let secrets = world.ask("GET", "/v1/secrets", &Value::Null).await;
        assert_eq!(secrets.json()["secrets"], json!([]), "the webhook's secret went with it");

        assert_eq!(world.ask("DELETE", &path, &Value::Null).await.status, 200);
        assert_eq!(world.ask("GET", &path, &Value::Null).await.status, 404);
    }
}

#[tokio::test]
async fn a_blank_system_prompt_is_none() {
    let world = World::new(Setup::sqlite()).await;
    let configuration =
        world.ask("POST", "/v1/configurations", &json!({"name": "a", "repos": []})).await.json();
    let configuration = format!("/v1/configurations/{}", id(&configuration));
    for blank in ["", " \n\t"] {
        let blank = json!({"systemPrompt": blank});
        let made = world.automation(blank.clone()).await;
        assert_eq!(made["systemPrompt"], Value::Null, "{blank}");
        let automation = format!("/v1/automations/{}", id(&made));
        for path in [&automation, &configuration] {
            let named = json!({"systemPrompt": "You are a librarian."});
            let changed = world.ask("PATCH", path, &named).await.json();
            assert_eq!(changed["systemPrompt"], "You are a librarian.", "{path}");
            let changed = world.ask("PATCH", path, &blank).await.json();
            assert_eq!(changed["systemPrompt"], Value::Null, "{path} {blank}");
        }
    }
}

#[tokio::test]
async fn settings_that_no_run_could_use_are_refused_with_the_field_name() {
    let world = World::new(Setup::sqlite()).await;
    let made = world.automation(json!({})).await;
    let path = format!("/v1/automations/{}", id(&made));
    for (field, value) in [
        ("name", json!("")),
        ("instructions", json!("  ")),
        ("systemPrompt", json!("a\u{1b}b")),
        ("systemPrompt", json!("a".repeat(32 * 1024 + 1))),
        ("model", json!("gpt-1")),
        ("configurationId", json!(some_uuid().to_string())),
        ("cron.schedule", json!({"cron": {"schedule": "0 0 30 2 *"}})),
        ("cron.schedule", json!({"cron": {"schedule": "every day"}})),
        ("cron.schedule", json!({"cron": {"schedule": "* * * * * *"}})),
        ("cron.timeZone", json!({"cron": {"schedule": "* * * * *", "timeZone": "Mars/Olympus"}})),
        ("webhook.secret", json!({"webhook": {"scheme": "generic", "secret": "short"}})),
        ("webhook.scheme", json!({"webhook": {"scheme": "morse"}})),
    ] {
        let change = if value.is_object() { value } else { json!({ field: value }) };
        let mut new = json!({"name": "a", "instructions": "b"});
        new.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        for (method, path, body) in [("POST", "/v1/automations", &new), ("PATCH", &path, &change)] {
            let answer = world.ask(method, path, body).await;
            assert_eq!(answer.status, 400, "{method} {body}: {}", answer.text());
            let error = answer.json()["error"].as_str().unwrap().to_owned();
            assert!(error.starts_with(field), "{method} {body}: {error}");
        }
    }
    let unchanged = world.ask("GET", &path, &Value::Null).await.json();
    assert_eq!(unchanged, made);
}

#[tokio::test]
async fn a_signed_request_starts_one_run() {
    for world in World::both().await {
        let made = world.automation(json!({"webhook": {"scheme": "generic", "secret": SECRET}})).await;
        assert_eq!(made["webhook"]["secret"], Value::Null, "the caller knows it");
        let (id, body) = (id(&made), r#"{"issue":7}"#);
        let header = world.signed(body, 10);
        let first = world.hook(id, body, std::slice::from_ref(&header)).send().await;
        assert_eq!(first.status, 202, "{}", first.text());
        let again = world.hook(id, body, &[header]).send().await;
        assert_eq!(again.status, 401, "a signature is valid once: {}", again.text());
        let other = world.hook(id, body, &[world.signed(body, 11)]).send().await;
        assert_eq!(other.status, 202, "another signature is another request");
        let runs = world.runs(id).await;
        assert_eq!(runs.len(), 2);
        assert_eq!((&runs[0]["status"], &runs[0]["trigger"]), (&json!("queued"), &json!("webhook")));
        assert_eq!(runs[0]["deadlineAt"], json!("2027-01-15T10:00:00.000Z"));
    }
}

#[tokio::test]
async fn every_refused_webhook_gets_the_same_answer() {
    let world = World::new(Setup::sqlite()).await;
    let made = world.automation(json!({"webhook": {"scheme": "generic", "secret": SECRET}})).await;
    let without = world.automation(json!({})).await;
    let other = world.automation(json!({"webhook": {"scheme": "generic"}})).await;
    let (known, body, unknown) = (id(&made), "{}", some_uuid().to_string());
    let header = "x-proliferate-signature";
    let wrong = (header, format!("t={},v1={}", world.clock.now().timestamp(), "00".repeat(32)));
    let mut answers = Vec::new();
    for (id, body, headers) in [
        (known, body, vec![wrong]),
        (known, body, vec![]),
        (known, body, vec![(header, "nonsense".to_owned())]),
        (known, body, vec![world.signed(body, 301)]),
        (known, body, vec![world.signed(body, -301)]),
        (known, "{} ", vec![world.signed(body, 0)]),
        (id(&without), body, vec![world.signed(body, 0)]),
        // Another automation has another secret.
        (id(&other), body, vec![world.signed(body, 0)]),
        (&unknown, body, vec![world.signed(body, 0)]),
        ("not-an-id", body, vec![world.signed(body, 0)]),
    ] {
        let answer = world.hook(id, body, &headers).send().await;
        answers.push((answer.status, answer.text()));
    }
    assert_eq!(answers[0].0, 401);
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert!(world.runs(known).await.is_empty() && world.runs(id(&other)).await.is_empty());
    let metrics = world.gateway.call("GET", "/metrics").send().await.text();
    for reason in ["bad_signature", "missing", "malformed", "stale", "unknown"] {
        let counted = format!("proliferate_webhooks_refused_total{{reason=\"{reason}\"}}");
        assert!(metrics.contains(&counted), "{reason}: {metrics}");
    }

    let not_json = world.hook(known, "issue=7", &[world.signed("issue=7", 0)]).send().await;
    assert_eq!(not_json.status, 400, "{}", not_json.text());
    let large = format!("\"{}\"", "x".repeat(448 * 1024));
    assert_eq!(world.hook(known, &large, &[world.signed(&large, 0)]).status().await, 413);
}

#[tokio::test]
async fn a_refused_webhook_is_logged_with_its_automation_and_counted() {
    const STALE_WEBHOOKS_METRIC: &str = "proliferate_webhooks_refused_total{reason=\"stale\"} ";
    let world = World::new(Setup::sqlite()).await;
    let made = world.automation(json!({"webhook": {"scheme": "generic", "secret": SECRET}})).await;
    let count = async || {
        let metrics = world.gateway.call("GET", "/metrics").send().await.text();
        let counted =
            metrics.lines().find_map(|line| line.strip_prefix(STALE_WEBHOOKS_METRIC).map(str::to_owned));
        counted.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    let before = count().await;
    let log = Captured::start();
    assert_eq!(world.hook(id(&made), "{}", &[world.signed("{}", 301)]).status().await, 401);
    let text = log.text();
    let logged = |line: &str| {
        line.contains("a webhook was refused")
            && line.contains("WARN")
            && line.contains("reason=\"stale\"")
            && line.contains(id(&made))
    };
    assert_eq!(text.lines().filter(|line| logged(line)).count(), 1, "{text}");
    assert!(!text.contains(SECRET), "{text}");
    drop(log);
    // Other tests of this process may count theirs at the same time.
    assert!(count().await > before);
}

/// The secret of one organization's webhook opens no automation of another one.
#[tokio::test]
async fn a_webhook_of_another_organization_is_refused() {
    for world in World::both().await {
        let ours = world.automation(json!({"webhook": {"scheme": "generic", "secret": SECRET}})).await;
        let elsewhere = org(&world.gateway.app).await;
        let stranger = person(&world.gateway.app, elsewhere, Role::Owner).await;
        let ask = |method: &str, path: &str| world.gateway.call(method, path).bearer(&stranger.token);
        let other = json!({"name": "theirs", "instructions": "Look.",
            "webhook": {"scheme": "generic", "secret": SECRET.replace("0123", "3210")}});
        let theirs = ask("POST", "/v1/automations").json(&other).send().await;
        assert_eq!(theirs.status, 201, "{}", theirs.text());
        let theirs = theirs.json();
        let body = r#"{"issue":7}"#;
        let header = world.signed(body, 0);
        assert_eq!(world.hook(id(&theirs), body, std::slice::from_ref(&header)).status().await, 401);
        let runs = ask("GET", &format!("/v1/automations/{}/runs", id(&theirs))).send().await;
        assert_eq!(runs.json()["runs"], json!([]));
        // The refused request has not used the signature up.
        assert_eq!(world.hook(id(&ours), body, &[header]).status().await, 202);
        assert_eq!(world.runs(id(&ours)).await.len(), 1);
    }
}

#[tokio::test]
async fn github_and_linear_requests_run_once() {
    let world = World::new(Setup::sqlite()).await;
    let github = world.automation(json!({"webhook": {"scheme": "github", "secret": SECRET}})).await;
    let hub = |body: &str, delivery: &str, event: &str| {
        let signature = format!("sha256={}", mac(&[body.as_bytes()]));
        let headers = [
            ("x-hub-signature-256", signature),
            ("x-github-delivery", delivery.to_owned()),
            ("x-github-event", event.to_owned()),
        ];
        world.hook(id(&github), body, &headers)
    };
    assert_eq!(hub(r#"{"zen":1}"#, "d0", "ping").status().await, 200);
    assert_eq!(hub(r#"{"n":1}"#, "d1", "issues").status().await, 202);
    assert_eq!(hub(r#"{"n":1}"#, "d2", "issues").status().await, 200, "the same body");
    assert_eq!(hub(r#"{"n":2}"#, "d1", "issues").status().await, 200, "the same delivery");
    assert_eq!(hub(r#"{"n":3}"#, "d3", "issues").status().await, 202);
    assert_eq!(world.runs(id(&github)).await.len(), 2);
    let path = format!("/v1/automations/{}/trigger-events", id(&github));
    let events = world.ask("GET", &path, &Value::Null).await.json();
    assert_eq!(events["triggerEvents"][0]["eventName"], "issues");

    let linear = world.automation(json!({"webhook": {"scheme": "linear", "secret": SECRET}})).await;
    let send = |age: i64| {
        let time = world.clock.now().timestamp_millis() - age * 1000;
        let body = format!(r#"{{"webhookTimestamp":{time}}}"#);
        let signature = ("linear-signature", mac(&[body.as_bytes()]));
        world.hook(id(&linear), &body, &[signature])
    };
    assert_eq!(send(299).status().await, 202);
    assert_eq!(send(299).status().await, 200);
    assert_eq!(send(301).status().await, 401);
}

#[tokio::test]
async fn webhooks_beyond_the_share_of_an_organization_wait() {
    let world = World::new(Setup::sqlite()).await;
    let made =
        world.automation(json!({"enabled": false, "webhook": {"scheme": "generic", "secret": SECRET}})).await;
    let mut statuses = Vec::new();
    for number in 0..120 {
        let body = number.to_string();
        statuses.push(world.hook(id(&made), &body, &[world.signed(&body, 0)]).status().await);
    }
    assert_eq!(
        statuses.iter().filter(|status| **status == 200).count(),
        100,
        "skipped, because it is disabled"
    );
    assert!(statuses[100..].iter().all(|status| *status == 429), "{statuses:?}");
}

#[tokio::test]
async fn people_start_cancel_repeat_assign_and_settle_runs() {
    for world in World::both().await {
        let made = world.automation(json!({})).await;
        let member = world.team.person(Role::Member);
        let ask = async |path: &str, body: &Value| {
            let call = world.gateway.call("POST", path).bearer(&member.token);
            let answer = if body.is_null() { call.send().await } else { call.json(body).send().await };
            (answer.status, answer.json())
        };
        let (status, run) =
            ask(&format!("/v1/automations/{}/runs", id(&made)), &json!({"context": {"issue": 7}})).await;
        assert_eq!((status, &run["status"], &run["trigger"]), (201, &json!("queued"), &json!("manual")));
        let (status, refused) = ask(
            &format!("/v1/automations/{}/runs", id(&made)),
            &json!({"context": {"issue": "x".repeat(448 * 1024)}}),
        )
        .await;
        assert_eq!((status, &refused["error"]), (400, &json!("context is at most 448 KiB")), "{refused}");
        let path = |action: &str| format!("/v1/automation-runs/{}/{action}", id(&run));
        assert_eq!(ask(&path("rerun"), &Value::Null).await.0, 409, "it has not ended");
        assert_eq!(ask(&path("resolve"), &json!({"outcome": "succeeded"})).await.0, 409);
        let (status, cancelled) = ask(&path("cancel"), &Value::Null).await;
        assert_eq!((status, &cancelled["status"]), (200, &json!("cancelled")));
        assert_eq!(ask(&path("cancel"), &Value::Null).await.0, 409);
        assert_eq!(ask(&path("resolve"), &json!({"outcome": "succeeded"})).await.0, 409, "it was cancelled");

        let (status, again) = ask(&path("rerun"), &Value::Null).await;
        assert_eq!((status, &again["rerunOf"], &again["status"]), (201, &run["id"], &json!("queued")));
        let me = json!(member.id.to_string());
        assert_eq!(ask(&path("assign"), &json!({})).await.1["assignedTo"], me);
        assert_eq!(ask(&path("assign"), &json!({"userId": null})).await.1["assignedTo"], Value::Null);
        let other = world.admin().id.to_string();
        assert_eq!(ask(&path("assign"), &json!({"userId": other})).await.1["assignedTo"], json!(other));
        assert_eq!(ask(&path("assign"), &json!({"userId": some_uuid().to_string()})).await.0, 404);
        let too_long = json!({"outcome": "failed", "comment": "x".repeat(2001)});
        assert_eq!(ask(&path("resolve"), &too_long).await.0, 400);

        let detail =
            world.ask("GET", &format!("/v1/automation-runs/{}", id(&run)), &Value::Null).await.json();
        let log: Vec<_> = detail["events"]
            .as_array()
            .unwrap()
            .iter()
            .map(|event| event["kind"].as_str().unwrap())
            .collect();
        assert_eq!(log, ["created", "transition", "assignment", "assignment", "assignment"]);
        assert_eq!(detail["events"][1]["actor"], json!(format!("user {}", member.id)));
        let open = world.ask("GET", "/v1/automation-runs?status=queued", &Value::Null).await.json();
        assert_eq!(open["runs"].as_array().unwrap().len(), 1);
        let refused = world.ask("DELETE", &format!("/v1/automations/{}", id(&made)), &Value::Null).await;
        assert_eq!(refused.status, 409, "a run has not ended");
    }
}

#[tokio::test]
async fn another_organization_sees_nothing() {
    let world = World::new(Setup::sqlite()).await;
    let made = world.automation(json!({})).await;
    let run = world.ask("POST", &format!("/v1/automations/{}/runs", id(&made)), &json!({})).await.json();
    let stranger = person(&world.gateway.app, org(&world.gateway.app).await, Role::Owner).await;
    let (automation, run) =
        (format!("/v1/automations/{}", id(&made)), format!("/v1/automation-runs/{}", id(&run)));
    for (method, path, body) in [
        ("GET", automation.clone(), Value::Null),
        ("PATCH", automation.clone(), json!({"name": "mine"})),
        ("DELETE", automation.clone(), Value::Null),
        ("GET", format!("{automation}/runs"), Value::Null),
        ("POST", format!("{automation}/runs"), json!({})),
        ("GET", format!("{automation}/trigger-events"), Value::Null),
        ("GET", run.clone(), Value::Null),
        ("POST", format!("{run}/cancel"), Value::Null),
        ("POST", format!("{run}/rerun"), Value::Null),
        ("POST", format!("{run}/assign"), json!({})),
        ("POST", format!("{run}/resolve"), json!({"outcome": "failed"})),
    ] {
        let call = world.gateway.call(method, &path).bearer(&stranger.token);
        let status = if body.is_null() { call.status().await } else { call.json(&body).status().await };
        assert_eq!(status, 404, "{method} {path}");
    }
}

#[tokio::test]
async fn a_missed_firing_runs_once_and_an_overlapping_one_is_skipped() {
    let world = World::new(Setup::sqlite()).await;
    let made = world.automation(json!({"cron": {"schedule": "0 * * * *"}})).await;
    let path = format!("/v1/automations/{}/trigger-events", id(&made));
    world.clock.advance(Duration::from_hours(3));
    let (admin, app) = (world.admin().id, world.gateway.app.clone());
    let clock = world.clock.clone();
    // No session can start, so the first run stays queued.
    app.store.set_org_limits(world.team.org, None, Some(0)).await.unwrap();
    let running = world.gateway.serve();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let events = async |wanted: usize| loop {
        let url = running.url(&path);
        let answer =
            client.get(url).bearer_auth(user_token(&app, admin, world.team.org)).send().await.unwrap();
        let answer: Value = answer.json().await.unwrap();
        let events = answer["triggerEvents"].as_array().unwrap().clone();
        if events.len() >= wanted {
            return events;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let first = crate::harness::within(events(1)).await;
    assert_eq!((&first[0]["missed"], first[0]["runId"].is_string()), (&json!(2), true), "{first:?}");
    assert_eq!(first[0]["scheduledFor"], json!("2027-01-15T09:00:00.000Z"));
    clock.advance(Duration::from_hours(1));
    let second = crate::harness::within(events(2)).await;
    assert_eq!((&second[0]["status"], &second[0]["runId"]), (&json!("skipped"), &Value::Null), "{second:?}");
    assert!(second[0]["skipReason"].as_str().unwrap().contains("has not ended"));
    drop(app);
    running.stop().await;
}
