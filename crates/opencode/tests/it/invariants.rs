//! Invariants for arbitrary streams, and for well-behaved ones with lost events.

use std::collections::{HashMap, HashSet};

use opencode::translate::{Effect, Translator};
use proptest::prelude::*;
use proptest::sample::Index;
use proto::socket::ServerMessage;
use serde_json::{Value, json};

use crate::client_invariants::check;
use crate::harness::{self, Harness, PROMPT, SESSION};

/// Arbitrary events with few ids, so that they often refer to each other.
fn any_event() -> impl Strategy<Value = Value> {
    let message = prop::sample::select(vec!["msg_a", "msg_b", "msg_c", PROMPT]);
    let part = prop::sample::select(vec!["prt_1", "prt_2", "prt_3"]);
    let text = prop::sample::select(vec!["", "a", "ab", "abc", "other"]);
    let state = prop::sample::select(vec!["pending", "running", "completed", "error"]);
    prop_oneof![
        prop::sample::select(vec!["busy", "idle", "idle", "retry"]).prop_map(harness::status),
        (message.clone(), prop::sample::select(vec!["user", "assistant"]))
            .prop_map(|(id, role)| harness::message(id, role)),
        message.clone().prop_map(harness::completed),
        message.clone().prop_map(|id| harness::updated(harness::failed_info(id, "APIError", "bad"))),
        message.clone().prop_map(|id| harness::updated(harness::failed_info(id, "MessageAbortedError", ""))),
        (message.clone(), part.clone(), text.clone()).prop_map(|(m, p, t)| harness::delta(m, p, t)),
        (message.clone(), part.clone(), text, any::<bool>())
            .prop_map(|(m, p, t, ended)| harness::text(m, p, t, ended)),
        (message, part, state).prop_map(|(m, p, state)| {
            harness::tool(m, p, json!({ "status": state, "input": { "a": 1 }, "output": "x" }))
        }),
        Just(harness::session_error("MessageAbortedError", "Aborted")),
        Just(harness::session_error("UnknownError", "strange")),
    ]
}

#[derive(Clone, Debug)]
enum Plan {
    Text(Vec<String>),
    Tool,
}

fn any_turn() -> impl Strategy<Value = Vec<Vec<Plan>>> {
    let piece = prop_oneof!["[a-z ]{1,9}", "[äß€ \n]{1,3}"];
    let part = prop_oneof![prop::collection::vec(piece, 1..6).prop_map(Plan::Text), Just(Plan::Tool)];
    prop::collection::vec(prop::collection::vec(part, 1..4), 1..4)
}

/// A turn of a well-behaved agent: its events in order, and its history after each of them.
struct HonestTurn {
    events: Vec<Value>,
    histories: Vec<Value>,
    texts: HashMap<String, String>,
    calls: usize,
}

impl HonestTurn {
    /// Parts of one step overlap in the order that `order` picks, but its texts are sequential.
    fn new(turn: &[Vec<Plan>], order: &[Index]) -> Self {
        let mut honest = Self { events: vec![], histories: vec![], texts: HashMap::new(), calls: 0 };
        let mut picks = order.iter().cycle();
        let mut past = vec![json!({ "info": harness::info(PROMPT, "user"), "parts": [] })];
        honest.push(harness::message(PROMPT, "user"), &past, None);
        honest.push(harness::status("busy"), &past, None);
        for (number, plans) in turn.iter().enumerate() {
            let message = format!("msg_{number}");
            let mut now = json!({ "info": harness::info(&message, "assistant"), "parts": [] });
            honest.push(harness::message(&message, "assistant"), &past, Some(&now));
            let mut part_queues: Vec<_> = plans
                .iter()
                .enumerate()
                .map(|(part, plan)| {
                    let is_text = matches!(plan, Plan::Text(_));
                    (is_text, honest.part_events(&message, &format!("prt_{number}_{part}"), plan))
                })
                .collect();
            while !part_queues.is_empty() {
                let first_text = part_queues.iter().position(|(is_text, _)| *is_text);
                let free = |pick: &usize| !part_queues[*pick].0 || first_text == Some(*pick);
                let free: Vec<usize> = (0..part_queues.len()).filter(free).collect();
                let pick = free[picks.next().unwrap().index(free.len())];
                let (event, stored) = part_queues[pick].1.remove(0);
                store(&mut now, stored);
                honest.push(event, &past, Some(&now));
                part_queues.retain(|(_, part_events)| !part_events.is_empty());
            }
            now["info"] = harness::completed_info(&message);
            honest.push(harness::completed(&message), &past, Some(&now));
            honest.push(harness::completed(&message), &past, Some(&now));
            past.push(now);
        }
        honest.push(harness::status("idle"), &past, None);
        honest.push(harness::message(PROMPT, "user"), &past, None);
        honest
    }

