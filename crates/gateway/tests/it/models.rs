//! Which model a session gets: from our table, from the list of a chat endpoint, or the default.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::{Router, routing};
use proto::Role;
use serde_json::{Value, json};

use crate::harness::Setup;
use crate::live::{Live, id};
use crate::model_proxy::serve;
use crate::people::person;

/// An endpoint whose list of models the test can change.
struct Endpoint {
    base: String,
    list: Arc<Mutex<(StatusCode, String)>>,
    reads: Arc<AtomicUsize>,
}

impl Endpoint {
    async fn listing(names: &[&str]) -> Self {
        let list = Arc::new(Mutex::new((StatusCode::OK, list_of(names))));
        let reads = Arc::new(AtomicUsize::new(0));
        let (shown, counter) = (Arc::clone(&list), Arc::clone(&reads));
        let answer = move || {
            counter.fetch_add(1, Ordering::SeqCst);
            let (status, body) = shown.lock().unwrap().clone();
            let location = (header::LOCATION, "http://127.0.0.1:1/v1/models");
            async move { (status, [location], body).into_response() as Response }
        };
        let address = serve(Router::new().route("/v1/models", routing::get(answer))).await;
        Self { base: format!("http://{address}/v1"), list, reads }
    }

    fn change(&self, status: u16, body: String) {
        *self.list.lock().unwrap() = (StatusCode::from_u16(status).unwrap(), body);
    }

    async fn live(&self, setup: Setup) -> Live {
        let live = Live::with(setup.set("OPENAI_BASE_URL", &self.base)).await;
        live.agent.behave(|manner| manner.echoes = false);
        live
    }
}

fn list_of(names: &[&str]) -> String {
    let data: Vec<_> = names.iter().map(|name| json!({ "id": name, "object": "model" })).collect();
    json!({ "object": "list", "data": data }).to_string()
}

async fn create(live: &Live, agent_config: Value) -> (u16, Value) {
    let body = json!({ "sessionType": "coding", "clientType": "web", "agentConfig": agent_config });
    live.ask("POST", "/proliferate/sessions", Some(&live.ada.token), &body, None).await
}

/// The stored id of the session's model, and the model that its agent is prompted with.
async fn chosen(live: &Live, agent_config: Value) -> (Option<String>, String) {
    let (status, answer) = create(live, agent_config).await;
    assert_eq!(status, 201, "{answer}");
    let session = answer["sessionId"].as_str().unwrap();
    let record = live.app.store.session_any(id(session)).await.unwrap().unwrap();
    live.prompt(session, "hi").await;
    let turn = live.next_turn().await;
    (record.agent_config.and_then(|config| config.model_id), turn.model)
}

#[tokio::test]
async fn a_model_that_nobody_serves_is_refused_with_the_fields_name() {
    let endpoint = Endpoint::listing(&["qwen3:8b", "gpt-5.2"]).await;
    let only_chat = endpoint.live(Setup::sqlite()).await;
    let only_messages = Live::with(Setup::sqlite().set("ANTHROPIC_API_KEY", "k")).await;
    let scripted = Live::with(Setup::sqlite()).await;
    for (live, model, why) in [
        (&only_chat, "claude-opus-4.6", "Claude Opus 4.6 needs ANTHROPIC_API_KEY, which is not set"),
        (&only_chat, "llama", "No configured provider serves the model llama"),
        (&only_chat, "codestral", "No configured provider serves the model codestral"),
        (&only_chat, "two words", "No configured provider serves the model two words"),
        (&only_messages, "gpt-5.2", "GPT-5.2 needs OPENAI_BASE_URL, which is not set"),
        (&only_messages, "gpt-2", "No configured provider serves the model gpt-2"),
        (&scripted, "gpt-2", "No configured provider serves the model gpt-2"),
    ] {
        let (status, answer) = create(live, json!({ "modelId": model })).await;
        assert_eq!(
            (status, &answer["error"]),
            (400, &json!(format!("agentConfig.modelId: {why}"))),
            "{answer}"
        );
    }
    let (status, answer) = create(&scripted, json!({ "reasoningEffort": "extreme" })).await;
    assert_eq!(status, 400, "{answer}");
    assert!(answer["error"].as_str().unwrap().contains("reasoningEffort"), "{answer}");
}

