//! Questions of agents to people: stored, shown to everybody, answered once by whoever may prompt.

use std::time::Duration;

use clock::Clock;
use proto::Role;
use serde_json::{Value, json};
use testkit::Turn;

use crate::harness::{Setup, within};
use crate::live::{Live, On, Socket, id, on_both};
use crate::people::{org, person, sandbox_token};

on_both! {
    an_answer_reaches_the_agent_and_everybody_sees_it
    a_question_survives_a_restart_of_the_gateway
    the_answer_to_an_agent_that_is_gone_becomes_the_next_prompt
}

/// Starts a turn that has asked `que_1`.
async fn asking(live: &Live, session: &str) -> (Socket, Turn) {
    let mut socket = live.running(session).await;
    socket.prompt("work").await;
    let turn = live.next_turn().await;
    turn.begin();
    turn.ask("que_1");
    let question = socket.until_type("question").await.pop().unwrap();
    assert!(question["seq"].as_i64().is_some(), "{question}");
    assert_eq!(question["payload"], asked());
    (socket, turn)
}

fn asked() -> Value {
    let options = json!([{ "label": "A", "description": "a" }, { "label": "B", "description": "b" }]);
    json!({ "questionId": "que_1", "kind": "question", "questions": [
        { "question": "Which?", "header": "Pick", "options": options, "multiple": false, "custom": true }] })
}

async fn answer(live: &Live, session: &str, token: &str, question: &str, answers: Value) -> (u16, Value) {
    let path = format!("/proliferate/{session}/questions/{question}/answer");
    let reply = live.ask("POST", &path, Some(token), &json!({ "answers": answers }), None).await;
    (reply.0, reply.1)
}

