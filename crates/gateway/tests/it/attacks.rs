//! Attacks on and by tools: a tool that sends arbitrary answers, secrets that try to inject headers, and paths that
//! leave the workspace. `docs/contract.md` lists the attacks by number.

use std::sync::{Arc, Mutex};

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse as _;
use axum::routing::any;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use proto::{Role, SessionId, SessionType};
use serde_json::{Value, json};
use store::NewSession;

use crate::call::Answer;
use crate::harness::{Setup, TestGateway};
use crate::model_proxy::serve;
use crate::people::{OrgOf3, sandbox_token, service_token, some_uuid};

/// The requests that a hostile tool received: path and headers.
type Seen = Arc<Mutex<Vec<(String, HeaderMap)>>>;

/// Starts a hostile tool that chooses its answer by the request path.
async fn hostile_tool() -> (String, Seen) {
    async fn answer(State(seen): State<Seen>, request: axum::extract::Request) -> axum::response::Response {
        let path = request.uri().path().to_owned();
        seen.lock().unwrap().push((path.clone(), request.headers().clone()));
        match path.as_str() {
            "/redirect" => (StatusCode::FOUND, [("location", "/inside")]).into_response(),
            "/huge" => "x".repeat((1 << 20) + 1).into_response(),
            "/endless" => {
                let drips = futures_util::stream::unfold((), |()| async {
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                    Some((Ok::<_, std::convert::Infallible>(Bytes::from_static(b"x")), ()))
                });
                Body::from_stream(drips).into_response()
            }
            "/bytes" => vec![0xff, 0xfe, 0x00].into_response(),
            "/echo" => Json(echoed(request.headers())).into_response(),
            "/prose" => {
                let sent = request.headers()["authorization"].to_str().unwrap();
                format!("you sent {sent}, {}", STANDARD.encode(sent)).into_response()
            }
            "/leak" => (StatusCode::BAD_REQUEST, "the secret is canary-4711").into_response(),
            _ => "ok".into_response(),
        }
    }
    let seen = Seen::default();
    let router = Router::new().fallback(any(answer)).with_state(seen.clone());
    (serve(router).await.to_string(), seen)
}

/// The headers that a tool received, echoed in every encoding and position that a tool might use.
fn echoed(headers: &HeaderMap) -> Value {
    let sent = headers["authorization"].to_str().unwrap();
    let token = sent.trim_start_matches("Bearer ");
    json!({
        "plain": sent, "number": 4711, "nested": [{"deep": {"seen": token}}],
        "encoded": STANDARD.encode(format!("worker:{token}")), "hex": hex::encode(token),
        "url": format!("https://example.com/?q={}", token.replace('-', "%2D")),
        "pairs": [["x-sent", token]], "json": json!({"inner": token}).to_string(), token: "as a key",
    })
}

struct World {
    gateway: TestGateway,
    team: OrgOf3,
    token: String,
    seen: Seen,
}

impl World {
    async fn new() -> Self {
        let (address, seen) = hostile_tool().await;
        let tools: String = ["redirect", "huge", "endless", "bytes", "leak", "plain", "echo", "prose"]
            .map(|name| {
                format!("- {{name: evil.{name}, url: 'http://{address}/{name}', timeout_ms: 1500, risk: read, auth: 'bearer:EVIL_KEY'}}\n")
            })
            .concat();
        let gateway = Setup::sqlite().with_tools(&tools, &address).start().await;
        let team = OrgOf3::new(&gateway.app).await;
        let token = service_token(&gateway.app, Some(team.org));
        Self { gateway, team, token, seen }
    }

    async fn set_secret(&self, value: &str) -> u16 {
        let call = self.gateway.call("PUT", "/v1/secrets/EVIL_KEY").bearer(self.team.token(Role::Owner));
        call.json(&json!({"value": value})).status().await
    }

    async fn call(&self, run: &str, tool: &str) -> Answer {
        let body = json!({
            "tool_name": "evil", "operation": format!("evil.{tool}"), "lane_id": "actions.read",
            "actor": {"actor_type": "system", "actor_id": "worker"}, "case_id": "case-1", "run_id": run,
        });
        self.gateway.post("/v1/tool-calls", &body).bearer(&self.token).send().await
    }

    fn paths(&self) -> Vec<String> {
        self.seen.lock().unwrap().iter().map(|(path, _)| path.clone()).collect()
    }
}

