//! Tests of metering, with both APIs.

use super::*;

const STREAMED_RESPONSE: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"m-1\",\"usage\":{\"input_tokens\":10,\
    \"cache_read_input_tokens\":3,\"output_tokens\":1}}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n\
    data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"\\\"usage\\\":{}\"}}\n\n\
    event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":42}}\n\n";

const MESSAGES_REQUEST: &str = r#"{"model":"asked","max_tokens":64000,"messages":[]}"#;

fn prices() -> Prices {
    Prices::parse("*=1000000/1000000").unwrap()
}

fn meter(streamed: bool) -> Meter {
    let mut meter = Meter::new(ModelRequest::of(Protocol::Messages, MESSAGES_REQUEST.as_bytes()));
    meter.start(streamed);
    meter
}

#[test]
fn a_stream_is_metered_however_it_is_split() {
    for size in [1, 2, 7, 64, 10_000] {
        let mut meter = meter(true);
        for piece in STREAMED_RESPONSE.as_bytes().chunks(size) {
            meter.pass(&Bytes::copy_from_slice(piece));
        }
        let (model, used) = meter.usage(&Prices::default());
        assert_eq!((used.input_tokens, used.output_tokens, used.cache_read_tokens), (10, 42, 3), "{size}");
        assert_eq!(model, "m-1");
    }
}

#[test]
fn an_aborted_stream_is_charged_by_what_was_shown() {
    let (begin, _) = STREAMED_RESPONSE.split_once("event: message_delta").unwrap();
    let mut cut = meter(true);
    cut.pass(&Bytes::from(begin));
    for delta in ["text", "thinking", "partial_json"] {
        let line = format!("data: {{\"delta\":{{\"{delta}\":\"{}\"}}}}\n", "x".repeat(400));
        cut.pass(&Bytes::from(line));
    }
    cut.pass(&Bytes::from(format!("data: {}\n", "x".repeat(LONGEST_LINE * 2))));
    let (_, used) = cut.usage(&prices());
    assert_eq!(used.input_tokens, 10);
    assert_eq!(used.output_tokens, 64_000, "all that it was asked for, as more was said");
    let mut short = meter(true);
    short.pass(&Bytes::from(begin));
    short.pass(&Bytes::from_static(b"data: {\"delta\":{\"text\":\"hello\"}}\n"));
    let used = short.usage(&prices()).1.output_tokens;
    assert!((5..50).contains(&used), "a token for a byte: {used}");
    // The model's thinking is not streamed completely.
    let asked = ModelRequest::of(
        Protocol::Messages,
        br#"{"model":"m","max_tokens":9000,"messages":[],"thinking":{"type":"enabled","budget_tokens":5000}}"#,
    );
    let mut thinking = Meter::new(asked);
    thinking.pass(&Bytes::from(begin));
    assert_eq!(thinking.usage(&prices()).1.output_tokens, 9000);
    let whole = {
        let mut whole = meter(false);
        whole.pass(&Bytes::from("x".repeat(400)));
        whole
    };
    assert_eq!(whole.usage(&prices()).1.output_tokens, 64_000, "half of it shows nothing");
    assert_eq!(meter(false).usage(&prices()).1.output_tokens, 64_000);
    let unanswered =
        Meter::new(ModelRequest::of(Protocol::Messages, MESSAGES_REQUEST.as_bytes())).usage(&prices()).1;
    assert_eq!(unanswered.output_tokens, 64_000, "nobody knows how far it came");
    // The output cannot exceed what was requested.
    let mut endless = meter(true);
    endless.pass(&Bytes::from(format!("data: {}\n", "x".repeat(1_000_000))));
    assert_eq!(endless.usage(&prices()).1.output_tokens, 64_000);
    // Before the first event, only the worst case of the request is known.
    let (model, used) = meter(true).usage(&prices());
    let most = i64::try_from(MESSAGES_REQUEST.len()).unwrap();
    assert_eq!((model.as_str(), used.cache_write_tokens, used.output_tokens), ("unknown", most, 0));
    assert_eq!((used.input_tokens, used.cost_micros), (0, most * 1_250_000));
}

#[test]
fn tokens_cached_for_an_hour_cost_more() {
    let mut kept = meter(false);
    kept.pass(&Bytes::from_static(
        br#"{"usage":{"input_tokens":1,"output_tokens":0,"cache_creation_input_tokens":30,
        "cache_creation":{"ephemeral_5m_input_tokens":10,"ephemeral_1h_input_tokens":20}}}"#,
    ));
    let (_, used) = kept.usage(&prices());
    assert_eq!((used.cache_write_tokens, used.cost_micros), (30, 1_000_000 + 12_500_000 + 40_000_000));
}

