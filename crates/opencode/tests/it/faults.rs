//! Shows that the faults of the predecessor system are absent. `docs/faults.md` refers to these tests.

use opencode::translate::{Effect, Translator};
use serde_json::{Value, json};

use crate::harness::{
    Harness, PROMPT, SESSION, completed, delta, done_state, event, failed_info, info, message, part, retry,
    session_error, status, text, text_part, tool, updated,
};

/// A text-only answer from its announcement to its last piece.
fn answer(id: &str) -> [Value; 5] {
    let prt = format!("prt_{id}");
    [
        message(id, "assistant"),
        text(id, &prt, "", false),
        delta(id, &prt, "He"),
        delta(id, &prt, "llo"),
        text(id, &prt, "Hello", true),
    ]
}

#[test]
fn a_text_only_answer_ends_the_turn() {
    let mut harness = Harness::busy();
    harness.events(answer("a1"));
    harness.events([completed("a1"), status("busy"), status("idle")]);
    assert!(!harness.translator.is_busy());
    assert_eq!(harness.script().last().unwrap(), "turn a1 Ok");
}

#[test]
fn an_answer_completes_once() {
    let mut harness = Harness::busy();
    harness.events([message(PROMPT, "user"), text(PROMPT, "prt_user", "the prompt", false)]);
    harness.events(answer("a1"));
    let idle = event("session.idle", json!({ "sessionID": SESSION }));
    harness.events([completed("a1"), completed("a1"), status("idle"), idle, completed("a1"), status("idle")]);
    let expected = [
        "message a1",
        "token a1 prt_a1 He",
        "token a1 prt_a1 llo",
        "text a1 prt_a1 Hello",
        "complete a1",
        "turn a1 Ok",
    ];
    assert_eq!(harness.script(), expected);
}

#[test]
fn a_message_announced_as_complete_is_emitted_completely() {
    let mut harness = Harness::busy();
    harness.event(&completed("a1"));
    harness.events(answer("a1"));
    harness.event(&completed("a2"));
    harness.events(answer("a2"));
    harness.event(&status("idle"));
    let answer = |id: &str| {
        let prt = format!("{id} prt_{id}");
        [
            format!("message {id}"),
            format!("token {prt} He"),
            format!("token {prt} llo"),
            format!("text {prt} Hello"),
        ]
    };
    let mut expected = answer("a1").to_vec();
    expected.push("complete a1".to_owned());
    expected.extend(answer("a2"));
    expected.extend(["complete a2", "turn a1,a2 Ok"].map(str::to_owned));
    assert_eq!(harness.script(), expected);
}

#[test]
fn parts_belong_to_their_message_and_finished_messages_stay_finished() {
    let mut harness = Harness::busy();
    harness.events([
        message("a1", "assistant"),
        tool("a1", "t1", json!({ "status": "pending", "input": {} })),
        tool("a1", "t1", json!({ "status": "running", "input": { "command": "ls" } })),
        tool("a1", "t1", json!({ "status": "completed", "input": {}, "output": "" })),
        completed("a1"),
        completed("a1"),
        message("a2", "assistant"),
        text("a2", "p2", "", false),
        completed("a1"),
        delta("a2", "p2", "Done"),
        completed("a2"),
        status("idle"),
    ]);
    let expected = [
        "message a1",
        "tool_start call_t1 bash {}",
        r#"tool_start call_t1 bash {"command":"ls"}"#,
        "tool_end call_t1  0",
        "complete a1",
        "message a2",
        "token a2 p2 Done",
        "complete a2",
        "turn a1,a2 Ok",
    ];
    assert_eq!(harness.script(), expected);
}

#[test]
fn text_before_its_message_is_not_mistaken_for_the_prompt() {
    let mut harness = Harness::busy();
    harness.events([text("a1", "p1", "", false), delta("a1", "p1", "Hi"), text("a1", "p1", "Hi", true)]);
    assert_eq!(harness.script(), ["message a1", "token a1 p1 Hi", "text a1 p1 Hi"]);

    let mut harness = Harness::busy();
    harness.events([text("a1", "p1", "Hi", true), text("u2", "p2", "an echo", false)]);
    assert_eq!(harness.script(), [""; 0], "the author of the text is not known yet");
    harness.events([message("u2", "user"), message("a1", "assistant")]);
    assert_eq!(harness.script(), ["message a1", "token a1 p1 Hi", "text a1 p1 Hi"]);
}

#[test]
fn prompts_keep_their_id() {
    let mut harness = Harness::busy();
    harness.events([message(PROMPT, "user"), text(PROMPT, "prt_1", "the prompt", false)]);
    harness.events(answer("a1"));
    harness.events([completed("a1"), status("idle"), message(PROMPT, "user")]);
    assert!(!harness.script().join("\n").contains(PROMPT), "the prompt must not be repeated under any id");
}

