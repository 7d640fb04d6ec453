//! Parsing events of the current version, of other versions, and malformed ones.

use std::borrow::Cow;

use opencode::event::{Body, Event, PartKind, Status};
use serde_json::json;

fn parse(text: &str) -> Event<'_> {
    Event::parse(text.as_bytes()).unwrap()
}

#[test]
fn delta_texts_are_borrowed() {
    let text = r#"{"id":"evt_1","type":"message.part.delta","properties":{"sessionID":"s","messageID":"m","partID":"p","field":"text","delta":"words"}}"#;
    let event = parse(text);
    let Body::Delta { message, part, delta } = event.body else { panic!("{event:?}") };
    let borrowed = [&event.session, &message, &part, &delta];
    assert!(borrowed.iter().all(|text| matches!(text, Cow::Borrowed(_))), "{borrowed:?}");
    assert_eq!(borrowed, ["s", "m", "p", "words"]);
    let escaped = text.replace("words", r"a\nb\u00e9");
    let Body::Delta { delta, .. } = parse(&escaped).body else { panic!("not a delta") };
    assert_eq!(delta, "a\nbé");
}

#[test]
fn the_order_of_keys_and_unknown_keys_do_not_matter() {
    let text = r#"{"properties":{"later":[{}],"status":{"message":null,"type":"retry","attempt":3},"sessionID":"s"},"more":{},"type":"session.status"}"#;
    let event = parse(text);
    assert!(matches!(event.body, Body::Status(Status::Retry { attempt: 3, .. })), "{event:?}");
    assert_eq!(event.session, "s");
}

#[test]
fn unknown_events_are_ignored() {
    for text in [
        "{}",
        r#"{"type":"catalog.updated","properties":{}}"#,
        r#"{"type":"x","properties":{"sessionID":7,"delta":[1,{"a":null}],"part":"text","info":[],"status":1}}"#,
        r#"{"type":null}"#,
        r#"{"type":"message.part.delta","properties":{"field":"metadata","delta":"x"}}"#,
    ] {
        assert!(matches!(parse(text).body, Body::Other), "{text}");
    }
    let unknown = r#"{"type":"session.status","properties":{"status":{"type":"dancing"}}}"#;
    assert!(matches!(parse(unknown).body, Body::Status(Status::Unknown)));
    let unknown =
        r#"{"type":"message.part.updated","properties":{"part":{"id":"p","type":"hologram","text":7}}}"#;
    let Body::Part { part, .. } = parse(unknown).body else { panic!("not a part") };
    assert_eq!((part.kind, &*part.text), (PartKind::Other, ""));
}

#[test]
fn the_session_may_be_named_inside_the_object() {
    for (kind, key) in [("message.part.updated", "part"), ("message.updated", "info")] {
        let text = json!({ "type": kind, "properties": { key: { "id": "x", "sessionID": "inside" } } });
        assert_eq!(parse(&text.to_string()).session, "inside");
        let both =
            json!({ "type": kind, "properties": { "sessionID": "s", key: { "sessionID": "inside" } } });
        assert_eq!(parse(&both.to_string()).session, "s");
    }
}

#[test]
fn malformed_events_are_rejected() {
    let deep = format!(r#"{{"type":"x","properties":{{"part":{}"#, "[".repeat(200_000));
    for text in [
        "",
        "null",
        "{",
        r#"{"type":"a","type":"b"}"#,
        r#"{"type":"message.updated","properties":{}}"#,
        r#"{"type":"message.part.updated","properties":{"part":7}}"#,
        &deep,
    ] {
        assert!(Event::parse(text.as_bytes()).is_err(), "{text:.80}");
    }
    assert!(Event::parse(b"{\"type\":\"\xff\"}").is_err());
}
