//! Known secrets are in nothing that is stored, broadcast, returned or logged, whoever sends them back and however they
//! are encoded.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use proto::http::SecretPurpose;
use proto::{InvocationId, Role};
use secrecy::SecretString;
use serde_json::{Value, json};
use store::Scope;
use testkit::McpEverything;

use crate::actions::{agent, get, invoke, worlds};
use crate::harness::{Setup, TestGateway, within};
use crate::live::{Live, On, id, on_both};
use crate::logs::{Captured, forms};
use crate::people::{OrgOf3, sandbox_token, session};
use crate::world::write_call;

on_both! {
    what_an_agents_tools_do_shows_no_secret_of_its_session
    what_an_agent_says_and_asks_is_kept_without_the_secrets_of_its_session
}

async fn store_secret(gateway: &TestGateway, team: &OrgOf3, name: &str, value: &str, purpose: SecretPurpose) {
    let pair = [(name.to_owned(), SecretString::from(value))];
    gateway.app.vault.put(team.org, Scope::Org, purpose, &pair, None).await.unwrap();
}

/// Everything of a gateway that members can read about actions, as one text.
async fn everything_shown(gateway: &TestGateway, team: &OrgOf3, own: &str) -> String {
    let mut all = String::new();
    for path in [
        "/v1/audit/events?limit=1000".to_owned(),
        "/v1/inbox".to_owned(),
        format!("/proliferate/{own}/actions/invocations"),
    ] {
        let shown = gateway.get(&path).bearer(team.token(Role::Owner)).send().await;
        assert_eq!(shown.status, 200, "{path}: {}", shown.text());
        all.push_str(&shown.text());
    }
    all
}

#[tokio::test]
async fn the_input_of_a_call_is_stored_and_shown_without_secrets() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let (gateway, team) = (&world.gateway, &world.team);
        // The gate has looked for secrets before, so it must notice the new ones.
        assert_eq!(invoke(&world, &token, own, "effect.read", json!({})).await.0, 200);
        store_secret(gateway, team, "PLATFORM_KEY", "platform-canary", SecretPurpose::Platform).await;
        store_secret(gateway, team, "APP_SETTING", "env-canary-1", SecretPurpose::Env).await;
        let (encoded, inside) =
            (hex::encode("env-canary-1"), json!({"inner": "platform-canary"}).to_string());
        for note in ["platform-canary", "env-canary-1", &encoded, &inside] {
            let (status, body) = invoke(&world, &token, own, "effect.open", json!({"note": note})).await;
            let reason = body["error"].as_str().unwrap();
            assert!(status == 400 && reason.contains("would not see all"), "nobody could approve it: {body}");
        }
        let called = world.call(&write_call("run-redacted-1")).await;
        assert_eq!(called.status, 200, "{}", called.text());
        let mut call = write_call("run-redacted-2");
        call["parameters"] = json!({"note": "env-canary-1"});
        assert_eq!(world.call(&call).await.status, 200);
        let inputs = world.run("run-redacted-2").await["inputs"]["artifact_refs"].clone();
        let input = inputs[0]["artifact_id"].as_str().unwrap();
        let content = format!("/v1/artifacts/{input}/content?case_id=case-1");
        let content = gateway.get(&content).bearer(team.token(Role::Owner)).send().await.text();
        assert_eq!(content, r#"{"note":"[REDACTED]"}"#);
        let shown = everything_shown(gateway, team, &own.to_string()).await + &content;
        for secret in ["platform-canary", "env-canary-1"] {
            for form in forms(secret) {
                assert!(!shown.contains(&form), "{form}: {shown}");
            }
        }
        assert!(shown.contains("[REDACTED]"), "{shown}");
        gate::verify_database(&gateway.app.store, Vec::new(), None, &|_| ()).await.unwrap();
    }
}

#[tokio::test]
async fn what_waits_is_encrypted_for_its_invocation_and_gone_once_it_is_decided() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        let (store, vault, org) = (&world.gateway.app.store, &world.gateway.app.vault, world.team.org);
        let mut ids: Vec<InvocationId> = Vec::new();
        for _ in 0..2 {
            let (_, body) = invoke(&world, &token, own, "effect.write", json!({"note": "hello"})).await;
            ids.push(body["invocation"]["id"].as_str().unwrap().parse().unwrap());
        }
        let sealed = store.invocation(org, ids[0]).await.unwrap().unwrap().request.unwrap();
        assert!(vault.unseal_request(org, ids[0], &sealed).is_ok());
        let elsewhere = OrgOf3::new(&world.gateway.app).await.org;
        assert!(vault.unseal_request(org, ids[1], &sealed).is_err(), "another invocation");
        assert!(vault.unseal_request(elsewhere, ids[0], &sealed).is_err(), "another organization");
        for (id, act) in ids.iter().zip(["approve", "deny"]) {
            let path = format!("/v1/invocations/{id}/{act}");
            let decided = world.gateway.post(&path, &json!({})).bearer(world.team.token(Role::Owner));
            assert_eq!(decided.status().await, 200, "{act}");
            assert_eq!(store.invocation(org, *id).await.unwrap().unwrap().request, None, "{act}");
        }
        assert_eq!(world.effects(), 1);
        let (_, listed) = get(&world, &token, &format!("/proliferate/{own}/actions/invocations")).await;
        assert_eq!(listed["invocations"].as_array().unwrap().len(), 2, "{listed}");
    }
}

