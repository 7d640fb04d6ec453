//! Going on after something was missed, as the agent's history tells it.

use opencode::history::{History, Page};
use opencode::translate::{Effect, Translator};
use serde_json::{Value, json};

use crate::recordings;
use crate::stage::{
    PROMPT, SESSION, Stage, completed, completed_info, delta, done_state, failed_info, info, message,
    session_error, status, text, text_part, tool, tool_part,
};

fn entry(info: &Value, parts: &[Value]) -> Value {
    json!({ "info": info, "parts": parts })
}

fn user() -> Value {
    entry(&info(PROMPT, "user"), &[])
}

#[test]
fn a_killed_agent_ends_the_turn_and_its_words_are_kept() {
    let mut stage = Stage::busy();
    stage.events([message("a1", "assistant"), text("a1", "p1", "", false), delta("a1", "p1", "partial ")]);
    stage.event(&tool("a1", "t1", json!({ "status": "running", "input": { "command": "sleep 9" } })));
    stage.translator.stream_lost();
    let lost = [
        text_part("a1", "p1", "", false),
        tool_part("a1", "t1", json!({ "status": "running", "input": { "command": "sleep 9" } })),
    ];
    stage.reconcile(&json!([user(), entry(&info("a1", "assistant"), &lost)]), false);
    let expected = [
        "message a1",
        "token a1 p1 partial ",
        r#"tool_start call_t1 bash {"command":"sleep 9"}"#,
        "error The agent stopped before it had finished.",
        "tool_end call_t1 The tool call was interrupted. 0",
        "complete a1",
        "turn a1 Error",
    ];
    assert_eq!(stage.script(), expected);
    assert_eq!(stage.effects, [Effect::Interrupted { message: "a1".to_owned() }]);
}

#[test]
fn a_stream_killed_in_the_middle_is_settled_by_what_the_agent_kept() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/30_sigkill_midstream.jsonl");
    let lines = recordings::lines(&path);
    let mut stage = recordings::replay(&lines);
    let said = stage.said.len();
    stage.translator.stream_lost();
    stage.reconcile(&json!([]), false);
    let script = stage.script();
    assert_eq!(script[said], "error The agent stopped before it had finished.");
    assert!(script[said + 1].starts_with("complete ") && script[said + 2].ends_with(" Error"), "{script:?}");
}

#[test]
fn messages_of_earlier_turns_are_not_said_again() {
    let mut stage = Stage::busy();
    let old = entry(&completed_info("a0"), &[text_part("a0", "p0", "old", true)]);
    let new = entry(&completed_info("a1"), &[text_part("a1", "p1", "new", true)]);
    stage.reconcile(&json!([entry(&info("u0", "user"), &[]), old, user(), new]), false);
    assert_eq!(
        stage.script(),
        ["message a1", "token a1 p1 new", "text a1 p1 new", "complete a1", "turn a1 Ok"]
    );
}

#[test]
fn a_busy_agent_is_waited_for() {
    let mut stage = Stage::busy();
    stage.event(&message("a1", "assistant"));
    stage.reconcile(&json!([user(), entry(&info("a1", "assistant"), &[])]), true);
    assert!(stage.translator.is_busy());
    assert_eq!(stage.script(), ["message a1"]);
}

#[test]
fn a_turn_that_nobody_was_seen_working_on_is_given_up_only_by_name() {
    let mut stage = Stage::new(SESSION);
    stage.translator.begin(PROMPT);
    stage.reconcile(&json!([user()]), false);
    assert!(stage.translator.is_busy() && stage.said.is_empty());
    let output = stage.translator.give_up("The agent did not begin.", 5);
    stage.take(output);
    assert_eq!(stage.script(), ["error The agent did not begin.", "turn  Error"]);
    assert!(!stage.translator.is_busy());
}

#[test]
fn an_agent_that_falls_silent_has_failed() {
    let mut stage = Stage::busy();
    stage.event(&status("idle"));
    stage.reconcile(&json!([user()]), false);
    assert_eq!(stage.script(), ["error The agent ended the turn without an answer.", "turn  Error"]);
}

#[test]
fn pieces_after_a_gap_wait_for_the_whole_text() {
    let mut stage = Stage::busy();
    stage.events([message("a1", "assistant"), text("a1", "p1", "", false), delta("a1", "p1", "one ")]);
    stage.translator.stream_lost();
    stage.reconcile(
        &json!([user(), entry(&info("a1", "assistant"), &[text_part("a1", "p1", "", false)])]),
        true,
    );
    stage.event(&delta("a1", "p1", "three"));
    assert_eq!(stage.script().last().unwrap(), "token a1 p1 one ", "it does not follow on what was said");
    stage.event(&text("a1", "p1", "one two three", true));
    assert_eq!(stage.script()[2..], ["token a1 p1 two three", "text a1 p1 one two three"]);
}