#[tokio::test]
async fn a_listed_model_is_used_under_its_listed_name() {
    let endpoint = Endpoint::listing(&["qwen3:8b", "openai/gpt-5.2", "claude-sonnet-4-6"]).await;
    let live = endpoint.live(Setup::sqlite().set("ANTHROPIC_API_KEY", "k")).await;
    for (wanted, stored, used) in [
        ("qwen3:8b", "qwen3:8b", "litellm/qwen3:8b"),
        ("litellm/qwen3:8b", "qwen3:8b", "litellm/qwen3:8b"),
        ("gpt-5-2", "openai/gpt-5.2", "litellm/openai/gpt-5.2"),
        ("claude-opus-4-6", "claude-opus-4.6", "anthropic/claude-opus-4-6"),
        ("claude-sonnet-4-6", "claude-sonnet-4.6", "anthropic/claude-sonnet-4-6"),
        ("litellm/claude-sonnet-4-6", "litellm/claude-sonnet-4-6", "litellm/claude-sonnet-4-6"),
    ] {
        let chosen = chosen(&live, json!({ "modelId": wanted })).await;
        assert_eq!(chosen, (Some(stored.to_owned()), used.to_owned()), "{wanted}");
    }
    assert_eq!(chosen(&live, json!({})).await.1, "anthropic/claude-sonnet-4-6", "the default");
    assert_eq!(endpoint.reads.load(Ordering::SeqCst), 1, "the list is cached");
}

#[tokio::test]
async fn an_endpoint_alone_provides_the_default_model_unless_the_operator_names_one() {
    let endpoint = Endpoint::listing(&["first", "second"]).await;
    let live = endpoint.live(Setup::sqlite()).await;
    assert_eq!(chosen(&live, json!({})).await, (None, "litellm/first".to_owned()));
    let named = endpoint.live(Setup::sqlite().set("DEFAULT_MODEL", "second")).await;
    assert_eq!(chosen(&named, json!({})).await.1, "litellm/second");
    // An endpoint without a list can still be used, with the model that the operator names.
    endpoint.change(404, String::new());
    let unlisted = endpoint.live(Setup::sqlite().set("DEFAULT_MODEL", "hidden")).await;
    assert_eq!(chosen(&unlisted, json!({})).await.1, "litellm/hidden");
    assert_eq!(chosen(&unlisted, json!({ "modelId": "hidden" })).await.1, "litellm/hidden");
}

#[tokio::test]
async fn a_hostile_model_list_is_bounded_and_not_trusted() {
    let endpoint = Endpoint::listing(&[]).await;
    let huge = list_of(&["x".repeat(5 << 20).as_str()]);
    for (status, body) in [
        (200, huge),
        (200, "{".to_owned()),
        (200, "[]".to_owned()),
        (307, list_of(&["m"])),
        (500, list_of(&["m"])),
    ] {
        endpoint.change(status, body);
        let live = endpoint.live(Setup::sqlite()).await;
        let (status, answer) = create(&live, json!({ "modelId": "m" })).await;
        assert_eq!((status, &answer["code"]), (503, &json!("unavailable")), "{answer}");
    }
    let before = endpoint.reads.load(Ordering::SeqCst);
    let live = endpoint.live(Setup::sqlite()).await;
    for _ in 0..3 {
        assert_eq!(create(&live, json!({ "modelId": "m" })).await.0, 503);
    }
    assert_eq!(
        endpoint.reads.load(Ordering::SeqCst),
        before + 1,
        "a broken endpoint is not asked all the time"
    );
}

#[tokio::test]
async fn reasoning_effort_reaches_the_agent_as_a_variant() {
    let live = Live::with(Setup::sqlite()).await;
    for (effort, variant) in [("quick", Some("low")), ("normal", None), ("deep", Some("high"))] {
        let session = live.session_with(&json!({ "agentConfig": { "reasoningEffort": effort } })).await;
        live.prompt(&session, "hi").await;
        assert_eq!(live.next_turn().await.variant.as_deref(), variant, "{effort}");
    }
}

#[tokio::test]
async fn the_model_of_an_automation_must_be_served_too() {
    let endpoint = Endpoint::listing(&["qwen3:8b"]).await;
    let live = endpoint.live(Setup::sqlite()).await;
    let owner = person(&live.app, live.ada.org, Role::Owner).await;
    let ask = async |method: &str, path: &str, body: Value| {
        live.ask(method, path, Some(&owner.token), &body, None).await
    };
    let create = |model: &str| {
        let body = json!({ "name": "a", "instructions": "b", "model": model });
        ask("POST", "/v1/automations", body)
    };
    let (status, made) = create("litellm/qwen3:8b").await;
    assert_eq!((status, &made["model"]), (201, &json!("qwen3:8b")), "{made}");
    let path = format!("/v1/automations/{}", made["id"].as_str().unwrap());
    for (model, why) in [
        ("claude-opus-4.6", "model: Claude Opus 4.6 needs ANTHROPIC_API_KEY, which is not set"),
        ("llama", "model: No configured provider serves the model llama"),
    ] {
        let created = create(model).await;
        let changed = ask("PATCH", &path, json!({ "model": model })).await;
        for (status, answer) in [created, changed] {
            assert_eq!((status, &answer["error"]), (400, &json!(why)), "{answer}");
        }
    }
    // A change of something else does not depend on the endpoint.
    endpoint.change(500, String::new());
    let (status, renamed) = ask("PATCH", &path, json!({ "name": "c" })).await;
    assert_eq!((status, &renamed["model"]), (200, &json!("qwen3:8b")), "{renamed}");
}