/// The value is in the vault as another secret than the connector's own, and in the environment of the server.
#[tokio::test]
async fn the_reference_server_brings_no_secret_of_its_environment_back() {
    let logs = Captured::start();
    let canary = "canary-4711-of-the-environment";
    let server = McpEverything::start(&[("CANARY", canary)]).await.unwrap();
    let gateway = Setup::sqlite().set("CONNECTOR_ALLOWED_HOSTS", &server.address()).start().await;
    let team = OrgOf3::new(&gateway.app).await;
    let owner = team.token(Role::Owner);
    store_secret(&gateway, &team, "ANOTHER_KEY", canary, SecretPurpose::Platform).await;
    let new = json!({"name": "all", "url": server.url(), "auth": {"type": "none"},
        "riskPolicy": {"defaultRisk": "read"}});
    let added = gateway.post("/v1/connectors", &new).bearer(owner).send().await.json();
    let connector = added["id"].as_str().unwrap().to_owned();
    let offer = gateway.get(&format!("/v1/connectors/{connector}")).bearer(owner).send().await.json();
    let tools = offer["offer"]["tools"].as_array().unwrap().iter();
    let hashes: serde_json::Map<_, _> =
        tools.map(|tool| (tool["name"].as_str().unwrap().to_owned(), tool["hash"].clone())).collect();
    let review = gateway.post(&format!("/v1/connectors/{connector}/review"), &json!({"tools": hashes}));
    assert_eq!(review.bearer(owner).status().await, 200);
    let own = session(&gateway.app, team.org).await;
    let token = sandbox_token(&gateway.app, own).await;
    let invoke = async |action: &str, params: Value| {
        let body =
            json!({"integration": format!("connector:{connector}"), "action": action, "params": params});
        let path = format!("/proliferate/{own}/actions/invoke");
        let answer = gateway.post(&path, &body).bearer(&token).send().await;
        (answer.status, answer.text())
    };
    let catalog = format!("/proliferate/{own}/actions/available");
    let mut shown = vec![gateway.get(&catalog).bearer(&token).send().await.text()];
    assert!(shown[0].contains("get-env"), "{}", shown[0]);

    let (status, env) = invoke("get-env", json!({})).await;
    assert!(status == 200 && env.contains("PATH") && env.contains("[REDACTED]"), "{status} {env}");
    let encoded = BASE64_STANDARD.encode(format!("x{canary}"));
    let (status, echoed) =
        invoke("echo", json!({"message": format!("{encoded} {}", hex::encode(canary))})).await;
    assert_eq!(status, 200, "{echoed}");
    let (status, wrong) = invoke("get-structured-content", json!({"location": canary})).await;
    assert!(status == 400 || status == 502, "{status} {wrong}");
    // The canary is where a limit would cut it.
    let (status, huge) = invoke("echo", json!({"message": "h ".repeat(5_100) + &canary.repeat(3_000)})).await;
    assert_eq!(status, 200, "{huge}");
    shown.extend([env, echoed, wrong, huge]);

    let address = server.kill().await.unwrap();
    let (status, lost) = invoke("get-env", json!({})).await;
    assert!(status == 502 || status == 503, "{status} {lost}");
    let _server = McpEverything::start_on(address, &[("CANARY", canary)]).await.unwrap();
    let (status, again) = invoke("get-env", json!({})).await;
    assert_eq!(status, 200, "{again}");
    // `telemetry` switches the logs of the SDK off.
    let logged = logs.text().lines().filter(|line| !line.contains("rmcp::")).collect::<Vec<_>>().join("\n");
    assert!(logged.contains("actions/invoke"), "the requests are in the log");
    shown.extend([lost, again, everything_shown(&gateway, &team, &own.to_string()).await, logged]);
    for text in &shown {
        for form in forms(canary).iter().chain([&encoded, &"canary-4711".to_owned()]) {
            assert!(!text.contains(form), "{form}: {text}");
        }
    }
}

async fn submit(live: &Live, session: &str, value: &str) {
    let pair = [(value.to_uppercase().replace(['-', ' '], "_"), SecretString::from(value))];
    let (scope, org) = (Scope::Session(id(session)), live.ada.org);
    live.app.vault.put(org, scope, SecretPurpose::Env, &pair, None).await.unwrap();
}

