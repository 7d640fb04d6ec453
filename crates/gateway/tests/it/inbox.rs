//! The inbox: what waits for a human, for those who may see it, in pages.

use proto::Role;
use proto::socket::{OpenQuestion, QuestionItem, QuestionKind};
use serde_json::{Value, json};
use store::NewQuestion;

use crate::actions::{agent, get, invoke, worlds};
use crate::people::{OrgOf3, service_token};
use crate::world::World;

/// Stores a question of the session's agent that is open for a day. Only before the first invocation: announcing that one
/// gives the session to its hub, whose ownership fences this write.
pub(crate) async fn ask(world: &World, session: proto::SessionId) {
    let app = &world.gateway.app;
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
        ask(&world, own).await;
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
async fn the_inbox_is_read_in_pages() {
    for world in worlds().await {
        let (own, token) = agent(&world).await;
        ask(&world, own).await;
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
