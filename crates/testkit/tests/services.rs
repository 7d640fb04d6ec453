//! The scripted model and the effect recorder over real sockets.

#![expect(clippy::unwrap_used, reason = "test helpers may panic like tests")]

use std::time::Duration;

use model::{MAX_BODY, Script};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use testkit::{EffectRecorder, Plan, ScriptedModel};

fn client() -> Client {
    Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().unwrap()
}

async fn scripted(script: &str) -> ScriptedModel {
    ScriptedModel::start(Script::parse(script).unwrap()).await.unwrap()
}

fn prompt(text: &str, stream: bool) -> Value {
    json!({ "model": "m", "max_tokens": 9, "stream": stream, "messages": [{ "role": "user", "content": text }] })
}

#[tokio::test]
async fn the_model_streams_its_answer_and_records_the_request() {
    let model =
        scripted("[[rule]]\n[[rule.step]]\ntext = \"hello {prompt}\"\nchunk = 3\ndelta_delay_ms = 1").await;
    let url = format!("{}/v1/messages?beta=true", model.url());
    let reply = client().post(url).header("x-api-key", "k").json(&prompt("you", true)).send().await.unwrap();
    assert_eq!(reply.status(), StatusCode::OK);
    assert_eq!(reply.headers()["content-type"], "text/event-stream; charset=utf-8");
    let text = reply.text().await.unwrap();
    assert!(text.starts_with("event: message_start\ndata: {"), "{text}");
    assert!(text.contains(r#""text":"hel""#) && text.contains(r#""text":"you""#), "{text}");
    assert!(text.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"), "{text}");

    model.wait_for_requests(1).await;
    let [seen] = &model.requests()[..] else { panic!("{:?}", model.requests()) };
    assert_eq!((seen.method.as_str(), seen.path.as_str()), ("POST", "/v1/messages?beta=true"));
    assert_eq!(seen.headers["x-api-key"], "k");
    assert_eq!(seen.json(), prompt("you", true));
}

#[tokio::test]
async fn a_scripted_cut_breaks_the_connection_after_exactly_the_given_events() {
    let model =
        scripted("[[rule]]\n[[rule.step]]\ntext = \"abcdef\"\nchunk = 1\ndrop_after = 4\ndrop_times = 1")
            .await;
    let url = format!("{}/v1/messages", model.url());
    let mut reply = client().post(&url).json(&prompt("x", true)).send().await.unwrap();
    let mut text = String::new();
    let error = loop {
        match reply.chunk().await {
            Ok(Some(chunk)) => text.push_str(std::str::from_utf8(&chunk).unwrap()),
            Ok(None) => panic!("the body ended as if it were complete: {text}"),
            Err(error) => break error,
        }
    };
    assert!(error.is_body() || error.is_decode() || error.is_request(), "{error:?}");
    assert_eq!(text.matches("event: ").count(), 4, "{text}");
    let whole = client().post(&url).json(&prompt("x", true)).send().await.unwrap().text().await.unwrap();
    assert!(whole.contains("message_stop"));
}

#[tokio::test]
async fn conversations_are_distinguished_by_their_header() {
    let script =
        "[[rule]]\n[[rule.step]]\ntext = \"ok\"\nerror = { status = 529, message = \"full\", times = 1 }";
    let model = scripted(script).await;
    let mut statuses = Vec::new();
    for session in ["ses_a", "ses_a", "ses_b"] {
        let request = client().post(format!("{}/v1/messages", model.url())).header("x-session-id", session);
        statuses.push(request.json(&prompt("x", false)).send().await.unwrap().status().as_u16());
    }
    assert_eq!(statuses, [529, 200, 529]);
}

#[tokio::test]
async fn an_oversized_body_is_rejected() {
    let model = scripted("[[rule]]\n[[rule.step]]\ntext = \"ok\"").await;
    let request = client().post(format!("{}/v1/messages", model.url())).body(vec![b' '; MAX_BODY + 1]);
    assert_eq!(request.send().await.unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn dropping_the_model_closes_its_streams() {
    let model = scripted("[[rule]]\n[[rule.step]]\ntext = \"abc\"\nchunk = 1\ndelta_delay_ms = 60000").await;
    let url = format!("{}/v1/messages", model.url());
    let mut reply = client().post(&url).json(&prompt("x", true)).send().await.unwrap();
    assert!(reply.chunk().await.unwrap().is_some());
    drop(model);
    let end = loop {
        match reply.chunk().await {
            Ok(Some(_)) => {}
            end => break end,
        }
    };
    assert!(!end.unwrap_err().is_timeout(), "the stream was left open");
    assert!(client().post(&url).send().await.unwrap_err().is_connect());
}

#[tokio::test]
async fn effects_are_counted_by_key_and_listed_in_order() {
    let recorder = EffectRecorder::start().await.unwrap();
    let post = |key: &str| client().post(format!("{}/effects/{key}", recorder.url()));
    post("s1:call%2F1").header("x-epoch", "3").json(&json!({ "n": 1 })).send().await.unwrap();
    let second = post("s2").send().await.unwrap();
    assert_eq!(second.json::<Value>().await.unwrap(), json!({ "key": "s2", "count": 1 }));
    assert!(recorder.repeated().is_empty());
    let third = post("s2").header("x-epoch", "4").send().await.unwrap();
    assert_eq!(third.json::<Value>().await.unwrap(), json!({ "key": "s2", "count": 2 }));

    assert_eq!((recorder.count("s1:call/1"), recorder.count("s2"), recorder.count("s3")), (1, 2, 0));
    assert_eq!(recorder.repeated(), [("s2".to_owned(), 2)]);
    let seen: Vec<_> =
        recorder.all().into_iter().map(|effect| (effect.key, effect.epoch, effect.body)).collect();
    let expected =
        [("s1:call/1", Some(3), json!({ "n": 1 })), ("s2", None, Value::Null), ("s2", Some(4), Value::Null)];
    assert_eq!(seen, expected.map(|(key, epoch, body)| (key.to_owned(), epoch, body)));
    let listed = client().get(format!("{}/effects", recorder.url())).send().await.unwrap();
    let listed = listed.json::<Value>().await.unwrap();
    assert_eq!(listed["counts"], json!({ "s1:call/1": 1, "s2": 2 }));
    assert_eq!(listed["order"][2], json!({ "key": "s2", "epoch": 4, "body": null }));
}

#[tokio::test]
async fn a_planned_hang_up_follows_the_effect_and_applies_to_one_call() {
    let recorder = EffectRecorder::start().await.unwrap();
    recorder.plan_next(Plan { hang_up: true, ..Plan::default() });
    recorder.plan_next(Plan { status: 503, delay: Duration::from_millis(1), ..Plan::default() });
    let post = || client().post(format!("{}/effects/k", recorder.url())).send();
    let error = post().await.unwrap_err();
    assert!(error.is_request() && !error.is_connect() && !error.is_timeout(), "{error:?}");
    recorder.wait_for_effects(1).await;
    assert_eq!(recorder.count("k"), 1, "the effect must be counted although the caller got no answer");
    assert_eq!(post().await.unwrap().status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(post().await.unwrap().status(), StatusCode::OK);
    recorder.plan_always(Plan { status: 500, ..Plan::default() });
    assert_eq!(post().await.unwrap().status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(recorder.count("k"), 4);
}

#[tokio::test]
async fn invalid_effects_are_rejected_and_not_counted() {
    let recorder = EffectRecorder::start().await.unwrap();
    let post = |key: &str, body: Vec<u8>| {
        client().post(format!("{}/effects/{key}", recorder.url())).body(body).send()
    };
    assert_eq!(post("k", b"not json".to_vec()).await.unwrap().status(), StatusCode::BAD_REQUEST);
    assert_eq!(post(&"k".repeat(513), Vec::new()).await.unwrap().status(), StatusCode::INSUFFICIENT_STORAGE);
    assert_eq!(post("k", vec![b' '; 1024 * 1024 + 1]).await.unwrap().status(), StatusCode::PAYLOAD_TOO_LARGE);
    assert!(recorder.all().is_empty());
}