#[test]
fn a_complete_response_is_metered_and_negative_numbers_count_as_none() {
    let mut whole = meter(false);
    whole.pass(&Bytes::from_static(br#"{"content":[],"usage":{"input_tokens":5,"#));
    whole.pass(&Bytes::from_static(br#""output_tokens":6}}"#));
    let (_, used) = whole.usage(&prices());
    assert_eq!((used.requests, used.input_tokens, used.output_tokens), (1, 5, 6));
    let mut odd = meter(true);
    odd.pass(&Bytes::from(format!("data: {}", "x".repeat(LONGEST_LINE * 3))));
    assert!(odd.line.len() <= LONGEST_LINE * 3 + 10 && odd.skipping);
    odd.pass(&Bytes::from_static(b"\ndata: {\"usage\":{\"output_tokens\":-5}}\n"));
    assert_eq!(odd.usage(&prices()).1.output_tokens, 0, "nobody earns tokens");
}

const CHAT_REQUEST: &str = r#"{"model":"asked","max_tokens":500,"messages":[]}"#;

fn chat(streamed: bool) -> Meter {
    let mut meter = Meter::new(ModelRequest::of(Protocol::Chat, CHAT_REQUEST.as_bytes()));
    meter.start(streamed);
    meter
}

fn metered(mut meter: Meter, text: &str, complete: bool) -> (String, Usage) {
    for chunk in text.as_bytes().chunks(7) {
        meter.pass(&Bytes::copy_from_slice(chunk));
    }
    if complete {
        meter.end();
    }
    meter.usage(&prices())
}

/// A stream of ten shown bytes, with and without its last chunk.
fn chunks(usage: bool) -> String {
    let delta = |delta: &str| format!("data: {{\"model\":\"m-2\",\"choices\":[{{\"delta\":{delta}}}]}}\n\n");
    let mut text = delta(r#"{"role":"assistant","content":""}"#) + &delta(r#"{"reasoning_content":"hm"}"#);
    text += &delta(r#"{"content":"hallo"}"#);
    text += &delta(r#"{"tool_calls":[{"index":0,"function":{"name":"f","arguments":"{}"}}]}"#);
    text += "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    if usage {
        text += "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":40,\"completion_tokens\":3,\"total_tokens\":50}}\n\n";
    }
    text + "data: [DONE]\n\n"
}

#[test]
fn a_chat_stream_is_metered_by_its_last_chunk() {
    let (model, used) = metered(chat(true), &chunks(true), true);
    assert_eq!(
        (model.as_str(), used.input_tokens, used.output_tokens),
        ("m-2", 40, 10),
        "hidden thoughts count"
    );
    assert_eq!(used.cost_micros, 50_000_000);
}

#[test]
fn a_chat_answer_without_usage_is_charged_by_its_bytes() {
    let request = i64::try_from(CHAT_REQUEST.len()).unwrap();
    let (_, used) = metered(chat(true), &chunks(false), false);
    assert_eq!((used.input_tokens, used.output_tokens), (request, 10));
    let body = r#"{"model":"m","choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#;
    let (model, used) = metered(chat(false), body, true);
    let bytes = i64::try_from(body.len()).unwrap();
    assert_eq!((model.as_str(), used.input_tokens, used.output_tokens), ("m", request, bytes));
    for odd in ["<html>", "{\"usage\":7}", "{\"usage\":{\"prompt_tokens\":1.5}}", ""] {
        let (model, used) = metered(chat(false), odd, true);
        let bytes = i64::try_from(odd.len()).unwrap();
        assert_eq!(
            (model.as_str(), used.input_tokens, used.output_tokens),
            ("unknown", request, bytes),
            "{odd}"
        );
    }
    let (_, used) = metered(chat(true), &format!("data: {}", "x".repeat(LONGEST_LINE * 2)), true);
    assert_eq!(used.output_tokens, 500, "no more than was requested");
}

#[test]
fn an_aborted_chat_answer_is_charged_its_worst_case() {
    let stream = chunks(true);
    let (cut, _) = stream.split_once("data: {\"choices\":[{\"delta\":{},").unwrap();
    assert_eq!(metered(chat(true), cut, false).1.output_tokens, 500);
    // Numbers in the middle of a stream are preliminary.
    let preliminary = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":1}}\n";
    let (_, used) = metered(chat(true), preliminary, false);
    assert_eq!((used.input_tokens, used.output_tokens), (9, 500));
    let (_, used) = metered(chat(true), preliminary, true);
    assert_eq!((used.input_tokens, used.output_tokens), (9, 1));
    assert_eq!(metered(chat(false), "{\"choices\":[", false).1.output_tokens, 500);
    let (_, used) = metered(chat(false), "{\"usage\":{\"prompt_tokens\":-5,\"completion_tokens\":-7}}", true);
    assert_eq!((used.input_tokens, used.output_tokens, used.cost_micros), (0, 0, 0));
}