    /// The events of a part, each with the part as stored at that time: a text is stored only when complete.
    fn part_events(&mut self, message: &str, id: &str, plan: &Plan) -> Vec<(Value, Value)> {
        match plan {
            Plan::Text(pieces) => {
                let whole = pieces.concat();
                self.texts.insert(id.to_owned(), whole.clone());
                let begun = harness::text_part(message, id, "", false);
                let ended = harness::text_part(message, id, &whole, true);
                let grows = pieces.iter().map(|piece| (harness::delta(message, id, piece), begun.clone()));
                let first = (harness::part(begun.clone()), begun.clone());
                let last = (harness::part(ended.clone()), ended);
                std::iter::once(first).chain(grows).chain([last]).collect()
            }
            Plan::Tool => {
                self.calls += 1;
                let running = json!({ "status": "running", "input": { "command": "ls" } });
                let states = [json!({ "status": "pending", "input": {} }), running, harness::done_state()];
                let parts = states.map(|state| harness::tool_part(message, id, state));
                parts.map(|part| (harness::part(part.clone()), part)).to_vec()
            }
        }
    }

    fn push(&mut self, event: Value, past: &[Value], now: Option<&Value>) {
        self.events.push(event);
        self.histories.push(past.iter().chain(now).cloned().collect());
    }

    /// Asserts that everything was emitted exactly once.
    fn assert_emitted_once(&self, emitted: &[ServerMessage]) {
        check(emitted);
        let mut tokens: HashMap<&str, String> = HashMap::new();
        let mut ended = HashMap::new();
        let (mut calls, mut turns) = (0, 0);
        for message in emitted {
            match message {
                ServerMessage::Token { part_id, token, .. } => {
                    tokens.entry(part_id).or_default().push_str(token);
                }
                ServerMessage::TextPartComplete { part_id, text, .. } => {
                    ended.insert(part_id.clone(), text.clone());
                }
                ServerMessage::ToolEnd { result, .. } => {
                    assert_eq!(result, "a.txt");
                    calls += 1;
                }
                ServerMessage::TurnComplete { .. } => turns += 1,
                ServerMessage::Error { message } => panic!("{message}"),
                _ => {}
            }
        }
        assert_eq!(ended, self.texts);
        for (part, text) in &self.texts {
            assert_eq!(&tokens[part.as_str()], text);
        }
        assert_eq!((calls, turns), (self.calls, 1));
    }
}

fn store(message: &mut Value, part: Value) {
    let parts = message["parts"].as_array_mut().unwrap();
    match parts.iter_mut().find(|other| other["id"] == part["id"]) {
        Some(other) => *other = part,
        None => parts.push(part),
    }
}

proptest! {
    // Failing cases are in the report; do not write them to files.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_events_uphold_the_client_invariants(
        events in prop::collection::vec(any_event(), 0..80),
        lost in prop::collection::vec(any::<Index>(), 0..3),
    ) {
        let mut harness = Harness::busy();
        let lost: HashSet<usize> = lost.iter().map(|index| index.index(80)).collect();
        for (number, event) in events.iter().enumerate() {
            harness.event(event);
            harness.now += 100;
            if lost.contains(&number) {
                harness.translator.stream_lost();
                harness.reconcile(&json!([{ "info": harness::completed_info("msg_b"), "parts": [] }]), false);
            }
        }
        let output = harness.translator.give_up("the test is over", harness.now);
        harness.take(output);
        check(&harness.emitted);
    }

    #[test]
    fn an_honest_turn_is_emitted_completely_and_once(
        turn in any_turn(),
        order in prop::collection::vec(any::<Index>(), 1..20),
    ) {
        let honest = HonestTurn::new(&turn, &order);
        let mut harness = Harness::new(SESSION);
        harness.translator.begin(PROMPT);
        harness.events(honest.events.clone());
        honest.assert_emitted_once(&harness.emitted);
    }

    /// Events between two points never arrive: the stream broke, or the gateway was killed and restarted.
    #[test]
    fn a_turn_with_lost_events_is_emitted_completely_and_once(
        turn in any_turn(),
        order in prop::collection::vec(any::<Index>(), 1..20),
        from in any::<Index>(),
        length in any::<Index>(),
        killed in any::<bool>(),
    ) {
        let honest = HonestTurn::new(&turn, &order);
        // The turn ends with the last event but one.
        let from = from.index(honest.events.len() - 1);
        let to = from + length.index(honest.events.len() - from);
        let mut harness = Harness::new(SESSION);
        harness.translator.begin(PROMPT);
        harness.events(honest.events[..from].to_vec());
        harness.translator.stream_lost();
        if killed {
            harness.translator = Translator::resume(SESSION, PROMPT, &harness.emitted);
        }
        let ended = to + 2 > honest.events.len() - 1 && to > 0;
        let history = &honest.histories[to.max(1) - 1];
        harness.effects.clear();
        harness.reconcile(history, !ended);
        if matches!(harness.effects[..], [Effect::Settle { .. }]) {
            // This history was the first sign of the turn, so the translator wants to see another one.
            harness.reconcile(history, !ended);
        }
        harness.events(honest.events[to..].to_vec());
        honest.assert_emitted_once(&harness.emitted);
    }
}
