//! Tests of the bounds of chat requests, and of the changes made to them.

use serde_json::{Value, json};

use super::super::weight::MAX_CONTEXT_TOKENS;
use super::*;

/// The bounds of a request with this message and these other fields.
fn bounds_of(content: &Value, more: &Value) -> Result<(usize, Bounds), String> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": content}]});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    let text = body.to_string();
    bounds(text.as_bytes()).map(|(_, bounds)| (text.len(), bounds))
}

fn beyond_bytes(content: &Value, more: &Value) -> Result<i64, String> {
    bounds_of(content, more).map(|(bytes, bounds)| bounds.input - i64::try_from(bytes).unwrap())
}

#[test]
fn input_is_bounded_by_bytes_and_images_and_files_by_what_they_can_cost() {
    let none = json!({});
    let data = format!("data:image/png;base64,{}", "A".repeat(100_000));
    let length = i64::try_from(data.len()).unwrap();
    let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
    let tools = json!({"tools": [{"type": "function", "function": {"name": "f"}}]});
    for (content, more, expected) in [
        (json!("hi"), &none, 0),
        (json!(null), &none, 0),
        (json!([{"type": "text", "text": "hi"}]), &none, 0),
        (json!([image(&data)]), &none, MAX_IMAGE_TOKENS - length),
        (json!([image(&data), image("https://a/b")]), &none, 2 * MAX_IMAGE_TOKENS - length - 11),
        (json!([{"type": "file", "file": {"file_id": "f"}}]), &none, MAX_CONTEXT_TOKENS),
        (json!("hi"), &tools, MAX_PREAMBLE_TOKENS),
        (json!("hi"), &json!({"response_format": {}}), MAX_PREAMBLE_TOKENS),
    ] {
        assert_eq!(beyond_bytes(&content, more), Ok(expected), "{content:.200} {more}");
    }
}

#[test]
fn requests_whose_cost_is_unknown_are_refused() {
    let text = json!("hi");
    for (content, more) in [
        (&text, json!({"n": 2})),
        (&text, json!({"service_tier": "priority"})),
        (&text, json!({"web_search_options": {}})),
        (&text, json!({"models": ["a", "b"]})),
        (&text, json!({"tools": [{"type": "web_search"}]})),
        (&text, json!({"max_tokens": 9, "max_completion_tokens": 9})),
        (&text, json!({"max_tokens": 1.5})),
        (&text, json!({"max_tokens": null})),
        (&text, json!({"modalities": ["audio"]})),
        (&json!([{"type": "input_audio", "input_audio": {}}]), json!({})),
    ] {
        assert!(bounds_of(content, &more).is_err(), "{content} {more}");
    }
    assert!(bounds_of(&text, &json!({"n": 1, "service_tier": "flex"})).is_ok());
}

#[test]
fn the_output_limit_is_read_from_either_field_or_added() {
    for (more, value, absent) in [
        (json!({"max_tokens": 7}), 7, false),
        (json!({"max_completion_tokens": 8}), 8, false),
        (json!({}), DEFAULT_OUTPUT, true),
    ] {
        let (_, bounds) = bounds_of(&json!("hi"), &more).unwrap();
        assert_eq!((bounds.output.value, bounds.output_is_absent), (value, absent), "{more}");
    }
}

#[test]
fn a_streamed_answer_must_report_its_usage() {
    let change = |text: &str, renames: bool| -> Value {
        serde_json::from_slice(&prepare_body(&Bytes::from(text.to_owned()), renames)).unwrap()
    };
    let usage = json!({"include_usage": true});
    for text in [
        r#"{"stream":true,"model":"m"}"#,
        r#" { "model":"m","stream":true}"#,
        r#"{"model":"m","stream":true,"stream_options":null}"#,
        r#"{"model":"m","stream":true,"stream_options":{"include_usage":false}}"#,
    ] {
        assert_eq!(
            change(text, false),
            json!({"model": "m", "stream": true, "stream_options": usage}),
            "{text}"
        );
    }
    for unchanged in [r#"{"stream":false,"max_tokens":1}"#, r#"{"model":"m"}"#, r#"{"stream":"yes"}"#, "x"] {
        assert_eq!(prepare_body(&Bytes::from(unchanged), false), unchanged);
    }
    let renamed = change(r#"{"model":"m","max_tokens" : 9,"stream":true}"#, true);
    let expected = json!({"model": "m", "max_completion_tokens": 9, "stream": true, "stream_options": usage});
    assert_eq!(renamed, expected);
    let escaped = r#"{"max\u005ftokens":9}"#;
    assert_eq!(prepare_body(&Bytes::from(escaped), true), escaped);
}
