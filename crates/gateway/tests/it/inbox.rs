//! The inbox: what waits for a human, for those who may see it, in pages.

use gateway::AppState;
use proto::socket::{OpenQuestion, QuestionItem, QuestionKind};
use proto::{AutomationRunId, Role, SessionId};
use serde_json::{Value, json};
use store::{Advanced, NewQuestion, RunAdvance, RunStep};

use crate::actions::{agent, get, invoke, worlds};
use crate::people::{OrgOf3, service_token, some_uuid};
use crate::world::World;

/// Stores a question of the session's agent that is open for a day. Only before the first invocation: announcing that one
/// gives the session to its hub, whose ownership fences this write.
pub(crate) async fn ask(app: &AppState, session: SessionId) {
    let owned = app.store.own_session(session, "test").await.unwrap();
    let item = QuestionItem {
        question: "Which?".to_owned(),
        header: "Pick".to_owned(),
        options: Vec::new(),
        multiple: false,
        custom: true,
    };
    let question =
        OpenQuestion { question_id: "que.1".to_owned(), kind: QuestionKind::Question, questions: vec![item] };
    let now = app.clock.now();
    let new = NewQuestion {
        question,
        prompt_id: None,
        asked_at: now,
        expires_at: now + chrono::TimeDelta::days(1),
    };
    assert!(app.store.ask_question(&owned.owner, new).await.unwrap());
}

/// Starts a run of an automation, which takes these steps with this session. Nothing of the gateway takes part.
pub(crate) async fn run_after(
    world: &World,
    session: Option<SessionId>,
    steps: &[RunStep],
) -> AutomationRunId {
    let admin = async |path: &str, body: Value| {
        let answer = world.gateway.post(path, &body).bearer(world.team.token(Role::Admin)).send().await;
        assert_eq!(answer.status, 201, "{path}: {}", answer.text());
        answer.json()["id"].as_str().unwrap().to_owned()
    };
    let body = json!({"name": "Nightly <check>", "instructions": "canary of the instructions"});
    let automation = admin("/v1/automations", body).await;
    let run = admin(&format!("/v1/automations/{automation}/runs"), json!({})).await.parse().unwrap();
    for step in steps {
        let advance = RunAdvance {
            org_id: world.team.org,
            run_id: run,
            step: *step,
            session_id: session,
            reason: Some("canary of the reason".to_owned()),
            actor: "test".to_owned(),
            outbox_id: some_uuid(),
            at: world.gateway.app.clock.now(),
        };
        assert!(matches!(world.gateway.app.store.advance_run(advance).await.unwrap(), Advanced::To(_)));
    }
    run
}

/// The steps of a run that needs a human, because nobody answered its agent.
pub(crate) const UNANSWERED: [RunStep; 3] =
    [RunStep::SessionCreated, RunStep::PromptSent, RunStep::QuestionExpired];

