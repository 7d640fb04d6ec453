//! A sandbox that lies: whatever it sends, memory is bounded and clients are told when something is left out.

use opencode::translate::Translator;
use proto::socket::{ServerMessage, ToolStatus};
use serde_json::json;

use crate::promises::check;
use crate::stage::{
    PROMPT, SESSION, Stage, completed, delta, done_state, event, message, retry, status, text, tool,
};

fn errors(stage: &Stage) -> usize {
    stage.script().iter().filter(|line| line.starts_with("error ")).count()
}

#[test]
fn twenty_thousand_parts_are_not_remembered() {
    let mut stage = Stage::busy();
    stage.event(&message("a1", "assistant"));
    for number in 0..20_000 {
        stage.event(&text("a1", &format!("p{number}"), "", false));
        stage.event(&delta("a1", &format!("p{number}"), "x"));
    }
    let tokens = stage.said.iter().filter(|message| matches!(message, ServerMessage::Token { .. })).count();
    assert_eq!((tokens, errors(&stage)), (1024, 1), "it is told once that there was more");
    stage.events([completed("a1"), status("idle")]);
    check(&stage.said);
}

#[test]
fn twenty_thousand_messages_are_not_remembered() {
    let mut stage = Stage::busy();
    for number in 0..20_000 {
        stage.event(&message(&format!("a{number}"), "assistant"));
    }
    assert_eq!((stage.said.len(), errors(&stage)), (1025, 1));
    let output = stage.translator.give_up("enough", 1);
    stage.take(output);
    check(&stage.said);
}

#[test]
fn a_turn_may_have_more_steps_than_are_remembered() {
    let mut stage = Stage::busy();
    for number in 0..3_000 {
        let id = format!("a{number}");
        stage.events([message(&id, "assistant"), completed(&id)]);
    }
    stage.event(&status("idle"));
    assert_eq!(errors(&stage), 0);
    assert_eq!(stage.said.len(), 3_000 * 2 + 1);
    let Some(ServerMessage::TurnComplete { message_ids, .. }) = stage.said.last() else { panic!("no end") };
    assert_eq!(message_ids.last().unwrap(), "a2999");
}

#[test]
fn pieces_of_nothing_are_nothing() {
    let mut stage = Stage::busy();
    stage.event(&message("a", "assistant"));
    for number in 0..20_000 {
        stage.event(&delta(&format!("a{number}"), &format!("p{number}"), "x"));
    }
    stage.event(&text("a", "p1", "", false));
    stage.event(&delta("a2", "p1", "under another message"));
    assert_eq!(stage.script(), ["message a"]);
}

#[test]
fn pieces_of_unknown_parts_are_said_in_bounded_number() {
    let mut stage = Stage::busy();
    stage.event(&message("a1", "assistant"));
    for number in 0..20_000 {
        stage.event(&delta("a1", &format!("p{number}"), "x"));
    }
    assert_eq!((stage.said.len(), errors(&stage)), (1 + 1024 + 1, 1));
}

#[test]
fn texts_without_a_speaker_are_kept_in_small_numbers() {
    let mut stage = Stage::busy();
    for number in 0..20_000 {
        stage.event(&text(&format!("a{number}"), &format!("p{number}"), "words", true));
    }
    stage.event(&message("a0", "assistant"));
    stage.event(&text("huge", "p", &"x".repeat(100_000), true));
    for number in 0..20_000 {
        stage.event(&message(&format!("a{number}"), "user"));
    }
    stage.events([message("a19999", "assistant"), message("huge", "assistant")]);
    assert_eq!(stage.script(), ["message a0", "message huge"], "a user's words are not the agent's");
}

#[test]
fn a_gigantic_text_is_said_in_small_tokens_and_its_whole_is_cut() {
    let mut stage = Stage::busy();
    stage.events([message("a1", "assistant"), text("a1", "p1", "", false)]);
    for _ in 0..4 {
        stage.event(&delta("a1", "p1", &"é".repeat(250_000)));
    }
    stage.event(&text("a1", "p1", &"é".repeat(1_000_001), true));
    let lengths = stage.said.iter().filter_map(|message| match message {
        ServerMessage::Token { token, .. } => Some(token.len()),
        _ => None,
    });
    let lengths: Vec<usize> = lengths.collect();
    assert_eq!(lengths.iter().sum::<usize>(), 2_000_002, "nothing is lost");
    assert!(lengths.iter().all(|length| *length <= 64 * 1024));
    let [.., ServerMessage::TextPartComplete { text, .. }, ServerMessage::Error { .. }] = &stage.said[..]
    else {
        panic!("no end")
    };
    assert_eq!(text.len(), 1024 * 1024);
}