async fn what_an_agents_tools_do_shows_no_secret_of_its_session(on: On) {
    let live = Live::start(on).await;
    let (own, other) = (live.session().await, live.session().await);
    submit(&live, &own, "canary-of-one").await;
    submit(&live, &other, "canary-of-two").await;
    submit(&live, &own, "the secret canary with spaces").await;
    let mut socket = live.running(&own).await;
    socket.prompt("show the environment").await;
    let turn = live.next_turn().await;
    turn.begin();
    turn.call("bash", &json!({"command": "echo canary-of-one canary-of-two"}), "canary-of-one\ntoken: code");
    // A secret that is submitted during the turn counts at once.
    submit(&live, &own, "canary-of-late").await;
    turn.call("bash", &json!({"command": "env | base64"}), &BASE64_STANDARD.encode("NAME=canary-of-late\n"));
    // A result is cut at 256 KiB, here in the middle of a secret.
    let long = format!("{} the secret canary with spaces", "x".repeat(256 * 1024 - 20));
    turn.call("bash", &json!({"command": "cat long"}), &long);
    turn.end();
    let frames = socket.until_type("turn_complete").await;
    let frames = json!(frames).to_string();
    assert!(frames.contains("tool_start") && frames.contains("[REDACTED]\\ntoken: code"), "{frames}");
    assert!(frames.contains("xx \\n… (29 bytes more)"), "the long result was not cut before the secret");
    let live = live.restarted().await;
    let init = live.init(&own).await.to_string();
    for text in [frames, init] {
        for secret in ["canary-of-one", "canary-of-late", "the secret"] {
            assert!(!text.contains(secret), "{secret}");
        }
        let late = BASE64_STANDARD.encode("NAME=canary-of-late\n");
        assert!(!text.contains(&late[8..24]), "{text}");
        assert!(text.contains("canary-of-two"), "another session's secret is only a text: {text}");
    }
}

async fn what_an_agent_says_and_asks_is_kept_without_the_secrets_of_its_session(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    submit(&live, &session, "canary-of-one").await;
    let mut socket = live.running(&session).await;
    let mut kept = String::new();

    socket.prompt("print the environment").await;
    let turn = live.next_turn().await;
    turn.begin();
    turn.ask_permission("per_1", "bash", "curl -H 'X-Key: canary-of-one' http://127.0.0.1");
    let question = socket.until_type("question").await.pop().unwrap().to_string();
    assert!(question.contains("X-Key: [REDACTED]"), "{question}");
    for path in ["/v1/questions", "/v1/inbox"] {
        let shown = live.get(path).await.to_string();
        assert!(shown.contains("X-Key: [REDACTED]"), "{path}: {shown}");
        kept += &shown;
    }
    turn.ask_permission("per_2", "canary-of-one", "ls");
    kept += &json!(socket.until_type("error").await).to_string();
    // The agent would not recognize the answer of somebody who chose `[REDACTED]`.
    turn.ask_to_choose("que_1", ["canary-of-one", "B"]);
    let refused = socket.until_type("error").await.pop().unwrap();
    let reason = refused["payload"]["message"].as_str().unwrap();
    assert!(reason.contains("an option contains a secret"), "{refused}");
    within(live.agent.wait_for_asked("/question/que_1/reject", 1)).await;
    let open = live.get("/v1/questions").await;
    assert_eq!(open["questions"].as_array().unwrap().len(), 1, "only the permission waits: {open}");
    kept += reason;
    turn.say("It is canary-");
    turn.say("of-one.");
    turn.step();
    turn.say("The key is canary-of-one, and");
    turn.fail("401 for the key canary-of-one");
    let frames = socket.until_type("turn_complete").await;
    let ended = frames.iter().filter(|frame| frame["type"] != "token");
    kept += &json!(ended.collect::<Vec<_>>()).to_string();
    assert!(kept.contains("It is [REDACTED].") && kept.contains("401 for the key [REDACTED]"), "{kept}");

    socket.prompt("go on").await;
    let turn = live.next_turn().await;
    turn.begin();
    turn.say("Again: canary-of-one");
    socket.until_type("token").await;
    socket.send(&json!({"type": "cancel"})).await;
    socket.until_type("turn_complete").await;
    let live = live.restarted().await;
    let init = live.init(&session).await.to_string();
    for text in ["It is [REDACTED].", "The key is [REDACTED], and", "Again: [REDACTED]"] {
        assert!(init.contains(text), "{text}: {init}");
    }
    let events = live.get("/v1/audit/events?limit=1000").await.to_string();
    for shown in [kept, question, init, events] {
        assert!(!shown.contains("canary-of-one"), "{shown}");
    }
}
