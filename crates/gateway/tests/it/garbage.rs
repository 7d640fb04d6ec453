//! Malformed requests on every route: the answer is a documented refusal in JSON, never a 5xx.

use proto::Role;
use serde_json::json;

use crate::call::Answer;
use crate::document::{Operation, operations};
use crate::harness::{Setup, TestGateway};
use crate::people::{OrgOf3, sandbox_token, some_uuid};

const RESPONSE_LIMIT: usize = 4096;

/// Meaningless bodies, each with a name.
fn bodies() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("no body", Vec::new()),
        ("a list", b"[]".to_vec()),
        ("an empty object", b"{}".to_vec()),
        ("null", b"null".to_vec()),
        ("a key twice", br#"{"a":1,"a":2}"#.to_vec()),
        ("a known key twice", br#"{"value":"a","value":"b","name":"a","name":"b"}"#.to_vec()),
        ("a rounded integer", br#"{"n":9007199254740993}"#.to_vec()),
        ("200 deep lists", ["[".repeat(200), "]".repeat(200)].concat().into_bytes()),
        ("200 deep objects", [r#"{"a":"#.repeat(200), "1".to_owned(), "}".repeat(200)].concat().into_bytes()),
        ("invalid UTF-8", b"{\"a\":\"\xff\xfe\"}".to_vec()),
        ("a lone surrogate", br#"{"a":"\ud800"}"#.to_vec()),
        ("a byte order mark", b"\xef\xbb\xbf{}".to_vec()),
        ("two values", b"{}{}".to_vec()),
        ("half a value", br#"{"a":"#.to_vec()),
        ("NaN", br#"{"a":NaN}"#.to_vec()),
        ("a NUL", b"{}\0".to_vec()),
    ]
}

fn assert_json_refusal(answer: &Answer, what: &str) {
    assert_eq!(answer.header("content-type"), Some("application/json"), "{what}: {}", answer.text());
    assert!(answer.json()["error"].is_string() || answer.json()["error"]["message"].is_string(), "{what}");
}

#[tokio::test]
async fn every_body_gets_a_documented_status() {
    let limit = RESPONSE_LIMIT.to_string();
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let gateway = setup.set("PROLIFERATE_MAX_BODY_BYTES", &limit).start().await;
        let team = OrgOf3::new(&gateway.app).await;
        for operation in operations(&gateway).await {
            for (name, body) in bodies() {
                let path = operation.at(&some_uuid().to_string());
                let call = gateway.call(&operation.method, &path).bearer(team.token(Role::Owner));
                let answer = call.header("content-type", "application/json").body(body).send().await;
                let what = format!("{} with {name}: {}", operation.name(), answer.text());
                assert!(
                    answer.status < 500 && operation.documents(answer.status),
                    "{} {what}",
                    answer.status
                );
                assert!(!operation.takes_body || answer.status >= 400, "{} {what}", answer.status);
                if answer.status >= 400 {
                    assert_json_refusal(&answer, &what);
                }
            }
        }
    }
}

#[tokio::test]
async fn oversized_bodies_are_413_with_or_without_a_content_length() {
    let gateway =
        Setup::sqlite().set("PROLIFERATE_MAX_BODY_BYTES", &RESPONSE_LIMIT.to_string()).start().await;
    let team = OrgOf3::new(&gateway.app).await;
    // Use an existing session: for a missing one, no route reads the body.
    let own = crate::people::session(&gateway.app, team.org).await;
    let session = own.to_string();
    let value = format!(r#"{{"value":"{}"}}"#, "x".repeat(RESPONSE_LIMIT));
    // The model proxy, prompts and files have their own limits. People have no access to `/mcp`, whose limit has a test of
    // its own.
    let others = ["/{id}/message", "/files/content", "/mcp"];
    let sandbox = sandbox_token(&gateway.app, own).await;
    let usual = |name: &str| !name.contains("/llm/") && !others.iter().any(|other| name.ends_with(other));
    for operation in operations(&gateway).await.into_iter().filter(|o| o.takes_body && usual(&o.name())) {
        let path = operation.at(&session);
        // Only a sandbox may send an invocation.
        let by_sandbox = operation.name().ends_with("/actions/invoke");
        let token = if by_sandbox { &sandbox } else { team.token(Role::Owner) };
        let call = || gateway.call(&operation.method, &path).bearer(token).body(value.clone());
        let told = call().header("content-length", value.len().to_string()).send().await;
        let untold = call().send().await;
        assert_eq!((told.status, untold.status), (413, 413), "{}", operation.name());
        assert!(operation.documents(413), "{}", operation.name());
        assert_json_refusal(&told, &operation.name());
    }
    let fits = json!({"value": "x".repeat(RESPONSE_LIMIT - r#"{"value":""}"#.len())});
    let set = gateway.call("PUT", "/v1/secrets/A").bearer(team.token(Role::Owner)).json(&fits);
    assert_eq!(set.status().await, 201, "exactly the limit is allowed");
}

#[tokio::test]
async fn every_path_gets_a_documented_status() {
    let long = "a".repeat(5000);
    let values = [
        "%00",
        "%ff%fe",
        "..%2f..%2fetc",
        "%2e%2e",
        "a%00b",
        "'%20OR%201=1",
        "%F0%9F%92%A9",
        long.as_str(),
        "-1",
    ];
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        for operation in operations(&gateway).await.into_iter().filter(Operation::has_holes) {
            for value in values {
                let call =
                    gateway.call(&operation.method, &operation.at(value)).bearer(team.token(Role::Owner));
                let answer = call.json(&json!({"role": "member", "value": "v"})).send().await;
                let what = format!("{} at {value}: {} {}", operation.name(), answer.status, answer.text());
                assert!((400..500).contains(&answer.status) && operation.documents(answer.status), "{what}");
                assert_json_refusal(&answer, &what);
            }
        }
    }
}

#[tokio::test]
async fn names_that_the_database_cannot_store_are_refused() {
    for gateway in TestGateway::both().await {
        let team = OrgOf3::new(&gateway.app).await;
        let long = "n".repeat(10_000);
        let cases = [
            ("POST", "/v1/keys", json!({"name": "a\u{0}b"})),
            ("POST", "/v1/keys", json!({"name": "\u{0}"})),
            ("POST", "/v1/keys", json!({"name": " \t "})),
            ("POST", "/v1/keys", json!({"name": "n".repeat(101)})),
            ("POST", "/v1/keys", json!({"name": "line\nbreak"})),
            ("POST", "/v1/members", json!({"email": "a\u{0}@b.co", "role": "member"})),
            ("POST", "/v1/members", json!({"email": "a@b.co\u{0}", "role": "member"})),
            ("POST", "/v1/members", json!({"email": "a@b.co", "name": "x\u{0}", "role": "member"})),
            ("POST", "/v1/members", json!({"email": "a@b.co", "name": "", "role": "member"})),
            ("POST", "/v1/members", json!({"email": "a@b.co", "name": long, "role": "member"})),
            ("POST", "/v1/members", json!({"email": "a b@c.co", "role": "member"})),
            ("POST", "/v1/members", json!({"email": "@b.co", "role": "member"})),
            ("POST", "/v1/members", json!({"email": format!("{}@b.co", "a".repeat(320)), "role": "member"})),
            ("POST", "/v1/members", json!({"email": "a@b.co", "role": "root"})),
            ("PUT", "/v1/secrets/A", json!({"value": "a\u{0}b"})),
            ("PUT", "/v1/secrets/A", json!({"value": "x".repeat(64 * 1024 + 1)})),
            (
                "PUT",
                "/v1/secrets/A",
                json!({"value": "v", "repoId": some_uuid(), "configurationId": some_uuid()}),
            ),
            ("PUT", "/v1/secrets/A", json!({"value": "v", "repoId": "x"})),
            ("PUT", "/v1/secrets/A", json!({"value": 7})),
            ("DELETE", "/v1/secrets/A?repoId=x", json!({})),
            ("DELETE", "/v1/secrets/A?repoId=%ff", json!({})),
        ];
        for (method, path, body) in cases {
            let answer = gateway.call(method, path).bearer(team.token(Role::Owner)).json(&body).send().await;
            let what = format!("{} {method} {path} {}: {}", gateway.app.store.backend(), body, answer.text());
            assert_eq!(answer.status, 400, "{}", what.chars().take(300).collect::<String>());
            assert_json_refusal(&answer, path);
        }
    }
}

#[tokio::test]
async fn a_refusal_does_not_repeat_what_was_sent() {
    const CANARY: &str = "9917331842";
    let gateway = TestGateway::sqlite().await;
    let team = OrgOf3::new(&gateway.app).await;
    let number: u64 = CANARY.parse().unwrap();
    for (method, path, body) in [
        ("PUT", "/v1/secrets/A", json!({"value": number})),
        ("PUT", "/v1/secrets/A", json!({"value": -9_917_331_842_i64})),
        ("PUT", "/v1/secrets/A", json!({"value": 0.991_733_184_2})),
        ("PUT", "/v1/secrets/A", json!({"value": [CANARY]})),
        ("PUT", "/v1/secrets/A", json!({"value": "v", "repoId": CANARY})),
        ("PUT", "/v1/secrets/A", json!(CANARY)),
        ("POST", "/v1/members", json!({"email": "a@b.co", "role": CANARY})),
        ("POST", "/v1/members", json!({"email": number, "role": "member"})),
        ("POST", "/v1/tickets", json!({"sessionId": CANARY, "kind": "socket"})),
        ("POST", "/v1/tickets", json!({"sessionId": some_uuid(), "kind": CANARY})),
        ("POST", "/v1/login", json!({"code": number})),
    ] {
        let answer = gateway.call(method, path).bearer(team.token(Role::Owner)).json(&body).send().await;
        let text = answer.text();
        assert_eq!(answer.status, 400, "{path} {body}: {text}");
        assert!(text.contains(" must be "), "the field and what it must be: {path} {body}: {text}");
        assert!(!text.contains(CANARY) && !text.contains("9917"), "{path} {body}: {text}");
    }
    let missing = gateway.call("PUT", "/v1/secrets/A").bearer(team.token(Role::Owner)).json(&json!({}));
    let missing = missing.send().await.text();
    assert!(missing.contains("\"value is required\""), "what is missing is named: {missing}");
}