#[test]
fn what_a_tool_says_is_cut_to_size() {
    let long = "y".repeat(3_000_000);
    let mut stage = Stage::busy();
    let report = json!({
        "status": "completed", "input": { "path": "a.txt", "content": long }, "output": long, "title": long,
        "metadata": { "output": long, "list": vec!["z".repeat(50); 100_000] },
    });
    stage.event(&tool("a1", "t1", report));
    let sizes: Vec<_> =
        stage.said.iter().map(|message| serde_json::to_string(message).unwrap().len()).collect();
    assert!(sizes.iter().all(|size| *size < 300_000), "{sizes:?}");
    assert!(stage.script()[1].contains(r#""path":"a.txt""#));
    assert!(stage.script().last().unwrap().contains("bytes more)"));
}

#[test]
fn a_tool_that_reports_without_end_is_told_now_and_then() {
    let mut stage = Stage::busy();
    for number in 0..1_000 {
        let report =
            json!({ "status": "running", "input": { "a": 1 }, "metadata": { "output": number.to_string() } });
        stage.event(&tool("a1", "t1", report));
        stage.now += 10;
    }
    let told = stage.script().iter().filter(|line| line.contains("tool_metadata")).count();
    assert_eq!(told, 40, "four times in each of the ten seconds");
}

#[test]
fn a_part_is_not_said_again_under_another_message() {
    let mut stage = Stage::busy();
    stage.events([message("a1", "assistant"), text("a1", "p1", "words", true), completed("a1")]);
    stage.events([message("a2", "assistant"), text("a2", "p1", "words", true), delta("a2", "p1", "more")]);
    check(&stage.said);
    assert_eq!(stage.script().last().unwrap(), "message a2");
}

#[test]
fn two_calls_with_one_id_are_told_apart() {
    let mut stage = Stage::busy();
    for id in ["t1", "t2", "t3"] {
        if id == "t3" {
            stage.translator = Translator::resume(SESSION, PROMPT, &stage.said);
        }
        let call = tool("a1", id, json!({ "status": "completed", "input": { "a": 1 }, "output": id }));
        stage.event(&serde_json::from_str(&call.to_string().replace(&format!("call_{id}"), "same")).unwrap());
    }
    check(&stage.said);
    let ends: Vec<_> = stage.script().into_iter().filter(|line| line.starts_with("tool_end")).collect();
    assert_eq!(ends, ["tool_end same t1 0", "tool_end same.t2 t2 0", "tool_end same.t3 t3 0"]);
}

#[test]
fn ids_that_are_no_ids_are_left_out() {
    let mut stage = Stage::busy();
    let long = "m".repeat(129);
    stage.events([message(&long, "assistant"), message("", "assistant"), text("a1", &long, "x", true)]);
    stage.events([tool(&long, "t1", json!({})), tool("", "t1", json!({}))]);
    let asked = json!({ "id": long, "sessionID": SESSION, "permission": "x" });
    stage.events([event("permission.asked", asked.clone()), event("question.asked", asked)]);
    assert!(stage.said.is_empty() && stage.effects.is_empty(), "{:?}", stage.script());
}

#[test]
fn what_has_no_end_of_its_own_is_taken_only_so_often() {
    let mut stage = Stage::busy();
    for number in 0..2_000 {
        let asked = |kind: &str| json!({ "id": format!("{kind}_{number}"), "sessionID": SESSION, "permission": "bash" });
        let error = |who: &str| json!({ "name": "E", "data": { "message": format!("{who} {number}") } });
        stage.events([event("permission.asked", asked("per")), event("question.asked", asked("que"))]);
        stage.event(&event("session.error", json!({ "error": error("plugin") })));
        stage.event(&event("session.error", json!({ "sessionID": SESSION, "error": error("model") })));
        stage.event(&retry(1, "overloaded"));
    }
    assert!(stage.effects.len() < 100, "{} requests of ours", stage.effects.len());
    let errors = stage.said.iter().filter(|said| matches!(said, ServerMessage::Error { .. })).count();
    assert!((1..=128).contains(&errors), "{errors} errors");
    assert!(stage.said.len() < 1_500, "{} messages", stage.said.len());
}

#[test]
fn a_request_that_is_made_again_is_answered_once() {
    let mut stage = Stage::busy();
    for _ in 0..3 {
        let asked = json!({ "id": "per_1", "sessionID": SESSION, "permission": "bash" });
        stage.event(&event("permission.asked", asked));
    }
    assert_eq!((stage.effects.len(), stage.said.len()), (1, 1), "{:?}", stage.script());
}

#[test]
fn a_call_that_failed_says_so() {
    let mut stage = Stage::busy();
    let failed = json!({ "status": "error", "input": {}, "error": "no such file" });
    stage.events([tool("a1", "t1", failed), tool("a1", "t2", done_state())]);
    let ends = stage.said.iter().filter_map(|said| match said {
        ServerMessage::ToolEnd { status, .. } => Some(*status),
        _ => None,
    });
    assert_eq!(ends.collect::<Vec<_>>(), [Some(ToolStatus::Error), None]);
}