/// Attacks 12, 18 and 21.
#[tokio::test]
async fn a_hostile_tool_gets_its_own_secret_and_nothing_else() {
    let world = World::new().await;
    assert_eq!(world.set_secret("s3cret-of-the-tool").await, 201);
    for (number, (tool, status, code)) in [
        ("redirect", 502, "TOOL_ERROR"),
        ("huge", 502, "TOOL_ERROR"),
        ("endless", 504, "TOOL_TIMEOUT"),
        ("bytes", 502, "TOOL_ERROR"),
        ("leak", 502, "TOOL_ERROR"),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = world.call(&format!("run-evil-{number}"), tool).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["error_code"]),
            (status, &json!(code)),
            "{tool}: {}",
            answer.text()
        );
        assert!(!answer.text().contains("canary-4711") && answer.text().len() < 1000, "{}", answer.text());
    }
    assert_eq!(
        world.paths(),
        ["/redirect", "/huge", "/endless", "/bytes", "/leak"],
        "no redirect is followed"
    );
    for (path, headers) in world.seen.lock().unwrap().iter() {
        let sent: Vec<_> = headers.get_all("authorization").iter().collect();
        assert_eq!(sent, ["Bearer s3cret-of-the-tool"], "{path}");
        assert!(!format!("{headers:?}").contains(&world.token), "{path}: the caller's token goes nowhere");
    }
    let path = "/v1/audit/events?limit=1000";
    let events = world.gateway.get(path).bearer(world.team.token(Role::Owner)).send().await.text();
    assert!(!events.contains("canary-4711") && !events.contains("s3cret"), "{events}");
}

/// Attack 44: a tool echoes the credential it received. Its caller must not learn what the vault holds for the tool.
#[tokio::test]
async fn a_credential_that_a_tool_repeats_is_redacted() {
    let world = World::new().await;
    let secret = "s3cret-of-the-tool";
    assert_eq!(world.set_secret(secret).await, 201);
    let owner = world.team.token(Role::Owner);
    for (run, tool, says) in [("run-echo-1", "echo", "4711"), ("run-echo-2", "prose", "you sent")] {
        let answer = world.call(run, tool).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let id = answer.json()["output_artifacts"][0]["artifact_id"].as_str().unwrap().to_owned();
        let path = format!("/v1/artifacts/{id}/content?case_id=case-1");
        let kept = world.gateway.get(&path).bearer(owner).send().await;
        assert_eq!(kept.status, 200, "{}", kept.text());
        let run = world.gateway.get(&format!("/v1/runs/{run}")).bearer(owner).send().await;
        for text in [answer.text(), kept.text(), run.text()] {
            let encoded = STANDARD.encode(secret);
            for spelling in [secret, "s3cret%2D", &encoded[..20], &hex::encode(secret)] {
                assert!(!text.contains(spelling), "{tool}: {text}");
            }
        }
        assert!(kept.text().contains("[REDACTED]") && kept.text().contains(says), "{}", kept.text());
    }
}

/// Attack 19: a secret with a line break must not inject a header.
#[tokio::test]
async fn a_secret_with_a_line_end_cannot_add_a_header() {
    let world = World::new().await;
    let status = world.set_secret("a\r\nx-evil: 1").await;
    assert!([201, 400].contains(&status), "{status}");
    let answer = world.call("run-00000001", "plain").await;
    assert_eq!(answer.status, 503, "{}", answer.text());
    assert_eq!(world.paths(), Vec::<String>::new());
    assert_eq!(world.set_secret("whole").await, if status == 201 { 200 } else { 201 });
    assert_eq!(world.call("run-00000002", "plain").await.status, 200);
}

/// Attack 22, through the callback route of a sandbox.
#[tokio::test]
async fn commands_stay_inside_the_workspace() {
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        let id = SessionId::from(some_uuid());
        let new = NewSession::new(id, team.org, SessionType::Setup, "local", gateway.app.clock.now());
        gateway.app.store.create_session(new).await.unwrap();
        let token = sandbox_token(&gateway.app, id).await;
        let path = format!("/proliferate/{id}/tools/save_service_commands");
        for (number, (field, value)) in [
            ("workspacePath", "../up"),
            ("workspacePath", "/etc"),
            ("workspacePath", "a/../../b"),
            ("workspacePath", "a\u{0}b"),
            ("cwd", ".."),
            ("cwd", "a\\..\\..\\b"),
            // PostgreSQL cannot store NUL characters, and a value that is not stored is not audited.
            ("name", "w\u{0}"),
            ("command", "x\u{0}"),
        ]
        .into_iter()
        .enumerate()
        {
            let mut command = json!({"name": "web", "command": "run"});
            command[field] = json!(value);
            let body = json!({"tool_call_id": format!("toolu_{number}"), "args": {"commands": [command]}});
            let answer = gateway.post(&path, &body).bearer(&token).send().await;
            assert_eq!((answer.status, &answer.json()["success"]), (200, &Value::Bool(false)), "{value:?}");
            assert!(answer.text().contains(&format!("commands[0].{field}")), "{value:?}: {}", answer.text());
        }
        let body = json!({"tool_call_id": "toolu_many", "args": {"commands": vec![json!({}); 8000]}});
        let answer = gateway.post(&path, &body).bearer(&token).send().await;
        assert!(answer.status == 200 && answer.text().len() < 2000, "{}", answer.text());
        let runs = gateway.get("/v1/runs").bearer(&token).send().await.json();
        assert!(runs["runs"].as_array().unwrap().iter().all(|run| run["status"] == "failed"), "{runs}");
    }
}
