//! `POST /mcp`: the official SDK's client and the inspector against a real gateway, who may open it, and what keys are
//! limited to.

use std::process::Stdio;

use clock::Clock;
use proto::http::KeyScope;
use proto::{ApiKeyId, Role};
use serde_json::{Value, json};
use testkit::McpEverything;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::actions::{agent, set_mode, worlds};
use crate::call::{Answer, Call};
use crate::document::operations;
use crate::harness::{Running, Setup, client, within};
use crate::people::{api_key, key_with_scope, some_uuid};
use crate::world::World;

/// The name of a tool from `tools.yaml`, whose own name has a dot.
pub(crate) fn tool_of(action: &str) -> String {
    let digits = ledger::sha256(action.as_bytes()).to_string();
    format!("tools__{}_{}", action.replace('.', "_"), &digits[..6])
}

pub(crate) async fn mcp_key(world: &World, role: Role) -> (ApiKeyId, String) {
    key_with_scope(&world.gateway.app, world.team.person(role), KeyScope::Mcp).await
}

pub(crate) fn message(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
}

/// One message as a client of the newest protocol with a handshake sends it.
pub(crate) fn request(world: &World, token: &str, message: &Value) -> Call {
    let call = world.gateway.post("/mcp", message).bearer(token);
    call.header("accept", "application/json, text/event-stream").header("mcp-protocol-version", "2025-11-25")
}

pub(crate) async fn call(world: &World, token: &str, tool: &str, arguments: Value) -> Value {
    let message = message("tools/call", &json!({"name": tool, "arguments": arguments}));
    let answer: Answer = request(world, token, &message).send().await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()
}

pub(crate) async fn decide(world: &World, id: &str, act: &str, token: &str) -> (u16, Value) {
    let answer =
        world.gateway.post(&format!("/v1/invocations/{id}/{act}"), &json!({})).bearer(token).send().await;
    (answer.status, answer.json())
}

/// The official SDK's client in a process of its own.
pub(crate) struct SdkClient {
    _process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl SdkClient {
    pub(crate) fn connect(gateway: &Running, token: &str) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/mcp_client.mjs");
        let packages = McpEverything::packages();
        let mut process = Command::new(packages.join(".bin/node"))
            .arg(script)
            .arg(packages.canonicalize().unwrap())
            .args([&gateway.url("/mcp"), token])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { _process: process, input, output: BufReader::new(output).lines() }
    }

    pub(crate) async fn ask(&mut self, call: Value) -> Value {
        self.input.write_all(format!("{call}\n").as_bytes()).await.unwrap();
        let line =
            within(self.output.next_line()).await.unwrap().unwrap_or_else(|| panic!("the client has ended"));
        serde_json::from_str(&line).unwrap()
    }

    pub(crate) async fn call(&mut self, tool: &str, arguments: Value) -> Value {
        self.ask(json!([tool, arguments])).await
    }
}

/// Runs the inspector for one request. Returns its answer, or its own refusal.
async fn inspect(gateway: &Running, token: &str, arguments: &[&str]) -> Value {
    let packages = McpEverything::packages();
    let home = tempfile::tempdir().unwrap();
    let mut inspector = Command::new(packages.join(".bin/node"));
    inspector
        .arg(packages.join("@modelcontextprotocol/inspector/clients/launcher/build/index.js"))
        .args(["--cli", &gateway.url("/mcp"), "--transport", "http"])
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(arguments)
        .env("HOME", home.path())
        .stdin(Stdio::null());
    let done = within(inspector.output()).await.unwrap();
    let (said, problems) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    let answer = if done.status.success() { &said } else { &problems };
    serde_json::from_str(answer).unwrap_or_else(|error| panic!("{error}: {said} {problems}"))
}

