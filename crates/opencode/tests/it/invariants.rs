//! What holds for every stream, and what holds for every honest one, whatever is lost on the way.

use std::collections::{HashMap, HashSet};

use opencode::translate::Translator;
use proptest::prelude::*;
use proptest::sample::Index;
use proto::socket::ServerMessage;
use serde_json::{Value, json};

use crate::promises::check;
use crate::stage::{self, PROMPT, SESSION, Stage};

/// Anything at all, made of few enough ids that it hits itself.
fn any_event() -> impl Strategy<Value = Value> {
    let message = prop::sample::select(vec!["msg_a", "msg_b", "msg_c", PROMPT]);
    let part = prop::sample::select(vec!["prt_1", "prt_2", "prt_3"]);
    let text = prop::sample::select(vec!["", "a", "ab", "abc", "other"]);
    let state = prop::sample::select(vec!["pending", "running", "completed", "error"]);
    prop_oneof![
        prop::sample::select(vec!["busy", "idle", "idle", "retry"]).prop_map(stage::status),
        (message.clone(), prop::sample::select(vec!["user", "assistant"]))
            .prop_map(|(id, role)| stage::message(id, role)),
        message.clone().prop_map(stage::completed),
        message.clone().prop_map(|id| stage::updated(stage::failed_info(id, "APIError", "bad"))),
        message.clone().prop_map(|id| stage::updated(stage::failed_info(id, "MessageAbortedError", ""))),
        (message.clone(), part.clone(), text.clone()).prop_map(|(m, p, t)| stage::delta(m, p, t)),
        (message.clone(), part.clone(), text, any::<bool>())
            .prop_map(|(m, p, t, ended)| stage::text(m, p, t, ended)),
        (message, part, state).prop_map(|(m, p, state)| {
            stage::tool(m, p, json!({ "status": state, "input": { "a": 1 }, "output": "x" }))
        }),
        Just(stage::session_error("MessageAbortedError", "Aborted")),
        Just(stage::session_error("UnknownError", "strange")),
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

/// An honest agent's turn: events in order, and what its history is after each of them.
struct Honest {
    events: Vec<Value>,
    histories: Vec<Value>,
    texts: HashMap<String, String>,
    calls: usize,
}

impl Honest {
    /// Parts of one step run beside each other, in the order that `order` picks; but its texts follow each other.
    fn new(turn: &[Vec<Plan>], order: &[Index]) -> Self {
        let mut honest = Self { events: vec![], histories: vec![], texts: HashMap::new(), calls: 0 };
        let mut picks = order.iter().cycle();
        let mut past = vec![json!({ "info": stage::info(PROMPT, "user"), "parts": [] })];
        honest.push(stage::message(PROMPT, "user"), &past, None);
        honest.push(stage::status("busy"), &past, None);
        for (number, plans) in turn.iter().enumerate() {
            let message = format!("msg_{number}");
            let mut now = json!({ "info": stage::info(&message, "assistant"), "parts": [] });
            honest.push(stage::message(&message, "assistant"), &past, Some(&now));
            let mut lives: Vec<_> = plans
                .iter()
                .enumerate()
                .map(|(part, plan)| {
                    let is_text = matches!(plan, Plan::Text(_));
                    (is_text, honest.life(&message, &format!("prt_{number}_{part}"), plan))
                })
                .collect();
            while !lives.is_empty() {
                let first_text = lives.iter().position(|(is_text, _)| *is_text);
                let free = |pick: &usize| !lives[*pick].0 || first_text == Some(*pick);
                let free: Vec<usize> = (0..lives.len()).filter(free).collect();
                let pick = free[picks.next().unwrap().index(free.len())];
                let (event, stored) = lives[pick].1.remove(0);
                store(&mut now, stored);
                honest.push(event, &past, Some(&now));
                lives.retain(|(_, life)| !life.is_empty());
            }
            now["info"] = stage::completed_info(&message);
            honest.push(stage::completed(&message), &past, Some(&now));
            honest.push(stage::completed(&message), &past, Some(&now));
            past.push(now);
        }
        honest.push(stage::status("idle"), &past, None);
        honest.push(stage::message(PROMPT, "user"), &past, None);
        honest
    }

    /// The events of a part, each with the part as the agent has stored it then: a text only when it is whole.
    fn life(&mut self, message: &str, id: &str, plan: &Plan) -> Vec<(Value, Value)> {
        match plan {
            Plan::Text(pieces) => {
                let whole = pieces.concat();
                self.texts.insert(id.to_owned(), whole.clone());
                let begun = stage::text_part(message, id, "", false);
                let ended = stage::text_part(message, id, &whole, true);
                let grows = pieces.iter().map(|piece| (stage::delta(message, id, piece), begun.clone()));
                let first = (stage::part(begun.clone()), begun.clone());
                let last = (stage::part(ended.clone()), ended);
                std::iter::once(first).chain(grows).chain([last]).collect()
            }
            Plan::Tool => {
                self.calls += 1;
                let running = json!({ "status": "running", "input": { "command": "ls" } });
                let states = [json!({ "status": "pending", "input": {} }), running, stage::done_state()];
                let parts = states.map(|state| stage::tool_part(message, id, state));
                parts.map(|part| (stage::part(part.clone()), part)).to_vec()
            }
        }
    }

    fn push(&mut self, event: Value, past: &[Value], now: Option<&Value>) {
        self.events.push(event);
        self.histories.push(past.iter().chain(now).cloned().collect());
    }

    /// Everything that was to be said was said once.
    fn assert_told(&self, said: &[ServerMessage]) {
        check(said);
        let mut tokens: HashMap<&str, String> = HashMap::new();
        let mut ended = HashMap::new();
        let (mut calls, mut turns) = (0, 0);
        for message in said {
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
    // A failing case is written into the report, and not beside the tests.
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_clients_can_rely_on_the_order(
        events in prop::collection::vec(any_event(), 0..80),
        lost in prop::collection::vec(any::<Index>(), 0..3),
    ) {
        let mut stage = Stage::busy();
        let lost: HashSet<usize> = lost.iter().map(|index| index.index(80)).collect();
        for (number, event) in events.iter().enumerate() {
            stage.event(event);
            stage.now += 100;
            if lost.contains(&number) {
                stage.translator.stream_lost();
                stage.reconcile(&json!([{ "info": stage::completed_info("msg_b"), "parts": [] }]), false);
            }
        }
        let output = stage.translator.give_up("the test is over", stage.now);
        stage.take(output);
        check(&stage.said);
    }

    #[test]
    fn an_honest_turn_is_told_whole_and_once(
        turn in any_turn(),
        order in prop::collection::vec(any::<Index>(), 1..20),
    ) {
        let honest = Honest::new(&turn, &order);
        let mut stage = Stage::new(SESSION);
        stage.translator.begin(PROMPT);
        stage.events(honest.events.clone());
        honest.assert_told(&stage.said);
    }

    /// Events between two points never arrive: the stream broke, or the gateway was killed and started again.
    #[test]
    fn a_turn_is_told_whole_and_once_although_events_were_lost(
        turn in any_turn(),
        order in prop::collection::vec(any::<Index>(), 1..20),
        from in any::<Index>(),
        length in any::<Index>(),
        killed in any::<bool>(),
    ) {
        let honest = Honest::new(&turn, &order);
        // The turn has ended at the last but one event.
        let from = from.index(honest.events.len() - 1);
        let to = from + length.index(honest.events.len() - from);
        let mut stage = Stage::new(SESSION);
        stage.translator.begin(PROMPT);
        stage.events(honest.events[..from].to_vec());
        stage.translator.stream_lost();
        if killed {
            stage.translator = Translator::resume(SESSION, PROMPT, &stage.said);
        }
        let ended = to + 2 > honest.events.len() - 1 && to > 0;
        stage.reconcile(&honest.histories[to.max(1) - 1], !ended);
        stage.events(honest.events[to..].to_vec());
        honest.assert_told(&stage.said);
    }
}