#[test]
fn a_part_that_begins_after_the_gap_streams_at_once() {
    let mut stage = Stage::busy();
    stage.translator.stream_lost();
    // It began between the new subscription and the question for the history.
    stage.reconcile(
        &json!([user(), entry(&info("a1", "assistant"), &[text_part("a1", "p1", "", false)])]),
        true,
    );
    stage.events([text("a1", "p1", "", false), delta("a1", "p1", "at once")]);
    assert_eq!(stage.script(), ["message a1", "token a1 p1 at once"]);
}

#[test]
fn an_agent_that_was_found_busy_can_end_the_turn() {
    let mut stage = Stage::new(SESSION);
    stage.translator.begin(PROMPT);
    stage.reconcile(&json!([user()]), true);
    stage.event(&status("idle"));
    assert!(matches!(stage.effects[..], [Effect::Settle { .. }]));
}

#[test]
fn the_second_idle_leaves_nothing_to_wait_for() {
    let mut stage = Stage::busy();
    stage.events([message("a1", "assistant"), status("idle"), status("idle")]);
    let [Effect::Settle { after: first }, Effect::Settle { after: second }] = &stage.effects[..] else {
        panic!("{:?}", stage.effects)
    };
    assert!(!first.is_zero() && second.is_zero());
}

#[test]
fn an_error_that_was_told_before_the_restart_is_not_told_again() {
    let mut stage = Stage::busy();
    stage.events([message("a1", "assistant"), session_error("APIError", "bad key")]);
    stage.translator = Translator::resume(SESSION, PROMPT, &stage.said);
    stage.reconcile(&json!([user(), entry(&failed_info("a1", "APIError", "bad key"), &[])]), false);
    assert_eq!(stage.script(), ["message a1", "error bad key", "complete a1", "turn a1 Error"]);
}

#[test]
fn an_answer_that_was_begun_anew_while_nobody_listened_is_said_once() {
    let mut stage = Stage::busy();
    stage.events([message("a1", "assistant"), text("a1", "p1", "", false), delta("a1", "p1", "one tw")]);
    stage.translator = Translator::resume(SESSION, PROMPT, &stage.said);
    let said = stage.said.len();
    let parts = [text_part("a1", "p1", "", false)];
    stage.reconcile(&json!([user(), entry(&info("a1", "assistant"), &parts)]), true);
    stage.events([
        text("a1", "p2", "", false),
        delta("a1", "p2", "one two"),
        text("a1", "p2", "one two", true),
    ]);
    stage.events([completed("a1"), status("idle")]);
    let expected = ["text a1 p1 ", "token a1 p2 one two", "text a1 p2 one two", "complete a1", "turn a1 Ok"];
    assert_eq!(stage.script()[said..], expected);
}

#[test]
fn a_new_process_goes_on_where_the_old_one_was_killed() {
    let mut stage = Stage::busy();
    stage.events([message("a1", "assistant"), text("a1", "p1", "", false), delta("a1", "p1", "one ")]);
    stage.event(&tool("a1", "t1", json!({ "status": "running", "input": { "command": "ls" } })));
    stage.translator = Translator::resume(SESSION, PROMPT, &stage.said);
    let said = stage.said.len();
    let parts = [text_part("a1", "p1", "one two", true), tool_part("a1", "t1", done_state())];
    stage.reconcile(&json!([user(), entry(&completed_info("a1"), &parts)]), false);
    let expected = [
        "token a1 p1 two",
        "text a1 p1 one two",
        r#"{"type":"tool_metadata","payload":{"toolCallId":"call_t1","tool":"bash","title":"ls","metadata":{"exit":0}}}"#,
        "tool_end call_t1 a.txt 350",
        "complete a1",
        "turn a1 Ok",
    ];
    assert_eq!(stage.script()[said..], expected);
}

#[test]
fn a_turn_that_was_told_to_its_end_is_over_for_a_new_process_too() {
    let mut stage = Stage::busy();
    let history = json!([user(), entry(&completed_info("a1"), &[text_part("a1", "p1", "x", true)])]);
    stage.reconcile(&history, false);
    let said = stage.said.len();
    stage.translator = Translator::resume(SESSION, PROMPT, &stage.said);
    assert!(!stage.translator.is_busy());
    stage.reconcile(&history, false);
    stage.events([message("a1", "assistant"), text("a1", "p1", "x", true), status("idle")]);
    assert_eq!(stage.said.len(), said);
}

#[test]
fn a_message_that_makes_no_sense_does_not_hide_the_others() {
    let mut history = History::new(false);
    history.add_older(Page::split("[]".into()).unwrap());
    history.add_older(Page::split(json!([7, { "info": 7 }, user()]).to_string().into()).unwrap());
    assert_eq!(history.messages().filter_map(|message| message.entry()).count(), 1);
    assert!(history.has(PROMPT) && !history.has("msg_other"));
    assert!(Page::split("{".into()).is_err());
}
