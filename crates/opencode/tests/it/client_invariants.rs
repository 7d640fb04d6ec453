//! The invariants that clients may rely on, whatever the agent sends.

use std::collections::HashSet;

use proto::socket::ServerMessage;

/// Panics if an invariant is violated.
pub(crate) fn check(emitted: &[ServerMessage]) {
    let mut open: Vec<&str> = Vec::new();
    let (mut turn, mut seen) = (Vec::new(), HashSet::new());
    let (mut calls, mut ended_calls, mut ended_texts) = (HashSet::new(), HashSet::new(), HashSet::new());
    for message in emitted {
        let formatted = format!("{message:?}");
        match message {
            ServerMessage::Message(message) => {
                assert!(seen.insert(&message.id), "announced twice: {formatted}");
                open.push(&message.id);
                turn.push(message.id.clone());
            }
            ServerMessage::Token { message_id, part_id, .. } => {
                assert!(open.contains(&message_id.as_str()), "a token outside its message: {formatted}");
                assert!(!ended_texts.contains(part_id), "a token after the end: {formatted}");
            }
            ServerMessage::TextPartComplete { message_id, part_id, .. } => {
                assert!(open.contains(&message_id.as_str()), "a text outside its message: {formatted}");
                assert!(ended_texts.insert(part_id), "ended twice: {formatted}");
            }
            ServerMessage::ToolStart { message_id, tool_call_id, .. } => {
                let message = message_id.as_deref().unwrap();
                assert!(turn.iter().any(|id| id == message), "a call outside its message: {formatted}");
                assert!(!ended_calls.contains(tool_call_id), "started after its end: {formatted}");
                calls.insert(tool_call_id);
            }
            ServerMessage::ToolEnd { tool_call_id, .. } => {
                assert!(calls.contains(tool_call_id), "ended but never started: {formatted}");
                assert!(ended_calls.insert(tool_call_id), "ended twice: {formatted}");
            }
            ServerMessage::MessageCancelled { message_id: Some(message_id) } => {
                open.retain(|id| id != message_id);
            }
            ServerMessage::MessageComplete { message_id } => {
                let before = open.len();
                open.retain(|id| id != message_id);
                assert_eq!(open.len() + 1, before, "completed twice or never started: {formatted}");
            }
            ServerMessage::TurnComplete { message_ids, .. } => {
                assert!(open.is_empty(), "the turn ended before its message: {formatted}");
                assert_eq!(message_ids, &std::mem::take(&mut turn), "not the messages of the turn");
                assert_eq!(calls.len(), ended_calls.len(), "a call was left running: {formatted}");
            }
            _ => {}
        }
    }
}
