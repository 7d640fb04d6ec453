//! One answer of the model, and its serialization for the Messages API, as JSON or as a stream of events.

use std::time::Duration;

use serde_json::{Value, json};

use crate::reply::Frame;
use crate::request::tokens;

/// A complete answer before serialization.
#[derive(Debug)]
pub(crate) struct Message {
    pub(crate) id: String,
    pub(crate) model: String,
    pub(crate) blocks: Vec<Block>,
    pub(crate) stop_reason: &'static str,
    pub(crate) input_tokens: usize,
}

#[derive(Debug)]
pub(crate) enum Block {
    Thinking { words: String, signature: String },
    Text(String),
    Tool { id: String, name: String, input: Value },
}

/// How a stream is split into events.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunking {
    /// The number of characters per delta.
    pub(crate) chunk: usize,
    /// The delay before each delta.
    pub(crate) delay: Duration,
}

impl Message {
    pub(crate) fn to_json(&self) -> Value {
        let content: Vec<Value> = self.blocks.iter().map(Block::to_json).collect();
        self.envelope(&content, &json!(self.stop_reason), self.output_tokens())
    }

    /// All events from `message_start` to `message_stop`, one frame each.
    pub(crate) fn to_frames(&self, chunking: Chunking) -> Vec<Frame> {
        let start = json!({ "type": "message_start", "message": self.envelope(&[], &Value::Null, 1) });
        let mut frames = vec![frame(&start, Duration::ZERO)];
        for (index, block) in self.blocks.iter().enumerate() {
            let opening = block.opening();
            let start = json!({ "type": "content_block_start", "index": index, "content_block": opening });
            frames.push(frame(&start, Duration::ZERO));
            if index == 0 {
                frames.push(frame(&json!({ "type": "ping" }), Duration::ZERO));
            }
            frames.extend(block.deltas(chunking.chunk).into_iter().map(|delta| {
                let event = json!({ "type": "content_block_delta", "index": index, "delta": delta });
                frame(&event, chunking.delay)
            }));
            frames.push(frame(&json!({ "type": "content_block_stop", "index": index }), Duration::ZERO));
        }
        let delta = json!({ "stop_reason": self.stop_reason, "stop_sequence": null });
        let usage = json!({ "output_tokens": self.output_tokens() });
        let end = json!({ "type": "message_delta", "delta": delta, "usage": usage });
        frames.push(frame(&end, Duration::ZERO));
        frames.push(frame(&json!({ "type": "message_stop" }), Duration::ZERO));
        frames
    }

    fn envelope(&self, content: &[Value], stop_reason: &Value, output_tokens: usize) -> Value {
        json!({
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": null,
            "usage": {
                "input_tokens": self.input_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
                "output_tokens": output_tokens,
            },
        })
    }

    pub(crate) fn output_tokens(&self) -> usize {
        tokens(self.blocks.iter().map(Block::length).sum())
    }
}

impl Block {
    fn to_json(&self) -> Value {
        match self {
            Self::Thinking { words, signature } => {
                json!({ "type": "thinking", "thinking": words, "signature": signature })
            }
            Self::Text(words) => json!({ "type": "text", "text": words }),
            Self::Tool { id, name, input } => {
                json!({ "type": "tool_use", "id": id, "name": name, "input": input })
            }
        }
    }

    /// The block as it is announced in a stream, without content.
    fn opening(&self) -> Value {
        match self {
            Self::Thinking { .. } => json!({ "type": "thinking", "thinking": "", "signature": "" }),
            Self::Text(_) => json!({ "type": "text", "text": "" }),
            Self::Tool { id, name, .. } => json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
        }
    }

    fn deltas(&self, chunk: usize) -> Vec<Value> {
        match self {
            Self::Thinking { words, signature } => pieces(words, chunk)
                .map(|piece| json!({ "type": "thinking_delta", "thinking": piece }))
                .chain([json!({ "type": "signature_delta", "signature": signature })])
                .collect(),
            Self::Text(words) => {
                pieces(words, chunk).map(|piece| json!({ "type": "text_delta", "text": piece })).collect()
            }
            Self::Tool { input, .. } => pieces(&input.to_string(), chunk)
                .map(|piece| json!({ "type": "input_json_delta", "partial_json": piece }))
                .collect(),
        }
    }

    fn length(&self) -> usize {
        match self {
            Self::Thinking { words, .. } | Self::Text(words) => words.chars().count(),
            Self::Tool { name, input, .. } => name.chars().count() + input.to_string().chars().count(),
        }
    }
}

/// Splits at character boundaries.
pub(crate) fn pieces(words: &str, chunk: usize) -> impl Iterator<Item = String> {
    let letters: Vec<char> = words.chars().collect();
    letters.chunks(chunk.max(1)).map(|piece| piece.iter().collect()).collect::<Vec<String>>().into_iter()
}

fn frame(event: &Value, delay: Duration) -> Frame {
    let kind = event["type"].as_str().unwrap_or_default();
    Frame::Send { delay, bytes: format!("event: {kind}\ndata: {event}\n\n").into_bytes() }
}