#[test]
fn events_of_other_sessions_are_ignored() {
    let mut harness = Harness::busy();
    harness.event(&message("a1", "assistant"));
    let known = harness.emitted.len();
    let foreign = |mut event: Value| {
        let text = event.to_string().replace(SESSION, "ses_child");
        event = serde_json::from_str(&text).unwrap();
        event
    };
    harness.events(answer("a1").map(foreign));
    let others = [
        status("idle"),
        session_error("UnknownError", "bad key"),
        completed("a1"),
        retry(1, "x"),
        message("c", "assistant"),
    ];
    harness.events(others.map(foreign));
    assert_eq!(harness.emitted.len(), known, "{:?}", harness.script());
    assert!(harness.translator.is_busy() && harness.effects.is_empty());
}

#[test]
fn questions_are_asked_for_the_session_and_its_children_only() {
    let mut harness = Harness::busy();
    let child = |id: &str, parent: &str| {
        event("session.created", json!({ "sessionID": id, "info": { "id": id, "parentID": parent } }))
    };
    harness.events([
        child("ses_child", SESSION),
        child("ses_grandchild", "ses_child"),
        child("ses_9", "ses_8"),
    ]);
    for (number, session) in [SESSION, "ses_child", "ses_grandchild", "ses_9"].iter().enumerate() {
        let asked = json!({ "id": format!("per_{number}"), "sessionID": session, "permission": "bash" });
        harness.event(&event("permission.asked", asked));
    }
    harness.event(&event("question.asked", json!({ "id": "que_1", "sessionID": "ses_child" })));
    let effects: Vec<String> = harness
        .effects
        .iter()
        .map(|effect| match effect {
            Effect::Ask(question) => format!("ask {} {}", question.kind, question.question_id),
            Effect::Reject { request, kind } => format!("reject {kind} {request}"),
            other => format!("{other:?}"),
        })
        .collect();
    let asked = ["ask permission per_0", "ask permission per_1", "ask permission per_2"];
    assert_eq!(effects[..3], asked);
    assert_eq!(effects[3..], ["reject question que_1"], "a question without parts cannot be answered");
    harness.event(&event("question.rejected", json!({ "sessionID": SESSION, "requestID": "que_2" })));
    assert_eq!(harness.effects[4..], [Effect::Settled { request: "que_2".to_owned() }]);
}

#[test]
fn text_streams_in_all_delta_formats() {
    let mut newer = Harness::busy();
    newer.events(answer("a1"));
    let old = |so_far: &str, piece: &str| {
        let part = text_part("a1", "prt_a1", so_far, false);
        event("message.part.updated", json!({ "part": part, "delta": piece }))
    };
    let mut older = Harness::busy();
    older.events([message("a1", "assistant"), old("He", "He"), old("Hello", "llo"), old("Hello", "")]);
    older.event(&text("a1", "prt_a1", "Hello", true));
    assert_eq!(older.script(), newer.script());
    let mut oldest = Harness::busy();
    oldest.events([message("a1", "assistant"), old("", "He"), old("", "llo")]);
    oldest.event(&text("a1", "prt_a1", "Hello", true));
    assert_eq!(oldest.script(), newer.script());
    let mut brief = Harness::busy();
    brief.events([message("a1", "assistant"), delta("a1", "prt_a1", "He"), delta("a1", "prt_a1", "llo")]);
    brief.event(&text("a1", "prt_a1", "Hello", true));
    assert_eq!(brief.script(), newer.script(), "a part that was not announced");
}

#[test]
fn a_turn_ends_once_after_its_last_message() {
    let mut harness = Harness::busy();
    harness.events(answer("a1"));
    harness.events([completed("a1"), status("busy")]);
    harness.events(answer("a2"));
    harness.events([completed("a2"), status("busy"), status("idle"), status("idle")]);
    let script = harness.script();
    assert_eq!(script.last().unwrap(), "turn a1,a2 Ok");
    assert_eq!(script.iter().filter(|line| line.starts_with("turn ")).count(), 1);
    assert_eq!(script[script.len() - 2], "complete a2");
}

#[test]
fn the_duration_of_a_tool_is_its_run_time() {
    let mut harness = Harness::busy();
    harness.events([
        tool("a1", "t1", json!({ "status": "running", "input": { "a": 1 } })),
        tool("a1", "t1", done_state()),
    ]);
    assert_eq!(harness.script().last().unwrap(), "tool_end call_t1 a.txt 350");
}

