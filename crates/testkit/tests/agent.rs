//! The agent by hand says nothing that the real one would not: every key of its events is in a recording.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Value, json};
use testkit::FakeAgent;

/// What an event is called, with the kind of part or speaker that it is about.
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

/// The paths of all keys, without what tools and people put in.
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

fn recorded() -> BTreeMap<String, BTreeSet<String>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../opencode/tests/recordings");
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
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
    let (mut text, recorded) = (String::new(), recorded());
    while !text.contains("\"type\":\"end\"") {
        text.push_str(&String::from_utf8_lossy(&events.chunk().await.unwrap().unwrap()));
    }
    let said: Vec<Value> =
        text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
    assert!(said.len() > 30, "{}", said.len());
    for event in said.iter().filter(|event| event["type"] != "end") {
        let mut found = BTreeSet::new();
        keys(event, "", &mut found);
        let known = recorded.get(&name(event)).unwrap_or_else(|| panic!("never recorded: {}", name(event)));
        let strange: Vec<_> = found.difference(known).collect();
        assert!(strange.is_empty(), "{}: {strange:?}", name(event));
    }
}

#[tokio::test]
async fn the_same_prompt_twice_is_one() {
    let agent = FakeAgent::start().await.unwrap();
    agent.behave(|manner| (manner.echoes, manner.lost_replies) = (true, 1));
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let session = session(&agent, &client).await;
    let url = format!("{}/session/{session}/prompt_async", agent.url());
    let body = json!({"messageID": "msg_p", "parts": [{"id": "prt_p", "type": "text", "text": "x"}]});
    assert!(client.post(&url).json(&body).send().await.is_err(), "its answer is lost");
    assert_eq!(client.post(&url).json(&body).send().await.unwrap().status(), 204);
    let history = client.get(format!("{}/session/{session}/message", agent.url())).send().await.unwrap();
    assert_eq!(history.json::<Value>().await.unwrap().as_array().unwrap().len(), 2);
}
