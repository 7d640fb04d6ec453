//! Recovery after missed events with the agent's history.

use std::time::Duration;

use agent::History;
use opencode::history::{Entry, split_page};
use opencode::translate::{Effect, Translator};
use serde_json::{Value, json};

use crate::harness::{
    Harness, PROMPT, SESSION, completed, completed_info, delta, done_state, failed_info, info, message,
    session_error, status, text, text_part, tool, tool_part,
};
use crate::recordings;

fn entry(info: &Value, parts: &[Value]) -> Value {
    json!({ "info": info, "parts": parts })
}

fn user() -> Value {
    entry(&info(PROMPT, "user"), &[])
}

#[test]
fn a_killed_agent_ends_the_turn_and_its_text_is_kept() {
    let mut harness = Harness::busy();
    harness.events([message("a1", "assistant"), text("a1", "p1", "", false), delta("a1", "p1", "partial ")]);
    harness.event(&tool("a1", "t1", json!({ "status": "running", "input": { "command": "sleep 9" } })));
    harness.translator.stream_lost();
    let lost = [
        text_part("a1", "p1", "", false),
        tool_part("a1", "t1", json!({ "status": "running", "input": { "command": "sleep 9" } })),
    ];
    harness.reconcile(&json!([user(), entry(&info("a1", "assistant"), &lost)]), false);
    let expected = [
        "message a1",
        "token a1 p1 partial ",
        r#"tool_start call_t1 bash {"command":"sleep 9"}"#,
        "error The agent stopped before it had finished.",
        "tool_end call_t1 The tool call was interrupted. 0",
        "complete a1",
        "turn a1 Error",
    ];
    assert_eq!(harness.script(), expected);
    assert_eq!(harness.effects, [Effect::Interrupted { message: "a1".to_owned() }]);
}

#[test]
fn a_killed_stream_is_settled_from_the_history() {
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings/30_sigkill_midstream.jsonl");
    let lines = recordings::lines(&path);
    let mut harness = recordings::replay(&lines);
    let emitted = harness.emitted.len();
    harness.translator.stream_lost();
    harness.reconcile(&json!([]), false);
    let script = harness.script();
    assert_eq!(script[emitted], "error The agent stopped before it had finished.");
    assert!(
        script[emitted + 1].starts_with("complete ") && script[emitted + 2].ends_with(" Error"),
        "{script:?}"
    );
}

#[test]
fn messages_of_earlier_turns_are_not_repeated() {
    let mut harness = Harness::busy();
    let old = entry(&completed_info("a0"), &[text_part("a0", "p0", "old", true)]);
    let new = entry(&completed_info("a1"), &[text_part("a1", "p1", "new", true)]);
    harness.reconcile(&json!([entry(&info("u0", "user"), &[]), old, user(), new]), false);
    assert_eq!(
        harness.script(),
        ["message a1", "token a1 p1 new", "text a1 p1 new", "complete a1", "turn a1 Ok"]
    );
}

#[test]
fn reconcile_waits_for_a_busy_agent() {
    let mut harness = Harness::busy();
    harness.event(&message("a1", "assistant"));
    harness.reconcile(&json!([user(), entry(&info("a1", "assistant"), &[])]), true);
    assert!(harness.translator.is_busy());
    assert_eq!(harness.script(), ["message a1"]);
}

#[test]
fn a_turn_that_never_started_ends_only_by_give_up() {
    let mut harness = Harness::new(SESSION);
    harness.translator.begin(PROMPT);
    harness.reconcile(&json!([user()]), false);
    assert!(harness.translator.is_busy() && harness.emitted.is_empty());
    let output = harness.translator.give_up("The agent did not begin.", 5);
    harness.take(output);
    assert_eq!(harness.script(), ["error The agent did not begin.", "turn  Error"]);
    assert!(!harness.translator.is_busy());
}

