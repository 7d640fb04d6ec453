//! Calls that are wrong in every conceivable way, on both routes: refused, recorded, never executed, never answered
//! with a 5xx, and never revealing what exists in other cases.

use proto::{Role, SessionId};
use serde_json::{Value, json};

use crate::call::Answer;
use crate::harness::Setup;
use crate::people::{OrgOf3, sandbox_token, service_token, session, some_uuid};
use crate::world::{World, outcomes, with, write_call};

const RESPONSE_LIMIT: usize = 20_000;

async fn worlds() -> [World; 2] {
    let limited = |setup: Setup| setup.set("PROLIFERATE_MAX_BODY_BYTES", &RESPONSE_LIMIT.to_string());
    [World::on(limited(Setup::sqlite())).await, World::on(limited(Setup::postgres().await)).await]
}

/// All events of the organization in order.
async fn recorded_events(world: &World) -> Vec<Value> {
    let path = "/v1/audit/events?limit=1000";
    let answer = world.gateway.get(path).bearer(world.team.token(Role::Owner)).send().await;
    answer.json()["events"].as_array().unwrap().clone()
}

/// A JSON object that is nested too deeply to be parsed.
fn deep() -> String {
    [r#"{"a":"#.repeat(200), "1".to_owned(), "}".repeat(200)].concat()
}

/// The call as JSON text, with `"X"` replaced by text that no JSON library would write.
fn holding(call: &Value, raw: &str) -> String {
    call.to_string().replace("\"X\"", raw)
}

#[tokio::test]
async fn a_bad_call_is_refused_recorded_and_not_executed() {
    let long = "x".repeat(400);
    for world in worlds().await {
        let call = || write_call("run-bad");
        let parameters = |value: Value| with(call(), "parameters", json!({"note": value}));
        let of = |field: &str, value: Value| with(call(), field, value).to_string();
        let bodies = [
            ("unknown lane", of("lane_id", json!("no.such.lane")), 403),
            ("unknown tool", of("operation", json!("effect.unheard")), 403),
            ("unknown tool name", of("tool_name", json!("unheard")), 403),
            ("unknown actor", of("actor", json!({"actor_type": "system", "actor_id": "nobody"})), 403),
            ("empty pins", of("policy_versions", json!({"lanes": "", "roles": ""})), 403),
            (
                "other pins",
                of("policy_versions", json!({"lanes": "a".repeat(40), "roles": "b".repeat(40)})),
                403,
            ),
            ("a missing pin", of("policy_versions", json!({"lanes": "a".repeat(40)})), 400),
            ("no pins", of("policy_versions", json!({})), 400),
            (
                "missing scope",
                with(of_lane(call(), "artifacts.append"), "case_id", Value::Null).to_string(),
                403,
            ),
            ("too deep", holding(&parameters(json!("X")), &deep()), 400),
            ("too large", of("parameters", json!({"note": "x".repeat(RESPONSE_LIMIT)})), 413),
            ("a key twice", holding(&parameters(json!("X")), r#"1,"note":2"#), 400),
            ("a key twice, spelt otherwise", holding(&parameters(json!("X")), r#"1,"\u006eote":2"#), 400),
            (
                "a key of the envelope twice",
                of("lane_id", json!("a")).replacen('{', r#"{"lane_id":"b","#, 1),
                400,
            ),
            ("unsafe integer", holding(&parameters(json!("X")), "9007199254740993"), 400),
            ("unsafe negative integer", holding(&parameters(json!("X")), "-9007199254740993"), 400),
            ("unsafe integer with a fraction", holding(&parameters(json!("X")), "9007199254740993.0"), 400),
            ("unsafe integer, shifted", holding(&parameters(json!("X")), "90071992547409930e-1"), 400),
            ("a number without end", holding(&parameters(json!("X")), "1e999"), 400),
            ("half a surrogate", holding(&parameters(json!("X")), r#""\ud800""#), 400),
            ("long tool_name", of("tool_name", json!(long)), 400),
            ("long operation", of("operation", json!(long)), 400),
            ("long lane_id", of("lane_id", json!(long)), 400),
            ("long run_id", of("run_id", json!(long)), 400),
            ("long case_id", of("case_id", json!(long)), 400),
            ("long parent_run_id", of("parent_run_id", json!(long)), 400),
            ("long retry_of", of("retry_of", json!(long)), 400),
            ("long correlation_id", of("correlation_id", json!(long)), 400),
            ("long actor_id", of("actor", json!({"actor_type": "system", "actor_id": long})), 400),
            ("a NUL in run_id", of("run_id", json!("run-\u{0}0000")), 400),
            ("a line end in case_id", of("case_id", json!("case\n-1")), 400),
            ("long scope field", of("scope", json!({long.clone(): 1})), 400),
        ];
        for (number, (name, body, status)) in bodies.into_iter().enumerate() {
            let body = body.replace("run-bad", &format!("run-bad-{number}"));
            let before = recorded_events(&world).await.len();
            let answer =
                world.gateway.call("POST", "/v1/tool-calls").bearer(&world.token).body(body).send().await;
            assert_eq!(answer.status, status, "{name}: {}", answer.text());
            let code = if status == 403 { "POLICY_DENIED" } else { "INVALID_REQUEST" };
            assert_eq!(answer.json()["error"]["error_code"], code, "{name}");
            let says_so = answer.text().contains("the body is too large");
            assert_eq!(says_so, status == 413, "{name}: {}", answer.text());
            assert!(
                answer.text().len() < 1000 && !answer.text().contains(&long[..200]),
                "{name}: {}",
                answer.text()
            );
            let events = recorded_events(&world).await;
            let came_to = if status == 403 { "deny" } else { "failure" };
            assert_eq!(
                outcomes(&events[before..]),
                [("authz_decision", "deny"), ("tool_call", came_to)],
                "{name}"
            );
        }
        assert_eq!(world.effects(), 0);
    }
}

/// Parameter names are chosen by the caller: long or unusual ones may carry content, or text that a database cannot
/// store.
#[tokio::test]
async fn error_texts_are_short_and_repeat_nothing_of_the_caller() {
    let (long, many): (String, Vec<_>) =
        ("S3CRET".repeat(2500), (0..200).map(|n| format!("key-{n}")).collect());
    for world in worlds().await {
        for (number, (keys, says)) in [
            (vec![long.clone()], "a field that the schema does not name"),
            (vec!["S3CRET\0".to_owned()], "a field that the schema does not name"),
            (many.clone(), "a field that the schema does not name"),
        ]
        .into_iter()
        .enumerate()
        {
            let run = format!("run-odd-{number}");
            let parameters: Value = keys.into_iter().map(|key| (key, json!(5))).collect();
            let call =
                with(with(write_call(&run), "operation", json!("effect.open")), "parameters", parameters);
            let answer = world.call(&call).await;
            assert_eq!(answer.status, 400, "{}", answer.text());
            assert_eq!(answer.json()["error"]["error_code"], "INVALID_REQUEST");
            let message = answer.json()["error"]["message"].as_str().unwrap().to_owned();
            assert!(
                message.len() < 1000 && message.contains(says) && !message.contains("S3CRET"),
                "{message}"
            );
            assert_eq!(
                outcomes(&world.events(&run).await),
                [("authz_decision", "allow"), ("tool_call", "failure")]
            );
        }
        assert_eq!(world.effects(), 0);
    }
}

fn of_lane(call: Value, lane: &str) -> Value {
    with(with(call, "lane_id", json!(lane)), "operation", json!("effect.note"))
}

/// A built-in role that the organization's policy files do not define.
#[tokio::test]
async fn a_role_that_is_in_no_file_may_do_nothing() {
    for world in worlds().await {
        let world = world.with_files(
            "version: '1'\ncontract_version: v1\nlanes:\n  - lane_id: actions.write\n    allowed_callers: {roles: [OPERATOR]}\n    \
             allowed_actions: {tools: ['*.*']}\n",
            "version: '1'\ncontract_version: v1\nroles:\n  - {role_id: OPERATOR, class: human, privileges: {lanes: [actions.write]}}\n",
        ).await;
        let answer = world.call(&write_call("run-00000001")).await;
        assert_eq!((answer.status, world.effects()), (403, 0), "{}", answer.text());
        assert_eq!(answer.json()["error"]["message"], "no such role");
        let member = json!({"actor_type": "human", "actor_id": world.team.id(Role::Member).to_string()});
        let call = with(write_call("run-00000002"), "actor", member);
        let token = world.team.token(Role::Member);
        assert_eq!(world.gateway.post("/v1/tool-calls", &call).bearer(token).send().await.status, 200);
    }
}

/// A sandbox session, and its token for the callback route.
struct Inside {
    world: World,
    session: SessionId,
    token: String,
}

impl Inside {
    async fn of(world: World) -> Self {
        let session = session(&world.gateway.app, world.team.org).await;
        let token = sandbox_token(&world.gateway.app, session).await;
        Self { world, session, token }
    }

    async fn ask(&self, session: &str, tool: &str, body: impl Into<axum::body::Body>) -> Answer {
        let path = format!("/proliferate/{session}/tools/{tool}");
        self.world.gateway.call("POST", &path).bearer(&self.token).body(body).send().await
    }

    async fn calls(&self) -> usize {
        let runs = self.world.gateway.get("/v1/runs").bearer(&self.token).send().await.json();
        runs["runs"].as_array().unwrap().len()
    }
}

#[tokio::test]
async fn a_bad_callback_is_refused_recorded_and_not_executed() {
    for world in worlds().await {
        let inside = Inside::of(world).await;
        let body = |args: &str| format!(r#"{{"tool_call_id":"toolu_1","args":{args}}}"#);
        let named = |id: &str| json!({"tool_call_id": id, "args": {}}).to_string();
        let own = inside.session.to_string();
        let cases = [
            ("unknown tool", "unheard_of", body("{}"), 404),
            ("a tool's name in other letters", "SAVE_SNAPSHOT", body("{}"), 404),
            ("too deep", "save_snapshot", body(&deep()), 400),
            (
                "too large",
                "save_snapshot",
                body(&format!(r#"{{"message":"{}"}}"#, "x".repeat(RESPONSE_LIMIT))),
                413,
            ),
            ("a key twice", "save_snapshot", body(r#"{"message":"a","message":"b"}"#), 400),
            (
                "a key of the envelope twice",
                "save_snapshot",
                r#"{"tool_call_id":"a","tool_call_id":"b"}"#.into(),
                400,
            ),
            ("unsafe integer", "save_snapshot", body(r#"{"message":9007199254740993}"#), 400),
            ("half a surrogate", "save_snapshot", body(r#"{"message":"\ud800"}"#), 400),
            ("args that are no object", "save_snapshot", body("[]"), 400),
            ("long id", "save_snapshot", named(&"x".repeat(201)), 400),
            ("no id", "save_snapshot", "{}".to_owned(), 400),
            ("empty id", "save_snapshot", named(""), 400),
            ("a NUL in the id", "save_snapshot", named("a\u{0}b"), 400),
            ("no JSON", "save_snapshot", "save it".to_owned(), 400),
            ("nothing", "save_snapshot", String::new(), 400),
        ];
        for (name, tool, body, status) in cases {
            let before = recorded_events(&inside.world).await.len();
            let answer = inside.ask(&own, tool, body).await;
            assert_eq!(answer.status, status, "{name}: {}", answer.text());
            assert!(
                answer.json()["error"].is_string() && answer.text().len() < 400,
                "{name}: {}",
                answer.text()
            );
            let events = recorded_events(&inside.world).await;
            let new = &events[before..];
            assert_eq!(outcomes(new), [("authz_decision", "deny"), ("tool_call", "failure")], "{name}");
            assert!(new.iter().all(|event| event["actor"]["actor_id"] == json!(own)), "{name}");
        }
        assert_eq!(inside.calls().await, 0);
    }
}

/// Attack 1: the token of one session on the path of another. The answer does not reveal whether the other one exists.
#[tokio::test]
async fn a_sandbox_on_another_path_learns_nothing_and_is_recorded() {
    for world in worlds().await {
        let inside = Inside::of(world).await;
        let app = &inside.world.gateway.app;
        let elsewhere = OrgOf3::new(app).await;
        let sibling = session(app, inside.world.team.org).await.to_string();
        let foreign = session(app, elsewhere.org).await.to_string();
        let before = recorded_events(&inside.world).await.len();
        let mut shown = Vec::new();
        for path in [sibling.as_str(), &foreign, &some_uuid().to_string(), "no-uuid"] {
            for tool in ["save_snapshot", "unheard_of"] {
                shown.push(inside.ask(path, tool, named("toolu_1")).await.shown());
            }
        }
        assert_eq!(shown[0].0, 403, "{shown:?}");
        assert!(shown.iter().all(|answer| *answer == shown[0]), "{shown:?}");
        let events = recorded_events(&inside.world).await;
        let denied = [("authz_decision", "deny"), ("tool_call", "deny")];
        assert_eq!(outcomes(&events[before..]), denied.repeat(shown.len()));
        assert!(!json!(events).to_string().contains(&foreign), "what was asked for is not repeated");
        // A person on the callback route is refused in the same way, and the event names them.
        let path = format!("/proliferate/{}/tools/save_snapshot", inside.session);
        let owner = inside.world.team.token(Role::Owner);
        let person =
            inside.world.gateway.post(&path, &json!({"tool_call_id": "toolu_1"})).bearer(owner).send().await;
        assert_eq!(person.status, 403);
        let last = recorded_events(&inside.world).await.pop().unwrap();
        assert_eq!(last["actor"]["actor_id"], json!(inside.world.team.id(Role::Owner).to_string()));
    }
}

fn named(id: &str) -> String {
    json!({"tool_call_id": id, "args": {}}).to_string()
}

/// Attack 37: a tool call id belongs to its session. Another session gets neither its answer nor its claim.
#[tokio::test]
async fn the_id_of_a_call_belongs_to_its_session() {
    for world in worlds().await {
        let one = Inside::of(world).await;
        let wrong =
            |message: u32| json!({"tool_call_id": "toolu_1", "args": {"message": message}}).to_string();
        let first = one.ask(&one.session.to_string(), "save_snapshot", wrong(1)).await;
        assert_eq!(first.status, 200, "{}", first.text());
        let two = Inside::of(one.world).await;
        // In the session that owns the id, other arguments would be a conflict.
        let second = two.ask(&two.session.to_string(), "save_snapshot", wrong(2)).await;
        assert_eq!((second.status, two.calls().await), (200, 1), "{}", second.text());
        let tools = two.ask(&two.session.to_string(), "save_service_commands", wrong(3)).await;
        assert_eq!((tools.status, two.calls().await), (200, 2), "another tool: {}", tools.text());
        let conflict = two.ask(&two.session.to_string(), "save_snapshot", wrong(1)).await;
        assert_eq!((conflict.status, two.calls().await), (409, 2));
        // Callers cannot use the run id of a callback.
        let runs = two.world.gateway.get("/v1/runs").bearer(&two.token).send().await.json();
        let run = runs["runs"][0]["run_id"].as_str().unwrap();
        assert_eq!(two.world.call(&write_call(run)).await.status, 400);
    }
}

/// The answer is byte for byte the same for something in another case or organization and for something nonexistent.
#[tokio::test]
async fn foreign_and_missing_objects_are_refused_alike() {
    for world in worlds().await {
        let app = &world.gateway.app;
        let other_org = OrgOf3::new(app).await;
        let stranger = service_token(app, Some(other_org.org));
        let theirs = with(write_call("run-theirs"), "case_id", json!("case-9"));
        assert_eq!(world.gateway.post("/v1/tool-calls", &theirs).bearer(&stranger).send().await.status, 200);
        let start = json!({"run_kind": "agent", "case_id": "case-9"});
        let foreign = world.gateway.post("/v1/runs", &start).bearer(&stranger).send().await.json();
        let sibling = world.start_run(&start).await;
        let made = world.call(&with(write_call("run-case-9"), "case_id", json!("case-9"))).await.json();
        let mut never = made["output_artifacts"][0].clone();
        never["artifact_id"] = json!("art_0123456789");
        let nowhere = json!("run-never-was");
        let groups = [
            ("parent_run_id", vec![foreign["run_id"].clone(), sibling["run_id"].clone(), nowhere.clone()]),
            ("retry_of", vec![json!("run-theirs"), json!("run-case-9"), nowhere]),
            ("input_artifacts", vec![json!([made["output_artifacts"][0]]), json!([never])]),
            (
                "scope",
                [other_org.org.to_string(), some_uuid().to_string(), "no-uuid".to_owned()]
                    .map(|org| json!({"organization_id": org}))
                    .to_vec(),
            ),
        ];
        let effects = world.effects();
        for (number, (field, values)) in groups.into_iter().enumerate() {
            let mut shown = Vec::new();
            for (index, value) in values.iter().enumerate() {
                let run = format!("run-elsewhere-{number}-{index}");
                let mut call = write_call(&run);
                if field == "retry_of" {
                    call.as_object_mut().unwrap().remove("parent_run_id");
                }
                let (status, text, kind) = world.call(&with(call, field, value.clone())).await.shown();
                assert!([400, 403].contains(&status), "{field} {value}: {text}");
                shown.push((status, text.replace(&run, "RUN"), kind));
            }
            assert!(shown.iter().all(|answer| *answer == shown[0]), "{field}: {shown:?}");
        }
        assert_eq!(world.effects(), effects);
        let mut shown = Vec::new();
        for parent in [foreign["run_id"].clone(), sibling["run_id"].clone(), json!("run-never-was")] {
            let start = json!({"run_kind": "agent", "case_id": "case-1", "parent_run_id": parent});
            shown.push(world.gateway.post("/v1/runs", &start).bearer(&world.token).send().await.shown());
        }
        assert_eq!(shown[0].0, 409, "{shown:?}");
        assert!(shown.iter().all(|answer| *answer == shown[0]), "{shown:?}");
        for (elsewhere, nowhere) in [
            ("/v1/runs/run-theirs", "/v1/runs/run-never-was"),
            ("/v1/audit/events?run_id=run-theirs", "/v1/audit/events?run_id=run-never-was"),
            ("/v1/runs?parent_run_id=run-theirs", "/v1/runs?parent_run_id=run-never-was"),
        ] {
            let ask = |path: &'static str| world.gateway.get(path).bearer(&world.token).send();
            assert_eq!(ask(elsewhere).await.shown(), ask(nowhere).await.shown(), "{elsewhere}");
        }
    }
}

/// The case of a sandbox is its session. A call that names another case is refused, whether or not that case exists.
#[tokio::test]
async fn a_sandbox_cannot_call_in_the_name_of_another_case() {
    for world in worlds().await {
        let inside = Inside::of(world).await;
        let app = &inside.world.gateway.app;
        let sibling = session(app, inside.world.team.org).await.to_string();
        let made = with(write_call("run-00000001"), "case_id", json!(sibling));
        let made = inside.world.call(&made).await.json()["output_artifacts"][0].clone();
        let actor = json!({"actor_type": "agent", "actor_id": inside.session.to_string()});
        let mut shown = Vec::new();
        for (number, (case, artifacts)) in [
            (sibling.clone(), json!([made])),
            (sibling, json!([])),
            (some_uuid().to_string(), json!([])),
            ("case-1".to_owned(), json!([])),
        ]
        .into_iter()
        .enumerate()
        {
            let run = format!("run-other-{number}");
            let call = with(with(write_call(&run), "actor", actor.clone()), "case_id", json!(case));
            let call = with(call, "input_artifacts", artifacts);
            let answer =
                inside.world.gateway.post("/v1/tool-calls", &call).bearer(&inside.token).send().await;
            let (status, text, kind) = answer.shown();
            shown.push((status, text.replace(&run, "RUN"), kind));
        }
        assert_eq!(shown[0].0, 403, "{shown:?}");
        assert!(shown.iter().all(|answer| *answer == shown[0]), "{shown:?}");
        assert_eq!(inside.world.effects(), 1, "that of the service alone");
    }
}