async fn set_model(live: &Live, session: &str, model: &str) -> (u16, Value) {
    let path = format!("/proliferate/{session}/model");
    live.ask("PUT", &path, Some(&live.ada.token), &json!({ "modelId": model }), None).await
}

#[tokio::test]
async fn the_model_can_be_changed_and_holds_from_the_next_prompt_on() {
    let endpoint = Endpoint::listing(&["qwen3:8b"]).await;
    let live = endpoint.live(Setup::sqlite().set("ANTHROPIC_API_KEY", "k")).await;
    let config = json!({ "modelId": "claude-opus-4.6", "reasoningEffort": "deep" });
    let session = live.session_with(&json!({ "agentConfig": config })).await;
    let mut socket = live.running(&session).await;
    live.prompt(&session, "one").await;
    let running = live.next_turn().await;
    assert_eq!(running.model, "anthropic/claude-opus-4-6");
    // A prompt that waits for its turn is not sent yet.
    live.prompt(&session, "two").await;
    let (status, answer) = set_model(&live, &session, "litellm/qwen3:8b").await;
    assert_eq!((status, &answer), (200, &json!({ "modelId": "qwen3:8b" })));
    let update = socket.until_type("model_update").await.pop().unwrap();
    assert_eq!(update["payload"], json!({ "modelId": "qwen3:8b" }));
    assert!(update["seq"].is_number(), "{update}");
    running.answer("done");
    let next = live.next_turn().await;
    assert_eq!((next.model.as_str(), next.variant.as_deref()), ("litellm/qwen3:8b", Some("high")));
    next.answer("done");
    socket.until_turns(2).await;
    socket.send(&json!({ "type": "set_model", "modelId": "claude-sonnet-4-6" })).await;
    let update = socket.until_type("model_update").await.pop().unwrap();
    assert_eq!(update["payload"], json!({ "modelId": "claude-sonnet-4.6" }));
    // The change is stored.
    let live = live.restarted().await;
    let listed = live.get("/proliferate/sessions").await;
    assert_eq!(listed["sessions"][0]["modelId"], "claude-sonnet-4.6");
    live.prompt(&session, "three").await;
    assert_eq!(live.next_turn().await.model, "anthropic/claude-sonnet-4-6");
}

/// Nobody can add a model to an agent that somebody else runs.
#[tokio::test]
async fn a_prompt_for_a_model_that_an_attached_agent_does_not_know_fails_with_the_reason() {
    let endpoint = Endpoint::listing(&["qwen3:8b", "later"]).await;
    let live = endpoint.live(Setup::sqlite()).await;
    live.agent.behave(|agent| agent.models = Some(vec!["qwen3:8b".to_owned()]));
    let session = live.session_with(&json!({ "agentConfig": { "modelId": "later" } })).await;
    let mut socket = live.running(&session).await;
    live.prompt(&session, "one").await;
    let error = socket.until_type("error").await.pop().unwrap();
    let reason = error["payload"]["message"].as_str().unwrap();
    assert!(reason.starts_with("The agent does not know the model litellm/later: "), "{reason}");
    socket.until_type("turn_complete").await;
    assert!(live.agent.asked("/prompt_async").is_empty());
    assert_eq!(set_model(&live, &session, "qwen3:8b").await.0, 200);
    live.prompt(&session, "two").await;
    assert_eq!(live.next_turn().await.model, "litellm/qwen3:8b");
}

#[tokio::test]
async fn a_change_to_a_model_that_cannot_be_used_is_refused_and_changes_nothing() {
    let endpoint = Endpoint::listing(&["qwen3:8b", "free"]).await;
    let live = endpoint.live(Setup::sqlite().set("MODEL_PRICES", "qwen3:8b=1/2")).await;
    live.app.store.set_org_limits(live.ada.org, Some(1_000_000), None).await.unwrap();
    let session = live.session_with(&json!({ "agentConfig": { "modelId": "qwen3:8b" } })).await;
    let mut socket = live.running(&session).await;
    let unset = "modelId: Claude Opus 4.6 needs ANTHROPIC_API_KEY, which is not set";
    for (model, status, why) in [
        ("claude-opus-4.6", 400, unset),
        ("llama", 400, "modelId: No configured provider serves the model llama"),
        ("", 400, "modelId: No configured provider serves the model "),
        ("free", 402, "The model free has no price"),
    ] {
        let (answered, answer) = set_model(&live, &session, model).await;
        assert_eq!(answered, status, "{answer}");
        assert!(answer["error"].as_str().unwrap().starts_with(why), "{answer}");
        socket.send(&json!({ "type": "set_model", "modelId": model })).await;
        let error = socket.until_type("error").await.pop().unwrap();
        assert!(error["payload"]["message"].as_str().unwrap().starts_with(why), "{error}");
    }
    live.prompt(&session, "hi").await;
    assert_eq!(live.next_turn().await.model, "litellm/qwen3:8b");
}