async fn an_answer_reaches_the_agent_and_everybody_sees_it(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let (mut socket, turn) = asking(&live, &session).await;
    let listed = live.get("/v1/questions").await;
    assert_eq!(listed["questions"].as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(
        (&listed["questions"][0]["sessionId"], &listed["questions"][0]["kind"]),
        (&json!(session), &json!("question"))
    );
    assert_eq!(live.init(&session).await["payload"]["questions"], json!([asked()]));

    let token = live.ada.token.clone();
    assert_eq!(answer(&live, &session, &token, "que_1", json!([["A", "B"]])).await.0, 400);
    assert_eq!(answer(&live, &session, &token, "que_2", json!([["A"]])).await.0, 404);
    socket.send(&json!({ "type": "answer_question", "questionId": "que_1", "answers": [["A"]] })).await;
    let answered = socket.until_type("question_answered").await.pop().unwrap();
    let by = json!(live.ada.id.to_string());
    assert_eq!(answered["payload"], json!({ "questionId": "que_1", "answers": [["A"]], "by": by }));
    within(live.agent.wait_for_asked("/question/que_1/reply", 1)).await;
    assert_eq!(live.agent.asked("/question/que_1/reply")[0].body, json!({ "answers": [["A"]] }));
    assert_eq!(answer(&live, &session, &token, "que_1", json!([["A"]])).await.0, 200, "the same again");
    assert_eq!(answer(&live, &session, &token, "que_1", json!([["B"]])).await.0, 409);
    assert_eq!(live.get("/v1/questions").await["questions"], json!([]));

    turn.say("thanks");
    turn.end();
    socket.until_type("turn_complete").await;
    assert_eq!(live.init(&session).await["payload"].get("questions"), None);
    assert_eq!(live.agent.asked("/question/que_1/reply").len(), 1, "the agent gets an answer once");
}

async fn a_question_survives_a_restart_of_the_gateway(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let (socket, turn) = asking(&live, &session).await;
    drop(socket);
    let live = live.restarted().await;
    assert_eq!(live.get("/v1/questions").await["questions"].as_array().unwrap().len(), 1);
    let token = live.ada.token.clone();
    assert_eq!(answer(&live, &session, &token, "que_1", json!([["B"]])).await.0, 200);
    within(live.agent.wait_for_asked("/question/que_1/reply", 1)).await;
    let mut socket = live.watch(&session).await;
    turn.say("thanks");
    turn.end();
    socket.until_type("turn_complete").await;
    assert_eq!(live.agent.asked("/prompt_async").len(), 1, "the answer did not become a prompt too");
}

async fn the_answer_to_an_agent_that_is_gone_becomes_the_next_prompt(on: On) {
    let live = Live::start(on).await;
    let session = live.session().await;
    let (mut socket, turn) = asking(&live, &session).await;
    turn.die();
    live.agent.forget_requests();
    live.agent.cut();
    socket.until_type("turn_complete").await;
    assert_eq!(live.init(&session).await["payload"]["questions"], json!([asked()]), "it stays open");
    let token = live.ada.token.clone();
    assert_eq!(answer(&live, &session, &token, "que_1", json!([["A"]])).await.0, 200);
    let next = live.next_turn().await;
    assert!(next.text.contains("Which?") && next.text.contains("→ A"), "{}", next.text);
    next.answer("I go on");
    socket.until_type("turn_complete").await;
    assert_eq!(live.get("/v1/questions").await["questions"], json!([]));
}

/// The answer is in the database when the prompt that it becomes is refused.
#[tokio::test]
async fn nobody_hears_that_nothing_was_changed_after_an_answer_was_stored() {
    let live = Live::start(On::Postgres).await;
    let session = live.session().await;
    let (mut socket, turn) = asking(&live, &session).await;
    turn.die();
    live.agent.forget_requests();
    live.agent.cut();
    socket.until_type("turn_complete").await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$; \
        CREATE TRIGGER refuse BEFORE INSERT ON prompts FOR EACH ROW EXECUTE FUNCTION refuse()";
    live.gateway.setup.sql(refuse).await;
    let token = live.ada.token.clone();
    let (status, reply) = answer(&live, &session, &token, "que_1", json!([["A"]])).await;
    assert_eq!(status, 503, "{reply}");
    assert!(reply.to_string().contains("given up"), "{reply}");
    live.gateway.setup.sql("DROP TRIGGER refuse ON prompts").await;
    assert_eq!(answer(&live, &session, &token, "que_1", json!([["A"]])).await.0, 200, "the same again");
    let next = live.next_turn().await;
    assert!(next.text.contains("→ A"), "{}", next.text);
}

#[tokio::test]
async fn a_question_asked_while_disconnected_is_found() {
    let live = Live::start(On::Sqlite).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("work").await;
    let turn = live.next_turn().await;
    turn.begin();
    socket.until(|frame| frame["payload"]["role"] == "assistant").await;
    let question = json!([{ "question": "Why?", "header": "h", "options": [] }]);
    live.agent
        .add_request("que_9", &json!({ "id": "que_9", "sessionID": turn.session, "questions": question }));
    live.agent.cut();
    let found = socket.until_type("question").await.pop().unwrap();
    assert_eq!(found["payload"]["questionId"], "que_9");
    let token = live.ada.token.clone();
    assert_eq!(answer(&live, &session, &token, "que_9", json!([["because"]])).await.0, 200);
    within(live.agent.wait_for_asked("/question/que_9/reply", 1)).await;
}

#[tokio::test]
async fn a_permission_is_answered_like_a_question() {
    let live = Live::start(On::Sqlite).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("work").await;
    let turn = live.next_turn().await;
    turn.begin();
    turn.ask_permission("per_1", "bash", "echo hi");
    let question = socket.until_type("question").await.pop().unwrap();
    assert_eq!(
        (&question["payload"]["kind"], &question["payload"]["questions"][0]["header"]),
        (&json!("permission"), &json!("bash"))
    );
    let token = live.ada.token.clone();
    assert_eq!(answer(&live, &session, &token, "per_1", json!([["maybe"]])).await.0, 400);
    assert_eq!(answer(&live, &session, &token, "per_1", json!([["always"]])).await.0, 200);
    within(live.agent.wait_for_asked("/permission/per_1/reply", 1)).await;
    assert_eq!(live.agent.asked("/permission/per_1/reply")[0].body, json!({ "reply": "always" }));
}

/// The built-in lanes, and one rule more.
fn lanes_without_bash() -> String {
    let lanes = include_str!("../../../../policy/lanes.yaml");
    format!(
        "{lanes}
  - rule_id: no-bash
    reason: shells are not for agents here
    lanes: [\"actions.*\"]
    tools: [agent.bash]
    examples:
      match:
        - {{role: CODING_AGENT, lane: actions.write, tool: agent.bash}}
      not_match:
        - {{role: CODING_AGENT, lane: actions.write, tool: agent.edit}}
"
    )
}

#[tokio::test]
async fn a_permission_that_policy_denies_is_rejected_at_once() {
    let setup = On::Sqlite.setup().await;
    let directory = setup.directory().join("policy");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("lanes.yaml"), lanes_without_bash()).unwrap();
    let roles = include_str!("../../../../policy/roles.yaml");
    std::fs::write(directory.join("roles.yaml"), roles).unwrap();
    let live = Live::with(setup.set("PROLIFERATE_POLICY_DIR", directory.to_str().unwrap())).await;
    let session = live.session().await;
    let mut socket = live.running(&session).await;
    socket.prompt("work").await;
    let turn = live.next_turn().await;
    turn.begin();
    turn.ask_permission("per_1", "bash", "echo hi");
    let error = socket.until_type("error").await.pop().unwrap();
    let text = error["payload"]["message"].as_str().unwrap();
    assert!(text.contains("\"bash\"") && text.contains("shells are not for agents here"), "{error}");
    within(live.agent.wait_for_asked("/permission/per_1/reply", 1)).await;
    assert_eq!(live.agent.asked("/permission/per_1/reply")[0].body, json!({ "reply": "reject" }));
    assert_eq!(live.get("/v1/questions").await["questions"], json!([]));
    turn.ask_permission("per_2", "edit", "src/main.rs");
    socket.until_type("question").await;
    // Both decisions are in the ledger, with the rule and the turn.
    let answer = live.get(&format!("/v1/audit/events?case_id={session}&limit=1000")).await;
    let all = answer["events"].as_array().unwrap().iter();
    let decided: Vec<&Value> = all.filter(|event| event["target"]["name"] == "agent").collect();
    let of = |name: &str| *decided.iter().find(|event| event["target"]["operation"] == name).unwrap();
    assert_eq!(of("bash")["authz"]["decision"], "deny", "{answer}");
    assert_eq!(of("bash")["outcome_reason"], "shells are not for agents here");
    assert_eq!(of("edit")["authz"]["decision"], "allow");
    assert_eq!((decided.len(), of("edit")["run_id"].is_string()), (2, true), "{decided:?}");
}

#[tokio::test]
async fn a_cancelled_turn_rejects_its_questions() {
    let live = Live::start(On::Sqlite).await;
    let session = live.session().await;
    let (mut socket, _turn) = asking(&live, &session).await;
    socket.send(&json!({ "type": "cancel" })).await;
    let closed = socket.until_type("question_answered").await.pop().unwrap();
    assert_eq!(closed["payload"], json!({ "questionId": "que_1", "answers": [] }));
    let token = live.ada.token.clone();
    assert_eq!(answer(&live, &session, &token, "que_1", json!([["A"]])).await.0, 409);
}

#[tokio::test]
async fn neither_a_sandbox_nor_another_organization_answers() {
    let live = Live::start(On::Sqlite).await;
    let session = live.session().await;
    let (_socket, _turn) = asking(&live, &session).await;
    let sandbox = sandbox_token(&live.app, id(&session)).await;
    assert_eq!(answer(&live, &session, &sandbox, "que_1", json!([["A"]])).await.0, 401);
    let stranger = person(&live.app, org(&live.app).await, Role::Owner).await;
    assert_eq!(answer(&live, &session, &stranger.token, "que_1", json!([["A"]])).await.0, 404);
    let listed = live.ask("GET", "/v1/questions", Some(&stranger.token), &json!(null), None).await.1;
    assert_eq!(listed["questions"], json!([]));
}

#[tokio::test]
async fn a_question_that_nobody_answers_is_rejected_after_its_lifetime() {
    let clock = Clock::manual(Clock::system().now());
    let live = Live::with(Setup::sqlite().clock(&clock)).await;
    let session = live.session().await;
    let (socket, _turn) = asking(&live, &session).await;
    drop(socket);
    clock.advance(Duration::from_hours(7 * 24 - 1));
    let live = live.restarted().await;
    assert_eq!(live.app.store.open_questions(id(&session)).await.unwrap().len(), 1, "an hour is left");
    clock.advance(Duration::from_hours(2));
    let live = live.restarted().await;
    // The next start finds the question, although nobody opens its session.
    within(live.agent.wait_for_asked("/question/que_1/reject", 1)).await;
    assert!(live.app.store.open_questions(id(&session)).await.unwrap().is_empty());
}