#[test]
fn a_cancelled_turn_ends_with_the_second_idle() {
    let mut harness = Harness::busy();
    harness.events([message("a1", "assistant"), text("a1", "p", "", false), delta("a1", "p", "slow ")]);
    harness.events([session_error("MessageAbortedError", "Aborted"), status("idle")]);
    assert!(matches!(harness.effects[..], [Effect::Settle { .. }]));
    harness.events([
        text("a1", "p", "slow words", true),
        updated(failed_info("a1", "MessageAbortedError", "Aborted")),
        status("idle"),
    ]);
    let expected = [
        "message a1",
        "token a1 p slow ",
        "token a1 p words",
        "text a1 p slow words",
        "cancelled a1",
        "turn a1 Cancelled",
    ];
    assert_eq!(harness.script(), expected);
    assert_eq!(harness.effects.len(), 1);
}

#[test]
fn an_early_idle_does_not_end_the_turn() {
    let mut harness = Harness::new(SESSION);
    harness.translator.begin(PROMPT);
    harness.event(&status("idle"));
    assert!(harness.translator.is_busy() && harness.effects.is_empty() && harness.emitted.is_empty());
}

#[test]
fn a_prompt_that_fails_before_the_agent_is_busy_ends_the_turn() {
    let mut harness = Harness::new(SESSION);
    harness.translator.begin(PROMPT);
    harness.event(&session_error("UnknownError", "Image could not be decoded"));
    assert!(matches!(harness.effects[..], [Effect::Settle { .. }]));
    harness.reconcile(&json!([]), false);
    assert_eq!(harness.script(), ["error Image could not be decoded", "turn  Error"]);
}

#[test]
fn errors_are_reported_once_and_hide_the_proxy() {
    let data = json!({
        "message": "fake bad request\n    at f (/$bunfs/chunk.js)", "statusCode": 400,
        "responseBody": "secret body", "metadata": { "url": "http://secret" },
    });
    let error = json!({ "name": "APIError", "data": data });
    let mut harness = Harness::busy();
    harness.event(&message("a1", "assistant"));
    harness.event(&event("session.error", json!({ "sessionID": SESSION, "error": error })));
    let mut info = failed_info("a1", "", "");
    info["error"] = error;
    harness.events([status("idle"), updated(info), status("idle")]);
    assert_eq!(harness.script(), ["message a1", "error fake bad request", "complete a1", "turn a1 Error"]);
}

#[test]
fn a_retry_is_shown_and_discards_the_partial_answer() {
    let mut harness = Harness::busy();
    harness.events([
        message("a1", "assistant"),
        text("a1", "p1", "", false),
        delta("a1", "p1", "half an an"),
    ]);
    harness.events([retry(2, "Overloaded\nmore"), status("busy"), delta("a1", "p1", "late")]);
    harness.events([
        text("a1", "p2", "", false),
        delta("a1", "p2", "whole"),
        text("a1", "p2", "whole", true),
    ]);
    let expected = [
        "message a1",
        "token a1 p1 half an an",
        "text a1 p1 ",
        "status Retrying (2/5): Overloaded",
        "status ",
        "token a1 p2 whole",
        "text a1 p2 whole",
    ];
    assert_eq!(harness.script(), expected);
}

/// A second step in the same message is the only trace of a missed retry.
#[test]
fn a_missed_retry_discards_the_partial_answer() {
    let step = |id: &str| json!({ "id": id, "messageID": "a1", "sessionID": SESSION, "type": "step-start" });
    let history = |parts: Vec<Value>| json!([{ "info": info(PROMPT, "user"), "parts": [] }, { "info": info("a1", "assistant"), "parts": parts }]);
    let half = || text_part("a1", "p1", "", false);
    for found_live in [true, false] {
        let mut harness = Harness::busy();
        harness.events([
            message("a1", "assistant"),
            part(step("s1")),
            part(half()),
            delta("a1", "p1", "half"),
        ]);
        harness.translator = Translator::resume(SESSION, PROMPT, &harness.emitted);
        if found_live {
            harness.reconcile(&history(vec![step("s1"), half()]), true);
            assert_eq!(harness.script(), ["message a1", "token a1 p1 half"], "the text may still continue");
            harness.event(&part(step("s2")));
        } else {
            let anew = text_part("a1", "p2", "", false);
            harness.reconcile(&history(vec![step("s1"), half(), step("s2"), anew]), true);
        }
        assert_eq!(harness.script(), ["message a1", "token a1 p1 half", "text a1 p1 "], "live: {found_live}");
    }
}

#[test]
fn reasoning_and_notes_are_not_emitted() {
    let mut harness = Harness::busy();
    let reasoning =
        json!({ "id": "r", "messageID": "a1", "sessionID": SESSION, "type": "reasoning", "text": "hm" });
    let mut note = text_part("a1", "n", "a note", true);
    note["ignored"] = true.into();
    let step = json!({ "id": "s", "messageID": "a1", "sessionID": SESSION, "type": "step-start" });
    harness.events([
        message("a1", "assistant"),
        part(reasoning),
        delta("a1", "r", "mm"),
        part(note),
        part(step),
    ]);
    assert_eq!(harness.script(), ["message a1"]);
}