fn kinds(body: &Value) -> Vec<&str> {
    body["entries"].as_array().unwrap().iter().map(|entry| entry["type"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn the_inbox_shows_what_waits_to_those_who_may_see_it() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        assert_eq!(
            get(&world, world.team.token(Role::Member), "/v1/inbox").await,
            (200, json!({"entries": []}))
        );
        ask(&world.gateway.app, own).await;
        let hidden =
            [json!({"password": "canary-5150"}), json!({"note": "n".repeat(10_240), "to": "canary"})];
        for params in hidden {
            let (status, body) = invoke(&world, &token, own, "effect.open", params).await;
            assert_eq!(status, 400, "an approver would not see everything: {body}");
            assert!(
                body["error"].as_str().unwrap().contains("would not see all of its parameters"),
                "{body}"
            );
        }
        let params = json!({"note": "hello"});
        assert_eq!(invoke(&world, &token, own, "effect.open", params).await.0, 202);
        for (role, decides) in [(Role::Member, false), (Role::Admin, true), (Role::Owner, true)] {
            let (status, body) = get(&world, world.team.token(role), "/v1/inbox").await;
            assert_eq!((status, kinds(&body)), (200, vec!["question", "approval"]), "{body}");
            assert!(!body.to_string().contains("canary"), "{body}");
            let [question, approval] = [&body["entries"][0], &body["entries"][1]];
            assert_eq!(
                (&approval["action"], &approval["canDecide"]),
                (&json!("effect.open"), &json!(decides))
            );
            assert_eq!((&question["questionId"], &question["canDecide"]), (&json!("que.1"), &json!(true)));
            assert_eq!(approval["session"]["id"], json!(own));
        }
        let (status, body) = get(&world, &world.token, "/v1/inbox").await;
        assert_eq!((status, kinds(&body)), (200, vec!["question", "approval"]), "a service: {body}");
        assert_eq!(body["entries"][1]["canDecide"], json!(false), "services do not approve");
        assert_eq!(get(&world, &token, "/v1/inbox").await.0, 403, "not for sandboxes");

        let other = OrgOf3::new(&world.gateway.app).await;
        let of_other = service_token(&world.gateway.app, Some(other.org));
        for foreign in [other.token(Role::Owner), of_other.as_str()] {
            assert_eq!(get(&world, foreign, "/v1/inbox").await, (200, json!({"entries": []})));
        }
    }
}

#[tokio::test]
async fn a_run_that_needs_a_human_is_in_the_inbox_of_members_until_one_settles_it() {
    for world in worlds().await {
        let (own, _) = agent(&world).await;
        let run = run_after(&world, Some(own), &UNANSWERED).await;
        run_after(&world, None, &[RunStep::CannotStart]).await;
        for role in [Role::Member, Role::Admin, Role::Owner] {
            let (status, body) = get(&world, world.team.token(role), "/v1/inbox").await;
            assert_eq!((status, kinds(&body)), (200, vec!["run"]), "a failed run waits for nobody: {body}");
            let entry = &body["entries"][0];
            assert_eq!((&entry["runId"], &entry["canDecide"]), (&json!(run), &json!(true)), "{entry}");
            assert_eq!(entry["session"]["id"], json!(own), "{entry}");
            let shown = [&entry["automationName"], &entry["reason"], &entry["assignedTo"]];
            assert_eq!(shown, [&json!("Nightly <check>"), &json!("canary of the reason"), &Value::Null]);
        }
        assert_eq!(get(&world, &world.token, "/v1/inbox").await, (200, json!({"entries": []})), "a service");
        let post = async |act: &str, body: Value| {
            let call = world.gateway.post(&format!("/v1/automation-runs/{run}/{act}"), &body);
            assert_eq!(call.bearer(world.team.token(Role::Member)).status().await, 200, "{act}");
            get(&world, world.team.token(Role::Owner), "/v1/inbox").await.1
        };
        let assigned = post("assign", json!({})).await;
        assert_eq!(assigned["entries"][0]["assignedTo"], json!(world.team.id(Role::Member)), "{assigned}");
        assert_eq!(post("resolve", json!({"outcome": "succeeded"})).await, json!({"entries": []}));
    }
}

#[tokio::test]
async fn the_inbox_is_read_in_pages() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        ask(&world.gateway.app, own).await;
        for _ in 0..3 {
            assert_eq!(invoke(&world, &token, own, "effect.open", json!({})).await.0, 202);
        }
        let (member, mut path, mut seen) =
            (world.team.token(Role::Member), "/v1/inbox?limit=1".to_owned(), Vec::new());
        loop {
            let (status, body) = get(&world, member, &path).await;
            assert_eq!(status, 200, "{body}");
            seen.extend(body["entries"].as_array().unwrap().clone());
            let Some(next) = body["next"].as_str() else { break };
            path = format!("/v1/inbox?limit=1&after={next}");
        }
        let (_, all) = get(&world, member, "/v1/inbox").await;
        assert_eq!((json!(seen), seen.len()), (all["entries"].clone(), 4), "each entry once, in order");
        for wrong in ["x", "1.2.3", "1.0.0.00000000-0000-0000-0000-000000000000.que", "1.0.9.x.y"] {
            assert_eq!(get(&world, member, &format!("/v1/inbox?after={wrong}")).await.0, 400, "{wrong}");
        }
    }
}