#[test]
fn an_agent_that_starts_while_the_history_is_read_is_not_cut_off() {
    let mut harness = Harness::new(SESSION);
    harness.translator.begin(PROMPT);
    // It was idle when it was asked, and had started when the pages were read.
    let half = json!([user(), entry(&info("a1", "assistant"), &[text_part("a1", "p1", "", false)])]);
    harness.reconcile(&half, false);
    assert!(harness.translator.is_busy());
    assert_eq!(harness.effects, [Effect::Settle { after: Duration::ZERO }]);
    harness.events([status("busy"), message("a1", "assistant"), text("a1", "p1", "", false)]);
    harness.events([delta("a1", "p1", "whole"), text("a1", "p1", "whole", true), completed("a1")]);
    harness.event(&status("idle"));
    let expected = ["message a1", "token a1 p1 whole", "text a1 p1 whole", "complete a1", "turn a1 Ok"];
    assert_eq!(harness.script(), expected);
}

#[test]
fn a_turn_that_only_the_history_shows_is_ended_by_the_second_reading() {
    let mut harness = Harness::new(SESSION);
    harness.translator.begin(PROMPT);
    let answer = entry(&completed_info("a1"), &[text_part("a1", "p1", "all", true)]);
    let whole = json!([user(), answer]);
    harness.reconcile(&whole, false);
    assert!(harness.translator.is_busy());
    harness.reconcile(&whole, false);
    let expected = ["message a1", "token a1 p1 all", "text a1 p1 all", "complete a1", "turn a1 Ok"];
    assert_eq!(harness.script(), expected);
}

#[test]
fn late_events_of_a_turn_that_the_history_ended_start_no_other_turn() {
    let mut harness = Harness::busy();
    let answer = entry(&completed_info("a1"), &[text_part("a1", "p1", "all", true)]);
    harness.reconcile(&json!([user(), answer]), false);
    let script = harness.script();
    harness.events([status("busy"), message("a1", "assistant"), text("a1", "p1", "all", true)]);
    harness.events([completed("a1"), status("idle")]);
    assert!(!harness.translator.is_busy());
    assert_eq!(harness.script(), script);
    assert_eq!(harness.effects, []);
}

#[test]
fn an_idle_agent_without_answer_fails_the_turn() {
    let mut harness = Harness::busy();
    harness.event(&status("idle"));
    harness.reconcile(&json!([user()]), false);
    assert_eq!(harness.script(), ["error The agent ended the turn without an answer.", "turn  Error"]);
}

#[test]
fn deltas_after_a_gap_wait_for_the_complete_text() {
    let mut harness = Harness::busy();
    harness.events([message("a1", "assistant"), text("a1", "p1", "", false), delta("a1", "p1", "one ")]);
    harness.translator.stream_lost();
    harness.reconcile(
        &json!([user(), entry(&info("a1", "assistant"), &[text_part("a1", "p1", "", false)])]),
        true,
    );
    harness.event(&delta("a1", "p1", "three"));
    assert_eq!(harness.script().last().unwrap(), "token a1 p1 one ", "it does not continue the emitted text");
    harness.event(&text("a1", "p1", "one two three", true));
    assert_eq!(harness.script()[2..], ["token a1 p1 two three", "text a1 p1 one two three"]);
}

#[test]
fn a_part_that_starts_after_the_gap_streams_immediately() {
    let mut harness = Harness::busy();
    harness.translator.stream_lost();
    // The part started between the new subscription and the history request.
    harness.reconcile(
        &json!([user(), entry(&info("a1", "assistant"), &[text_part("a1", "p1", "", false)])]),
        true,
    );
    harness.events([text("a1", "p1", "", false), delta("a1", "p1", "at once")]);
    assert_eq!(harness.script(), ["message a1", "token a1 p1 at once"]);
}

#[test]
fn an_agent_found_busy_can_end_the_turn() {
    let mut harness = Harness::new(SESSION);
    harness.translator.begin(PROMPT);
    harness.reconcile(&json!([user()]), true);
    harness.event(&status("idle"));
    assert!(matches!(harness.effects[..], [Effect::Settle { .. }]));
}

