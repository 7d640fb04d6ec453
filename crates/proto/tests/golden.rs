//! JSON texts as other programs send and expect them, written by hand from the specification of the wire
//! format and never by our own serializer. Each text is parsed, compared with the expected value, serialized
//! again and compared with itself. Complete JSON values are compared, so an extra or missing key fails the
//! test.

#![expect(clippy::unwrap_used, reason = "test helpers may panic like tests")]
#![expect(clippy::panic, reason = "test helpers may panic like tests")]

#[path = "golden/client.rs"]
mod client;
#[path = "golden/http.rs"]
mod http;
#[path = "golden/identity.rs"]
mod identity;
#[path = "golden/server.rs"]
mod server;

use std::collections::BTreeSet;
use std::fmt::Debug;

use proto::socket::{ClientMessage, Frame, FrameError, Message, Part, ServerMessage};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Asserts that the text parses to the value and the value serializes to the text.
fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(text: &str, meant: &T) {
    let read: T = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"));
    assert_eq!(&read, meant, "{text}");
    let written = serde_json::to_string(meant).unwrap();
    assert_eq!(json(&written), json(text), "{text}");
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error} in {text}"))
}

/// An id whose last group is the given number.
fn id<T: From<uuid::Uuid>>(n: u128) -> T {
    T::from(uuid::Uuid::from_u128(n))
}

fn types_of(texts: impl Iterator<Item = &'static str>) -> BTreeSet<String> {
    texts.map(|text| json(text)["type"].as_str().unwrap().to_owned()).collect()
}

/// The type names that the enum itself knows, taken from its error message for an unknown name.
fn variants<T: DeserializeOwned>() -> BTreeSet<String> {
    let error = serde_json::from_str::<T>(r#"{"type":"no such type"}"#).err().unwrap().to_string();
    let (_, list) = error.split_once("expected one of ").unwrap();
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn every_client_message_has_a_golden_text() {
    let goldens = client::goldens();
    assert_eq!(types_of(goldens.iter().map(|(text, _)| *text)), set(ClientMessage::TYPES));
    assert_eq!(variants::<ClientMessage>(), set(ClientMessage::TYPES));
    for (text, meant) in goldens {
        check(text, &meant);
        assert_eq!(ClientMessage::parse(text).unwrap(), meant);
    }
}

#[test]
fn every_server_message_has_a_golden_text() {
    let goldens = server::goldens();
    assert_eq!(types_of(goldens.iter().map(|(text, _)| *text)), set(ServerMessage::TYPES));
    assert_eq!(variants::<ServerMessage>(), set(ServerMessage::TYPES));
    for (text, meant) in goldens {
        check(text, &meant);
        assert_eq!(Frame::parse(text).unwrap(), meant);
    }
}

#[test]
fn an_unknown_type_is_not_a_malformed_message() {
    let unknown =
        [r#"{"type":"dance","payload":7}"#, r#"{"type":"Ping"}"#, r#"{"type":"","x":[1,{"type":2}]}"#];
    for text in unknown {
        assert!(matches!(ClientMessage::parse(text), Err(FrameError::UnknownType)), "{text}");
        assert!(matches!(Frame::parse(text), Err(FrameError::UnknownType)), "{text}");
    }
    let from_both =
        ["", "ping", "[]", r#""ping""#, r#"{"type":"ping""#, "{}", r#"{"type":null}"#, r#"{"type":7}"#];
    let from_client = [
        r#"{"type":"ping","type":"cancel"}"#,
        r#"{"type":"prompt"}"#,
        r#"{"type":"prompt","content":7}"#,
        r#"{"type":"prompt","content":"x","images":"data:"}"#,
        r#"{"type":"run_auto_start","runId":"r","mode":"stop"}"#,
        r#"{"type":"git_commit","message":"m","files":[1]}"#,
    ];
    for text in from_both.iter().chain(&from_client) {
        assert!(matches!(ClientMessage::parse(text), Err(FrameError::Malformed(_))), "{text}");
    }
    let from_server = [r#"{"type":"status","payload":{"status":"starting"}}"#, r#"{"type":"token"}"#];
    for text in from_both.iter().chain(&from_server) {
        assert!(matches!(Frame::parse(text), Err(FrameError::Malformed(_))), "{text}");
    }
    let deep = format!(r#"{{"type":"prompt","content":"x","more":{}"#, "[".repeat(200_000));
    assert!(matches!(ClientMessage::parse(&deep), Err(FrameError::Malformed(_))));
}

#[test]
fn unknown_fields_are_ignored() {
    let cancel = ClientMessage::parse(r#"{"type":"cancel","userId":"u","later":{"a":[1]}}"#).unwrap();
    assert_eq!(cancel, ClientMessage::Cancel);
    let still_there = ClientMessage::parse(r#"{"more":null,"type":"ping"}"#).unwrap();
    assert_eq!(still_there, ClientMessage::Ping);
    let prompt = ClientMessage::parse(r#"{"userId":"someone else","type":"prompt","content":"x"}"#).unwrap();
    assert_eq!(prompt, ClientMessage::Prompt { content: "x".to_owned(), images: None });
    let pong = Frame::parse(r#"{"type":"pong","later":1}"#).unwrap();
    assert_eq!(pong, Frame::to_one(ServerMessage::Pong));
}

#[test]
fn optional_fields_may_also_be_null() {
    let text = r#"{"type":"git_commit","message":"m","files":null,"workspacePath":null}"#;
    let meant = ClientMessage::GitCommit {
        message: "m".to_owned(),
        include_untracked: false,
        files: None,
        workspace_path: None,
    };
    assert_eq!(ClientMessage::parse(text).unwrap(), meant);
}

#[test]
fn an_empty_tool_result_is_written_as_a_space() {
    let end = ServerMessage::ToolEnd {
        part_id: "p".to_owned(),
        tool_call_id: "c".to_owned(),
        tool: "bash".to_owned(),
        result: String::new(),
        duration_ms: 0,
        status: None,
    };
    assert_eq!(serde_json::to_value(Frame::to_one(end)).unwrap()["payload"]["result"], " ");
}

#[test]
fn messages_of_init_round_trip() {
    let texts = server::INIT_VECTOR;
    let messages: Vec<Message> = texts.iter().map(|text| serde_json::from_str(text).unwrap()).collect();
    for (text, message) in texts.iter().zip(&messages) {
        check(text, message);
    }
    let [m1, m2, m3] = &messages[..] else { panic!("three messages") };
    assert_eq!(m1.parts[1], Part::Image { image: "data:image/png;base64,AA".to_owned() });
    assert!(m2.is_complete && m2.tool_calls.len() == 1 && m2.parts.len() == 2);
    assert!(!m3.is_complete && !m3.interrupted && m3.parts.is_empty() && m3.content.is_empty());
}
