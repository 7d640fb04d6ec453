//! The fake agent behaves like the real one: every key of its events appears in a recording.

#![expect(clippy::unwrap_used, reason = "test helpers may panic like tests")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};
use testkit::FakeAgent;

/// The type of an event, with the kind of part, role, status or error that it is about.
fn name(event: &Value) -> String {
    let properties = &event["properties"];
    let more = [
        &properties["part"]["type"],
        &properties["info"]["role"],
        &properties["status"]["type"],
        &properties["error"]["name"],
    ];
    let more: Vec<_> = more.into_iter().filter_map(Value::as_str).collect();
    format!("{} {}", event["type"].as_str().unwrap_or_default(), more.join(" "))
}

/// The paths of all keys, without the content of tool inputs and metadata.
fn keys(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    if let Some(object) =
        value.as_object().filter(|_| !path.ends_with("/input") && !path.ends_with("/metadata"))
    {
        for (key, value) in object {
            let path = format!("{path}/{key}");
            keys(value, &path, found);
            found.insert(path);
        }
    }
}

fn recorded_keys() -> BTreeMap<String, BTreeSet<String>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../opencode/tests/recordings");
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
        for line in std::fs::read_to_string(&file).unwrap().lines() {
            let Ok(line) = serde_json::from_str::<Value>(line) else { continue };
            if line["kind"] == "event" {
                keys(&line["event"], "", all.entry(name(&line["event"])).or_default());
            }
        }
    }
    all
}

async fn session(agent: &FakeAgent, client: &reqwest::Client) -> String {
    let made =
        client.post(format!("{}/session", agent.url())).json(&json!({"title": "t"})).send().await.unwrap();
    made.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn every_event_has_the_shape_of_a_recorded_one() {
    let agent = FakeAgent::start().await.unwrap();
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let session = session(&agent, &client).await;
    let mut events = client.get(format!("{}/event", agent.url())).send().await.unwrap();
    for number in 0..3 {
        let body = json!({"messageID": format!("msg_p{number}"), "parts": [{"id": "prt_p", "type": "text", "text": "x"}]});
        let url = format!("{}/session/{session}/prompt_async", agent.url());
        assert_eq!(client.post(&url).json(&body).send().await.unwrap().status(), 204);
        let turn = agent.next_turn().await;
        turn.begin();
        turn.say("some ");
        turn.call("bash", &json!({"command": "ls"}), "a");
        match number {
            0 => turn.end(),
            1 => turn.fail("broken"),
            _ => {
                client.post(format!("{}/session/{session}/abort", agent.url())).send().await.unwrap();
            }
        }
    }
    agent.emit(&json!({"type": "end", "properties": {}}));
    let (mut text, recorded_keys) = (String::new(), recorded_keys());
    while !text.contains("\"type\":\"end\"") {
        text.push_str(&String::from_utf8_lossy(&events.chunk().await.unwrap().unwrap()));
    }
    let events_sent: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    assert!(events_sent.len() > 30, "{}", events_sent.len());
    for event in events_sent.iter().filter(|event| event["type"] != "end") {
        let mut found = BTreeSet::new();
        keys(event, "", &mut found);
        let known =
            recorded_keys.get(&name(event)).unwrap_or_else(|| panic!("never recorded: {}", name(event)));
        let unknown: Vec<_> = found.difference(known).collect();
        assert!(unknown.is_empty(), "{}: {unknown:?}", name(event));
    }
}

#[tokio::test]
async fn a_repeated_prompt_is_one_message() {
    let agent = FakeAgent::start().await.unwrap();
    agent.behave(|behavior| (behavior.echoes, behavior.lost_replies) = (true, 1));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let session = session(&agent, &client).await;
    let url = format!("{}/session/{session}/prompt_async", agent.url());
    let body = json!({"messageID": "msg_p", "parts": [{"id": "prt_p", "type": "text", "text": "x"}]});
    assert!(client.post(&url).json(&body).send().await.is_err(), "the response must be lost");
    assert_eq!(client.post(&url).json(&body).send().await.unwrap().status(), 204);
    let history = client.get(format!("{}/session/{session}/message", agent.url())).send().await.unwrap();
    assert_eq!(history.json::<Value>().await.unwrap().as_array().unwrap().len(), 2);
}
