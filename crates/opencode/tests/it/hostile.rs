//! A hostile sandbox: whatever it sends, memory is bounded and clients are told if something is omitted.

use opencode::translate::Translator;
use proto::socket::{ServerMessage, ToolStatus};
use serde_json::json;

use crate::client_invariants::check;
use crate::harness::{
    Harness, PROMPT, SESSION, completed, delta, done_state, event, message, retry, status, text, tool,
};

fn errors(harness: &Harness) -> usize {
    harness.script().iter().filter(|line| line.starts_with("error ")).count()
}

#[test]
fn the_number_of_parts_is_limited() {
    let mut harness = Harness::busy();
    harness.event(&message("a1", "assistant"));
    for number in 0..20_000 {
        harness.event(&text("a1", &format!("p{number}"), "", false));
        harness.event(&delta("a1", &format!("p{number}"), "x"));
    }
    let tokens =
        harness.emitted.iter().filter(|message| matches!(message, ServerMessage::Token { .. })).count();
    assert_eq!((tokens, errors(&harness)), (1024, 1), "the omission must be reported once");
    harness.events([completed("a1"), status("idle")]);
    check(&harness.emitted);
}

#[test]
fn the_number_of_messages_is_limited() {
    let mut harness = Harness::busy();
    for number in 0..20_000 {
        harness.event(&message(&format!("a{number}"), "assistant"));
    }
    assert_eq!((harness.emitted.len(), errors(&harness)), (1025, 1));
    let output = harness.translator.give_up("enough", 1);
    harness.take(output);
    check(&harness.emitted);
}

#[test]
fn a_turn_may_have_more_steps_than_the_limit() {
    let mut harness = Harness::busy();
    for number in 0..3_000 {
        let id = format!("a{number}");
        harness.events([message(&id, "assistant"), completed(&id)]);
    }
    harness.event(&status("idle"));
    assert_eq!(errors(&harness), 0);
    assert_eq!(harness.emitted.len(), 3_000 * 2 + 1);
    let Some(ServerMessage::TurnComplete { message_ids, .. }) = harness.emitted.last() else {
        panic!("the turn did not end")
    };
    assert_eq!(message_ids.last().unwrap(), "a2999");
}

#[test]
fn deltas_of_unknown_messages_are_ignored() {
    let mut harness = Harness::busy();
    harness.event(&message("a", "assistant"));
    for number in 0..20_000 {
        harness.event(&delta(&format!("a{number}"), &format!("p{number}"), "x"));
    }
    harness.event(&text("a", "p1", "", false));
    harness.event(&delta("a2", "p1", "under another message"));
    assert_eq!(harness.script(), ["message a"]);
}

#[test]
fn the_number_of_unannounced_parts_is_limited() {
    let mut harness = Harness::busy();
    harness.event(&message("a1", "assistant"));
    for number in 0..20_000 {
        harness.event(&delta("a1", &format!("p{number}"), "x"));
    }
    assert_eq!((harness.emitted.len(), errors(&harness)), (1 + 1024 + 1, 1));
}

#[test]
fn texts_of_unknown_authors_are_limited() {
    let mut harness = Harness::busy();
    for number in 0..20_000 {
        harness.event(&text(&format!("a{number}"), &format!("p{number}"), "words", true));
    }
    harness.event(&message("a0", "assistant"));
    harness.event(&text("huge", "p", &"x".repeat(100_000), true));
    for number in 0..20_000 {
        harness.event(&message(&format!("a{number}"), "user"));
    }
    harness.events([message("a19999", "assistant"), message("huge", "assistant")]);
    assert_eq!(
        harness.script(),
        ["message a0", "message huge"],
        "a user's text must not be shown as the agent's"
    );
}

#[test]
fn a_huge_text_is_split_into_tokens_and_truncated_at_its_end() {
    let mut harness = Harness::busy();
    harness.events([message("a1", "assistant"), text("a1", "p1", "", false)]);
    for _ in 0..4 {
        harness.event(&delta("a1", "p1", &"é".repeat(250_000)));
    }
    harness.event(&text("a1", "p1", &"é".repeat(1_000_001), true));
    let lengths = harness.emitted.iter().filter_map(|message| match message {
        ServerMessage::Token { token, .. } => Some(token.len()),
        _ => None,
    });
    let lengths: Vec<usize> = lengths.collect();
    assert_eq!(lengths.iter().sum::<usize>(), 2_000_002, "no text may be lost");
    assert!(lengths.iter().all(|length| *length <= 64 * 1024));
    let [.., ServerMessage::TextPartComplete { text, .. }, ServerMessage::Error { .. }] =
        &harness.emitted[..]
    else {
        panic!("the text did not end")
    };
    assert_eq!(text.len(), 1024 * 1024);
}