#[test]
fn the_second_idle_settles_without_delay() {
    let mut harness = Harness::busy();
    harness.events([message("a1", "assistant"), status("idle"), status("idle")]);
    let [Effect::Settle { after: first }, Effect::Settle { after: second }] = &harness.effects[..] else {
        panic!("{:?}", harness.effects)
    };
    assert!(!first.is_zero() && second.is_zero());
}

#[test]
fn an_error_reported_before_a_restart_is_not_repeated() {
    let mut harness = Harness::busy();
    harness.events([message("a1", "assistant"), session_error("APIError", "bad key")]);
    harness.translator = Translator::resume(SESSION, PROMPT, &harness.emitted);
    harness.reconcile(&json!([user(), entry(&failed_info("a1", "APIError", "bad key"), &[])]), false);
    assert_eq!(harness.script(), ["message a1", "error bad key", "complete a1", "turn a1 Error"]);
}

#[test]
fn an_answer_restarted_during_a_gap_is_emitted_once() {
    let mut harness = Harness::busy();
    harness.events([message("a1", "assistant"), text("a1", "p1", "", false), delta("a1", "p1", "one tw")]);
    harness.translator = Translator::resume(SESSION, PROMPT, &harness.emitted);
    let emitted = harness.emitted.len();
    let parts = [text_part("a1", "p1", "", false)];
    harness.reconcile(&json!([user(), entry(&info("a1", "assistant"), &parts)]), true);
    harness.events([
        text("a1", "p2", "", false),
        delta("a1", "p2", "one two"),
        text("a1", "p2", "one two", true),
    ]);
    harness.events([completed("a1"), status("idle")]);
    let expected = ["text a1 p1 ", "token a1 p2 one two", "text a1 p2 one two", "complete a1", "turn a1 Ok"];
    assert_eq!(harness.script()[emitted..], expected);
}

#[test]
fn a_new_process_continues_where_the_old_one_was_killed() {
    let mut harness = Harness::busy();
    harness.events([message("a1", "assistant"), text("a1", "p1", "", false), delta("a1", "p1", "one ")]);
    harness.event(&tool("a1", "t1", json!({ "status": "running", "input": { "command": "ls" } })));
    harness.translator = Translator::resume(SESSION, PROMPT, &harness.emitted);
    let emitted = harness.emitted.len();
    let parts = [text_part("a1", "p1", "one two", true), tool_part("a1", "t1", done_state())];
    harness.reconcile(&json!([user(), entry(&completed_info("a1"), &parts)]), false);
    let expected = [
        "token a1 p1 two",
        "text a1 p1 one two",
        r#"{"type":"tool_metadata","payload":{"toolCallId":"call_t1","tool":"bash","title":"ls","metadata":{"exit":0}}}"#,
        "tool_end call_t1 a.txt 350",
        "complete a1",
        "turn a1 Ok",
    ];
    assert_eq!(harness.script()[emitted..], expected);
}

#[test]
fn a_finished_turn_stays_finished_in_a_new_process() {
    let mut harness = Harness::busy();
    let history = json!([user(), entry(&completed_info("a1"), &[text_part("a1", "p1", "x", true)])]);
    harness.reconcile(&history, false);
    let emitted = harness.emitted.len();
    harness.translator = Translator::resume(SESSION, PROMPT, &harness.emitted);
    assert!(!harness.translator.is_busy());
    harness.reconcile(&history, false);
    harness.events([message("a1", "assistant"), text("a1", "p1", "x", true), status("idle")]);
    assert_eq!(harness.emitted.len(), emitted);
}

#[test]
fn a_malformed_message_does_not_hide_the_others() {
    let mut history = History::new(false);
    history.add_older(split_page("[]".into()).unwrap());
    history.add_older(split_page(json!([7, { "info": 7 }, user()]).to_string().into()).unwrap());
    assert_eq!(history.messages().filter_map(|message| Entry::parse(&message)).count(), 1);
    assert!(history.has(PROMPT) && !history.has("msg_other"));
    assert!(split_page("{".into()).is_err());
}
