//! The faults of the system that this one replaces, each shown absent. `docs/faults.md` names these tests.

use opencode::translate::{Effect, Translator};
use serde_json::{Value, json};

use crate::stage::{
    PROMPT, SESSION, Stage, completed, delta, done_state, event, failed_info, info, message, part, retry,
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
fn a_text_only_answer_leaves_nothing_busy() {
    let mut stage = Stage::busy();
    stage.events(answer("a1"));
    stage.events([completed("a1"), status("busy"), status("idle")]);
    assert!(!stage.translator.is_busy());
    assert_eq!(stage.script().last().unwrap(), "turn a1 Ok");
}

#[test]
fn an_answer_has_one_completion_however_often_its_end_is_reported() {
    let mut stage = Stage::busy();
    stage.events([message(PROMPT, "user"), text(PROMPT, "prt_user", "the prompt", false)]);
    stage.events(answer("a1"));
    let idle = event("session.idle", json!({ "sessionID": SESSION }));
    stage.events([completed("a1"), completed("a1"), status("idle"), idle, completed("a1"), status("idle")]);
    let expected = [
        "message a1",
        "token a1 prt_a1 He",
        "token a1 prt_a1 llo",
        "text a1 prt_a1 Hello",
        "complete a1",
        "turn a1 Ok",
    ];
    assert_eq!(stage.script(), expected);
}

#[test]
fn a_message_that_is_announced_as_complete_already_is_still_told_whole() {
    let mut stage = Stage::busy();
    stage.event(&completed("a1"));
    stage.events(answer("a1"));
    stage.event(&completed("a2"));
    stage.events(answer("a2"));
    stage.event(&status("idle"));
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
    assert_eq!(stage.script(), expected);
}

#[test]
fn parts_are_said_under_their_own_message_and_finished_messages_stay_finished() {
    let mut stage = Stage::busy();
    stage.events([
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
    assert_eq!(stage.script(), expected);
}

#[test]
fn text_that_comes_before_its_message_is_not_taken_for_the_echo_of_the_prompt() {
    let mut stage = Stage::busy();
    stage.events([text("a1", "p1", "", false), delta("a1", "p1", "Hi"), text("a1", "p1", "Hi", true)]);
    assert_eq!(stage.script(), ["message a1", "token a1 p1 Hi", "text a1 p1 Hi"]);

    let mut stage = Stage::busy();
    stage.events([text("a1", "p1", "Hi", true), text("u2", "p2", "an echo", false)]);
    assert_eq!(stage.script(), [""; 0], "whose words these are is not known yet");
    stage.events([message("u2", "user"), message("a1", "assistant")]);
    assert_eq!(stage.script(), ["message a1", "token a1 p1 Hi", "text a1 p1 Hi"]);
}

#[test]
fn prompts_keep_the_id_that_they_were_given() {
    let mut stage = Stage::busy();
    stage.events([message(PROMPT, "user"), text(PROMPT, "prt_1", "the prompt", false)]);
    stage.events(answer("a1"));
    stage.events([completed("a1"), status("idle"), message(PROMPT, "user")]);
    assert!(!stage.script().join("\n").contains(PROMPT), "it is not told again, under any id");
}

#[test]
fn events_of_other_sessions_are_nobodys_business() {
    let mut stage = Stage::busy();
    stage.event(&message("a1", "assistant"));
    let known = stage.said.len();
    let foreign = |mut event: Value| {
        let text = event.to_string().replace(SESSION, "ses_child");
        event = serde_json::from_str(&text).unwrap();
        event
    };
    stage.events(answer("a1").map(foreign));
    let others = [
        status("idle"),
        session_error("UnknownError", "bad key"),
        completed("a1"),
        retry(1, "x"),
        message("c", "assistant"),
    ];
    stage.events(others.map(foreign));
    assert_eq!(stage.said.len(), known, "{:?}", stage.script());
    assert!(stage.translator.is_busy() && stage.effects.is_empty());
}

#[test]
fn a_permission_is_refused_for_us_and_our_children_and_for_nobody_else() {
    let mut stage = Stage::busy();
    let child = |id: &str, parent: &str| {
        event("session.created", json!({ "sessionID": id, "info": { "id": id, "parentID": parent } }))
    };
    stage.events([
        child("ses_child", SESSION),
        child("ses_grandchild", "ses_child"),
        child("ses_9", "ses_8"),
    ]);
    for (number, session) in [SESSION, "ses_child", "ses_grandchild", "ses_9"].iter().enumerate() {
        let asked = json!({ "id": format!("per_{number}"), "sessionID": session, "permission": "bash" });
        stage.event(&event("permission.asked", asked));
    }
    stage.event(&event("question.asked", json!({ "id": "que_1", "sessionID": "ses_child" })));
    let refused = |id: &str| Effect::RejectPermission { request: id.to_owned() };
    let question = Effect::RejectQuestion { request: "que_1".to_owned() };
    assert_eq!(stage.effects, [refused("per_0"), refused("per_1"), refused("per_2"), question]);
    assert_eq!(
        stage.script(),
        [r#"error The agent asked for the permission "bash", and it was refused."#; 3]
    );
}

#[test]
fn text_streams_in_both_forms_of_its_pieces() {
    let mut newer = Stage::busy();
    newer.events(answer("a1"));
    let old = |so_far: &str, piece: &str| {
        let part = text_part("a1", "prt_a1", so_far, false);
        event("message.part.updated", json!({ "part": part, "delta": piece }))
    };
    let mut older = Stage::busy();
    older.events([message("a1", "assistant"), old("He", "He"), old("Hello", "llo"), old("Hello", "")]);
    older.event(&text("a1", "prt_a1", "Hello", true));
    assert_eq!(older.script(), newer.script());
    let mut oldest = Stage::busy();
    oldest.events([message("a1", "assistant"), old("", "He"), old("", "llo")]);
    oldest.event(&text("a1", "prt_a1", "Hello", true));
    assert_eq!(oldest.script(), newer.script());
    let mut brief = Stage::busy();
    brief.events([message("a1", "assistant"), delta("a1", "prt_a1", "He"), delta("a1", "prt_a1", "llo")]);
    brief.event(&text("a1", "prt_a1", "Hello", true));
    assert_eq!(brief.script(), newer.script(), "a part that is not announced");
}

#[test]
fn the_end_of_a_turn_is_told_once_after_its_last_message() {
    let mut stage = Stage::busy();
    stage.events(answer("a1"));
    stage.events([completed("a1"), status("busy")]);
    stage.events(answer("a2"));
    stage.events([completed("a2"), status("busy"), status("idle"), status("idle")]);
    let script = stage.script();
    assert_eq!(script.last().unwrap(), "turn a1,a2 Ok");
    assert_eq!(script.iter().filter(|line| line.starts_with("turn ")).count(), 1);
    assert_eq!(script[script.len() - 2], "complete a2");
}

#[test]
fn the_duration_of_a_tool_is_how_long_it_ran() {
    let mut stage = Stage::busy();
    stage.events([
        tool("a1", "t1", json!({ "status": "running", "input": { "a": 1 } })),
        tool("a1", "t1", done_state()),
    ]);
    assert_eq!(stage.script().last().unwrap(), "tool_end call_t1 a.txt 350");
}

#[test]
fn a_cancelled_turn_ends_with_the_second_idle_and_its_last_words() {
    let mut stage = Stage::busy();
    stage.events([message("a1", "assistant"), text("a1", "p", "", false), delta("a1", "p", "slow ")]);
    stage.events([session_error("MessageAbortedError", "Aborted"), status("idle")]);
    assert!(matches!(stage.effects[..], [Effect::Settle { .. }]));
    stage.events([
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
    assert_eq!(stage.script(), expected);
    assert_eq!(stage.effects.len(), 1);
}

#[test]
fn a_stray_idle_does_not_end_a_turn_that_has_not_begun() {
    let mut stage = Stage::new(SESSION);
    stage.translator.begin(PROMPT);
    stage.event(&status("idle"));
    assert!(stage.translator.is_busy() && stage.effects.is_empty() && stage.said.is_empty());
}

#[test]
fn a_prompt_that_fails_before_the_agent_is_busy_ends_its_turn() {
    let mut stage = Stage::new(SESSION);
    stage.translator.begin(PROMPT);
    stage.event(&session_error("UnknownError", "Image could not be decoded"));
    assert!(matches!(stage.effects[..], [Effect::Settle { .. }]));
    stage.reconcile(&json!([]), false);
    assert_eq!(stage.script(), ["error Image could not be decoded", "turn  Error"]);
}

#[test]
fn an_error_is_told_once_and_shows_nothing_of_the_proxy() {
    let data = json!({
        "message": "fake bad request\n    at f (/$bunfs/chunk.js)", "statusCode": 400,
        "responseBody": "secret body", "metadata": { "url": "http://secret" },
    });
    let error = json!({ "name": "APIError", "data": data });
    let mut stage = Stage::busy();
    stage.event(&message("a1", "assistant"));
    stage.event(&event("session.error", json!({ "sessionID": SESSION, "error": error })));
    let mut info = failed_info("a1", "", "");
    info["error"] = error;
    stage.events([status("idle"), updated(info), status("idle")]);
    assert_eq!(stage.script(), ["message a1", "error fake bad request", "complete a1", "turn a1 Error"]);
}

#[test]
fn a_retry_is_shown_and_voids_what_was_said_of_the_answer() {
    let mut stage = Stage::busy();
    stage.events([message("a1", "assistant"), text("a1", "p1", "", false), delta("a1", "p1", "half an an")]);
    stage.events([retry(2, "Overloaded\nmore"), status("busy"), delta("a1", "p1", "late")]);
    stage.events([text("a1", "p2", "", false), delta("a1", "p2", "whole"), text("a1", "p2", "whole", true)]);
    let expected = [
        "message a1",
        "token a1 p1 half an an",
        "text a1 p1 ",
        "status Retrying (2/5): Overloaded",
        "status ",
        "token a1 p2 whole",
        "text a1 p2 whole",
    ];
    assert_eq!(stage.script(), expected);
}

/// A second step in the same message is the only trace of a retry that nobody heard of.
#[test]
fn a_retry_that_was_missed_voids_what_was_said_as_soon_as_it_is_found() {
    let step = |id: &str| json!({ "id": id, "messageID": "a1", "sessionID": SESSION, "type": "step-start" });
    let history = |parts: Vec<Value>| json!([{ "info": info(PROMPT, "user"), "parts": [] }, { "info": info("a1", "assistant"), "parts": parts }]);
    let half = || text_part("a1", "p1", "", false);
    for found_live in [true, false] {
        let mut stage = Stage::busy();
        stage.events([message("a1", "assistant"), part(step("s1")), part(half()), delta("a1", "p1", "half")]);
        stage.translator = Translator::resume(SESSION, PROMPT, &stage.said);
        if found_live {
            stage.reconcile(&history(vec![step("s1"), half()]), true);
            assert_eq!(stage.script(), ["message a1", "token a1 p1 half"], "it may go on");
            stage.event(&part(step("s2")));
        } else {
            let anew = text_part("a1", "p2", "", false);
            stage.reconcile(&history(vec![step("s1"), half(), step("s2"), anew]), true);
        }
        assert_eq!(stage.script(), ["message a1", "token a1 p1 half", "text a1 p1 "], "live: {found_live}");
    }
}

#[test]
fn thoughts_and_notes_are_not_said() {
    let mut stage = Stage::busy();
    let reasoning =
        json!({ "id": "r", "messageID": "a1", "sessionID": SESSION, "type": "reasoning", "text": "hm" });
    let mut note = text_part("a1", "n", "a note", true);
    note["ignored"] = true.into();
    let step = json!({ "id": "s", "messageID": "a1", "sessionID": SESSION, "type": "step-start" });
    stage.events([
        message("a1", "assistant"),
        part(reasoning),
        delta("a1", "r", "mm"),
        part(note),
        part(step),
    ]);
    assert_eq!(stage.script(), ["message a1"]);
}