#[test]
fn tool_output_is_truncated() {
    let long = "y".repeat(3_000_000);
    let mut harness = Harness::busy();
    let report = json!({
        "status": "completed", "input": { "path": "a.txt", "content": long }, "output": long, "title": long,
        "metadata": { "output": long, "list": vec!["z".repeat(50); 100_000] },
    });
    harness.event(&tool("a1", "t1", report));
    let sizes: Vec<_> =
        harness.emitted.iter().map(|message| serde_json::to_string(message).unwrap().len()).collect();
    assert!(sizes.iter().all(|size| *size < 300_000), "{sizes:?}");
    assert!(harness.script()[1].contains(r#""path":"a.txt""#));
    assert!(harness.script().last().unwrap().contains("bytes more)"));
}

#[test]
fn tool_metadata_is_rate_limited() {
    let mut harness = Harness::busy();
    for number in 0..1_000 {
        let report =
            json!({ "status": "running", "input": { "a": 1 }, "metadata": { "output": number.to_string() } });
        harness.event(&tool("a1", "t1", report));
        harness.now += 10;
    }
    let told = harness.script().iter().filter(|line| line.contains("tool_metadata")).count();
    assert_eq!(told, 40, "four updates per second for ten seconds");
}

#[test]
fn a_part_is_not_repeated_in_another_message() {
    let mut harness = Harness::busy();
    harness.events([message("a1", "assistant"), text("a1", "p1", "words", true), completed("a1")]);
    harness.events([message("a2", "assistant"), text("a2", "p1", "words", true), delta("a2", "p1", "more")]);
    check(&harness.emitted);
    assert_eq!(harness.script().last().unwrap(), "message a2");
}

#[test]
fn calls_with_the_same_id_are_distinguished() {
    let mut harness = Harness::busy();
    for id in ["t1", "t2", "t3"] {
        if id == "t3" {
            harness.translator = Translator::resume(SESSION, PROMPT, &harness.emitted);
        }
        let call = tool("a1", id, json!({ "status": "completed", "input": { "a": 1 }, "output": id }));
        harness
            .event(&serde_json::from_str(&call.to_string().replace(&format!("call_{id}"), "same")).unwrap());
    }
    check(&harness.emitted);
    let ends: Vec<_> = harness.script().into_iter().filter(|line| line.starts_with("tool_end")).collect();
    assert_eq!(ends, ["tool_end same t1 0", "tool_end same.t2 t2 0", "tool_end same.t3 t3 0"]);
}

#[test]
fn invalid_ids_are_ignored() {
    let mut harness = Harness::busy();
    let long = "m".repeat(129);
    harness.events([message(&long, "assistant"), message("", "assistant"), text("a1", &long, "x", true)]);
    harness.events([tool(&long, "t1", json!({})), tool("", "t1", json!({}))]);
    let asked = json!({ "id": long, "sessionID": SESSION, "permission": "x" });
    harness.events([event("permission.asked", asked.clone()), event("question.asked", asked)]);
    assert!(harness.emitted.is_empty() && harness.effects.is_empty(), "{:?}", harness.script());
}

#[test]
fn endless_requests_and_errors_are_limited() {
    let mut harness = Harness::busy();
    for number in 0..2_000 {
        let asked = |kind: &str| json!({ "id": format!("{kind}_{number}"), "sessionID": SESSION, "permission": "bash" });
        let error = |who: &str| json!({ "name": "E", "data": { "message": format!("{who} {number}") } });
        harness.events([event("permission.asked", asked("per")), event("question.asked", asked("que"))]);
        harness.event(&event("session.error", json!({ "error": error("plugin") })));
        harness.event(&event("session.error", json!({ "sessionID": SESSION, "error": error("model") })));
        harness.event(&retry(1, "overloaded"));
    }
    assert!(harness.effects.len() < 100, "{} requests to the agent", harness.effects.len());
    let errors =
        harness.emitted.iter().filter(|emitted| matches!(emitted, ServerMessage::Error { .. })).count();
    assert!((1..=128).contains(&errors), "{errors} errors");
    assert!(harness.emitted.len() < 1_500, "{} messages", harness.emitted.len());
}

#[test]
fn a_repeated_request_is_asked_once() {
    let mut harness = Harness::busy();
    for _ in 0..3 {
        let asked = json!({ "id": "per_1", "sessionID": SESSION, "permission": "bash" });
        harness.event(&event("permission.asked", asked));
    }
    assert_eq!((harness.effects.len(), harness.emitted.len()), (1, 0), "{:?}", harness.script());
}

#[test]
fn a_failed_call_has_an_error_status() {
    let mut harness = Harness::busy();
    let failed = json!({ "status": "error", "input": {}, "error": "no such file" });
    harness.events([tool("a1", "t1", failed), tool("a1", "t2", done_state())]);
    let ends = harness.emitted.iter().filter_map(|emitted| match emitted {
        ServerMessage::ToolEnd { status, .. } => Some(*status),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), [Some(ToolStatus::Error), None]);
}