pub(crate) fn text(answer: &Value) -> &str {
    answer["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

async fn approve(gateway: &Running, token: &str, waiting: &Value) -> u16 {
    let id = waiting["structuredContent"]["invocationId"].as_str().unwrap();
    let url = gateway.url(&format!("/v1/invocations/{id}/approve"));
    client().post(url).bearer_auth(token).json(&json!({})).send().await.unwrap().status().as_u16()
}

pub(crate) fn names(listed: &Value) -> Vec<&str> {
    listed["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn the_official_client_lists_calls_waits_and_fetches() {
    for world in worlds().await {
        let (_, token) = mcp_key(&world, Role::Member).await;
        let (_, stranger) = mcp_key(&world, Role::Owner).await;
        let owner = world.team.token(Role::Owner).to_owned();
        let World { effects, gateway, .. } = world;
        let store = gateway.app.store.clone();
        let gateway = gateway.serve();
        let mut sdk = SdkClient::connect(&gateway, &token);
        let listed = sdk.ask(Value::Null).await;
        let names = names(&listed);
        assert!(names.contains(&"get_invocation") && names.contains(&tool_of("effect.read").as_str()));
        assert!(
            !names.contains(&tool_of("effect.drop").as_str()),
            "what is denied is not offered: {names:?}"
        );
        let done = sdk.call(&tool_of("effect.read"), json!({"password": "hunter2"})).await;
        assert_eq!((&done["isError"], effects.all().len()), (&json!(false), 1), "{done}");
        assert_eq!(done["structuredContent"]["status"], "completed");
        let denied = sdk.call(&tool_of("effect.drop"), json!({})).await;
        assert!(
            denied["isError"] == true && text(&denied).contains("the mode of the tool is deny"),
            "{denied}"
        );
        let invalid = sdk.call(&tool_of("effect.write"), json!({"note": 7, "more": 1})).await;
        assert!(invalid["isError"] == true && text(&invalid).contains("note must be a text"), "{invalid}");
        let unknown = sdk.call("tools__none", json!({})).await;
        assert_eq!(unknown["refused"]["code"], -32602, "{unknown}");
        let waiting = sdk.call(&tool_of("effect.write"), json!({"note": "hello"})).await;
        assert!(waiting["isError"] == false && text(&waiting).contains("waits for a person's approval"));
        let id = waiting["structuredContent"]["invocationId"].clone();
        let look = json!({"invocationId": id});
        let pending = sdk.call("get_invocation", look.clone()).await;
        assert_eq!(pending["structuredContent"]["status"], "pending", "{pending}");
        let mut other = SdkClient::connect(&gateway, &stranger);
        let refused = other.call("get_invocation", look.clone()).await;
        assert!(refused["isError"] == true && text(&refused).contains("not the id"), "{refused}");
        assert_eq!(effects.all().len(), 1, "nothing but the allowed call was executed");
        assert_eq!(approve(&gateway, &owner, &waiting).await, 200);
        let completed = sdk.call("get_invocation", look).await;
        assert_eq!(completed["structuredContent"]["status"], "completed", "{completed}");
        assert_eq!((&completed["isError"], effects.all().len()), (&json!(false), 2));
        gate::verify_database(&store, Vec::new(), None, &|_| ()).await.unwrap();
        gateway.stop().await;
    }
}

#[tokio::test]
async fn the_inspector_lists_calls_and_finds_no_fault_with_the_schemas() {
    let world = World::on(Setup::sqlite()).await;
    let (_, token) = mcp_key(&world, Role::Member).await;
    let owner = world.team.token(Role::Owner).to_owned();
    let World { effects, gateway, .. } = world;
    let gateway = gateway.serve();
    let listed = inspect(&gateway, &token, &["--method", "tools/list", "--strict"]).await;
    assert!(names(&listed).contains(&"get_invocation"), "{listed}");
    let call = async |tool: &str, argument: &[&str]| {
        let arguments = [&["--method", "tools/call", "--tool-name", tool], argument].concat();
        inspect(&gateway, &token, &arguments).await
    };
    let done = call(&tool_of("effect.read"), &[]).await;
    assert_eq!(
        (&done["structuredContent"]["status"], effects.all().len()),
        (&json!("completed"), 1),
        "{done}"
    );
    let denied = call(&tool_of("effect.drop"), &[]).await;
    assert_eq!(denied["error"]["code"], "tool_not_found", "what is denied is not offered: {denied}");
    let waiting = call(&tool_of("effect.write"), &["--tool-arg", "note=hello"]).await;
    assert_eq!(waiting["structuredContent"]["status"], "pending", "{waiting}");
    assert_eq!(approve(&gateway, &owner, &waiting).await, 200);
    let id = waiting["structuredContent"]["invocationId"].as_str().unwrap();
    let fetched = call("get_invocation", &["--tool-arg", &format!("invocationId={id}")]).await;
    assert_eq!((&fetched["structuredContent"]["status"], effects.all().len()), (&json!("completed"), 2));
    gateway.stop().await;
}

#[tokio::test]
async fn a_key_with_the_scope_mcp_opens_no_other_route() {
    let world = World::on(Setup::sqlite()).await;
    let (_, token) = mcp_key(&world, Role::Owner).await;
    let ask = |method: &str, path: &str| world.gateway.call(method, path).bearer(&token).body("{}");
    let mut tried = 0;
    for operation in operations(&world.gateway).await {
        let path = operation.at(&some_uuid().to_string());
        if operation.is_public() || path == "/mcp" {
            continue;
        }
        assert_eq!(ask(&operation.method, &path).status().await, 403, "{}", operation.name());
        tried += 1;
    }
    assert!(tried > 100, "{tried}");
    for path in ["/git/repo/info/refs", &format!("/proliferate/{}?token={token}", some_uuid())] {
        assert_eq!(ask("GET", path).status().await, 403, "{path}");
    }
    let socket = world.gateway.get(&format!("/proliferate/{}/?token={token}", some_uuid()));
    assert_eq!(socket.header("connection", "upgrade").header("upgrade", "websocket").status().await, 403);
}

#[tokio::test]
async fn only_keys_of_the_scope_and_sandboxes_open_the_route() {
    let world = World::on(Setup::sqlite()).await;
    let ping = message("ping", &json!({}));
    let app = &world.gateway.app;
    let (full, (id, scoped)) =
        (api_key(app, world.team.person(Role::Owner)).await.1, mcp_key(&world, Role::Member).await);
    let (_, sandbox) = agent(&world).await;
    for (token, status) in [
        (world.team.token(Role::Owner), 403),
        (full.as_str(), 403),
        (world.token.as_str(), 403),
        (scoped.as_str(), 200),
        (sandbox.as_str(), 200),
        ("plk_0", 401),
    ] {
        assert_eq!(request(&world, token, &ping).status().await, status, "{token}");
    }
    let without = world.gateway.post("/mcp", &ping);
    assert_eq!(without.status().await, 401);
    let ours = app.site.origins[0].as_str().to_owned();
    for (origin, status) in [("http://evil.example", 403), ("null", 403), (ours.as_str(), 200)] {
        let call = request(&world, &scoped, &ping).header("origin", origin);
        assert_eq!(call.status().await, status, "{origin}");
    }
    for method in ["GET", "DELETE"] {
        assert_eq!(world.gateway.call(method, "/mcp").bearer(&scoped).status().await, 405, "{method}");
    }
    let revoke = world.gateway.call("DELETE", &format!("/v1/keys/{id}"));
    assert_eq!(revoke.bearer(world.team.token(Role::Owner)).status().await, 200);
    assert_eq!(request(&world, &scoped, &ping).status().await, 401, "a revoked key");
}

#[tokio::test]
async fn messages_that_are_no_request_of_ours_are_refused_and_change_nothing() {
    let world = World::on(Setup::sqlite()).await;
    let (_, token) = mcp_key(&world, Role::Member).await;
    let initialize = |version: &str| {
        let client = json!({"name": "c", "version": "1"});
        message("initialize", &json!({"protocolVersion": version, "capabilities": {}, "clientInfo": client}))
    };
    for (asked, spoken) in
        [("2024-11-05", "2024-11-05"), ("2025-06-18", "2025-06-18"), ("2025-11-25", "2025-11-25")]
    {
        let call = world.gateway.post("/mcp", &initialize(asked)).bearer(&token);
        let answer = call.header("accept", "application/json, text/event-stream").send().await;
        let answer = answer.json();
        assert_eq!(answer["result"]["protocolVersion"], spoken, "{answer}");
        assert!(answer["result"]["instructions"].as_str().unwrap().contains("get_invocation"));
    }
    let ready = json!({"jsonrpc": "2.0", "method": "notifications/initialized"});
    assert_eq!(request(&world, &token, &ready).status().await, 202);
    let unknown = request(&world, &token, &message("resources/none", &json!({}))).send().await.json();
    assert_eq!(unknown["error"]["code"], -32601, "{unknown}");
    let raw = |body: String| request(&world, &token, &Value::Null).body(body);
    let large = "x".repeat(256 * 1024);
    for (body, status) in [
        ("[]".to_owned(), 400),
        (json!([message("ping", &json!({}))]).to_string(), 400),
        ("{}".to_owned(), 400),
        ("null".to_owned(), 400),
        ("{\"jsonrpc\":\"2.0\",\"id\":1,\"id\":2,\"method\":\"ping\"}".to_owned(), 400),
        ("x".to_owned(), 400),
        (message("ping", &json!({"x": large})).to_string(), 413),
    ] {
        let answer = raw(body.clone()).send().await;
        assert_eq!(answer.status, status, "{}", &body[..body.len().min(60)]);
    }
    let shapeless = raw(json!({"jsonrpc": "2.0", "id": 1}).to_string()).send().await;
    assert_eq!((shapeless.status, &shapeless.json()["error"]["code"]), (400, &json!(-32600)));
    for wrong in [json!({"name": 7}), json!({}), json!({"name": tool_of("effect.read"), "arguments": [1]})] {
        let answer = request(&world, &token, &message("tools/call", &wrong)).send().await;
        assert!(answer.status != 200 || answer.json().get("error").is_some(), "{wrong}: {}", answer.text());
    }
    assert_eq!(world.effects(), 0);
}

#[tokio::test]
async fn a_client_without_a_handshake_lists_and_calls() {
    let world = World::on(Setup::sqlite()).await;
    let (_, token) = mcp_key(&world, Role::Member).await;
    let ask = async |method: &str, tool: &str| {
        let meta = json!({"io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "c", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {}});
        let params = json!({"_meta": meta, "name": tool, "arguments": {}});
        let call = world.gateway.post("/mcp", &message(method, &params)).bearer(&token);
        let call = call.header("accept", "application/json, text/event-stream").header("mcp-method", method);
        let call = call.header("mcp-protocol-version", "2026-07-28").header("mcp-name", tool);
        let answer = call.send().await;
        (answer.status, answer.json())
    };
    let (status, found) = ask("server/discover", "").await;
    assert!(status == 200 && found["result"]["capabilities"]["tools"].is_object(), "{found}");
    let (status, done) = ask("tools/call", &tool_of("effect.read")).await;
    assert_eq!((status, world.effects()), (200, 1), "{done}");
    assert_eq!(done["result"]["structuredContent"]["status"], "completed", "{done}");
    let (status, refused) = ask("subscriptions/listen", "").await;
    assert_eq!((status, &refused["error"]["code"]), (404, &json!(-32601)), "nothing stays open: {refused}");
}

#[tokio::test]
async fn what_is_denied_for_some_arguments_only_is_listed() {
    let world = World::on(Setup::sqlite()).await;
    let (_, token) = mcp_key(&world, Role::Member).await;
    let dev = json!({"properties": {"note": {"const": "dev"}}, "required": ["note"]});
    let mode = json!({"rules": [{"when": dev, "mode": "allow"}], "else": "deny"});
    let set = world.gateway.call("PUT", "/v1/action-modes");
    let set = set.json(&json!({"key": "tools:effect.drop", "mode": mode}));
    assert_eq!(set.bearer(world.team.token(Role::Admin)).status().await, 200);
    let listed = request(&world, &token, &message("tools/list", &json!({}))).send().await.json();
    assert!(names(&listed["result"]).contains(&tool_of("effect.drop").as_str()), "{listed}");
    for (note, failed) in [("dev", false), ("prod", true)] {
        let done = call(&world, &token, &tool_of("effect.drop"), json!({"note": note})).await;
        assert_eq!(done["result"]["isError"], failed, "{done}");
    }
    assert_eq!(world.effects(), 1);
}

#[tokio::test]
async fn a_session_and_a_key_see_only_their_own_calls_of_the_same_tools() {
    for world in worlds().await {
        set_mode(&world, "tools:effect.read", "require_approval").await;
        let ((own, sandbox), (_, other)) = (agent(&world).await, agent(&world).await);
        let (_, key) = mcp_key(&world, Role::Admin).await;
        for (caller, strangers) in
            [(&sandbox, [&other, &key]), (&key, [&sandbox, &other]), (&other, [&sandbox, &key])]
        {
            let waiting = call(&world, caller, &tool_of("effect.read"), json!({})).await;
            let look = json!({"invocationId": waiting["result"]["structuredContent"]["invocationId"]});
            let status = async |token: &str| {
                let found = call(&world, token, "get_invocation", look.clone()).await;
                found["result"]["structuredContent"]["status"].clone()
            };
            assert_eq!(status(caller).await, "pending", "{waiting}");
            for stranger in strangers {
                assert_eq!(status(stranger).await, Value::Null);
            }
        }
        let path = format!("/proliferate/{own}/actions/invocations");
        let of_session = world.gateway.get(&path).bearer(&sandbox).send().await.json();
        assert_eq!(
            of_session["invocations"].as_array().unwrap().len(),
            1,
            "the session's only: {of_session}"
        );
        assert_eq!(world.effects(), 0);
    }
}

#[tokio::test]
async fn a_request_of_a_key_is_decided_by_a_person_and_expires_with_the_key() {
    for world in worlds().await {
        let (id, token) = mcp_key(&world, Role::Owner).await;
        let request = async || {
            let waiting = call(&world, &token, &tool_of("effect.write"), json!({"note": "hello"})).await;
            waiting["result"]["structuredContent"]["invocationId"].as_str().unwrap().to_owned()
        };
        let (first, second) = (request().await, request().await);
        let owner = world.team.token(Role::Owner);
        let (_, full) = api_key(&world.gateway.app, world.team.person(Role::Owner)).await;
        let inbox = world.gateway.get("/v1/inbox").bearer(&full).send().await.json();
        assert_eq!(inbox["entries"][0]["canDecide"], false, "{inbox}");
        assert_eq!(decide(&world, &first, "approve", &full).await.0, 403, "a key approves no key's request");
        let (status, denied) = decide(&world, &first, "deny", owner).await;
        assert_eq!((status, &denied["invocation"]["sessionId"]), (200, &Value::Null), "{denied}");
        let told = call(&world, &token, "get_invocation", json!({"invocationId": first})).await;
        assert_eq!(text(&told["result"]), "Action denied: a person denied it");
        let revoke = world.gateway.call("DELETE", &format!("/v1/keys/{id}")).bearer(owner);
        assert_eq!(revoke.status().await, 200);
        let inbox = world.gateway.get("/v1/inbox").bearer(owner).send().await.json();
        assert_eq!(inbox["entries"], json!([]), "its key was revoked");
        for act in ["approve", "deny"] {
            assert_eq!(decide(&world, &second, act, owner).await.0, 410, "its key was revoked");
        }
        assert_eq!(world.effects(), 0);
    }
}

#[tokio::test]
async fn the_inbox_and_the_routes_agree_on_what_the_owner_of_a_key_may_decide() {
    for world in worlds().await {
        let mode =
            json!({"key": "tools:effect.write", "mode": {"else": "require_approval", "twoPerson": true}});
        let set = world.gateway.call("PUT", "/v1/action-modes").bearer(world.team.token(Role::Owner));
        assert_eq!(set.json(&mode).status().await, 200);
        let (_, token) = mcp_key(&world, Role::Owner).await;
        let waiting = call(&world, &token, &tool_of("effect.write"), json!({"note": "hello"})).await;
        let id = waiting["result"]["structuredContent"]["invocationId"].as_str().unwrap().to_owned();
        let (_, full) = api_key(&world.gateway.app, world.team.person(Role::Owner)).await;
        for (who, can_decide, can_approve, status) in [
            (world.team.token(Role::Member), false, Value::Null, 403),
            (&full, false, Value::Null, 403),
            (world.team.token(Role::Owner), true, json!(false), 403),
            (world.team.token(Role::Admin), true, json!(true), 202),
        ] {
            let inbox = world.gateway.get("/v1/inbox").bearer(who).send().await.json();
            let entry = &inbox["entries"][0];
            assert_eq!(
                (&entry["canDecide"], &entry["canApprove"]),
                (&json!(can_decide), &can_approve),
                "{inbox}"
            );
            assert_eq!(decide(&world, &id, "approve", who).await.0, status, "{inbox}");
        }
        assert_eq!(decide(&world, &id, "deny", &full).await.0, 403);
        assert_eq!(decide(&world, &id, "deny", world.team.token(Role::Owner)).await.0, 200);
    }
}

#[tokio::test]
async fn each_key_has_limits_of_its_own() {
    // The time stands still, so that no share grows meanwhile.
    let clock = Clock::manual(Clock::system().now());
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let world = World::on(setup.clock(&clock)).await;
        let ((_, one), (_, two)) = (mcp_key(&world, Role::Member).await, mcp_key(&world, Role::Member).await);
        let write = async |token: &str| call(&world, token, &tool_of("effect.write"), json!({})).await;
        for _ in 0..gate::MAX_WAITING {
            let waiting = write(&one).await;
            assert_eq!(waiting["result"]["structuredContent"]["status"], "pending", "{waiting}");
        }
        let many = write(&one).await;
        assert!(text(&many["result"]).starts_with("Too many pending approvals"), "{many}");
        assert_eq!(write(&two).await["result"]["isError"], false, "another key waits beside it");
        // 11 of 60 are used.
        for _ in 0..49 {
            call(&world, &one, "none", json!({})).await;
        }
        let limited = call(&world, &one, &tool_of("effect.read"), json!({})).await;
        assert!(text(&limited["result"]).starts_with("This API key has used its share"), "{limited}");
        let free = call(&world, &two, &tool_of("effect.read"), json!({})).await;
        assert_eq!((&free["result"]["isError"], world.effects()), (&json!(false), 1), "{free}");
    }
}
