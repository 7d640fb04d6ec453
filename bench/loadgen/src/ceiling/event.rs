//! The agent's events: each is parsed once and becomes one frame for all sockets of its session.

use std::sync::Arc;

use bytes::BytesMut;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;

use super::frame;
use super::session::Session;
use crate::clock::unix_ms;

/// `delta` stays raw JSON, so that it is copied to the client without unescaping and escaping it.
#[derive(Deserialize)]
struct Event<'a> {
    r#type: &'a str,
    #[serde(borrow)]
    properties: Properties<'a>,
}

#[derive(Deserialize)]
struct Properties<'a> {
    #[serde(borrow)]
    part: Option<Part<'a>>,
    #[serde(borrow)]
    info: Option<Info<'a>>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(rename = "messageID")]
    message: Option<&'a str>,
    #[serde(rename = "partID")]
    part_id: Option<&'a str>,
}

#[derive(Deserialize)]
struct Part<'a> {
    id: &'a str,
    #[serde(rename = "messageID")]
    message: &'a str,
    r#type: &'a str,
}

#[derive(Deserialize)]
struct Info<'a> {
    id: &'a str,
    role: &'a str,
    time: Times,
}

#[derive(Deserialize)]
struct Times {
    completed: Option<u64>,
}

/// Reads the agent's event stream; all frames of one read become one blob for all sockets.
pub async fn pump(session: Arc<Session>, mut body: Incoming) {
    let (mut rest, mut out, mut scratch) = (BytesMut::new(), BytesMut::new(), Vec::new());
    while let Some(Ok(part)) = body.frame().await {
        let Ok(chunk) = part.into_data() else { continue };
        rest.extend_from_slice(&chunk);
        let mut from = 0;
        while let Some(length) = memchr::memchr(b'\n', &rest[from..]) {
            if let Some(data) = rest[from..from + length].strip_prefix(b"data: ") {
                translate(data, &mut out, &mut scratch);
            }
            from += length + 1;
        }
        let _ = rest.split_to(from);
        if rest.is_empty() {
            rest = BytesMut::new(); // an idle stream holds no buffer
        }
        if !out.is_empty() {
            session.broadcast(std::mem::take(&mut out).freeze()).await;
        }
    }
}

/// Appends the client frame for one agent event to `out`.
fn translate(event: &[u8], out: &mut BytesMut, scratch: &mut Vec<u8>) {
    let Ok(Event { r#type, properties }) = serde_json::from_slice(event) else { return };
    scratch.clear();
    match (r#type, properties) {
        ("message.part.updated", Properties { part: Some(part), delta: Some(delta), .. })
            if part.r#type == "text" =>
        {
            write_token(scratch, part.message, part.id, delta);
        }
        (
            "message.part.delta",
            Properties { delta: Some(delta), message: Some(message), part_id: Some(part), .. },
        ) => write_token(scratch, message, part, delta),
        ("message.updated", Properties { info: Some(info), .. }) if info.role == "assistant" => {
            let message = match info.time.completed {
                None => json!({"type": "message", "payload": {"id": info.id, "role": "assistant",
                    "content": "", "isComplete": false, "createdAt": unix_ms()}}),
                Some(_) => json!({"type": "message_complete", "payload": {"messageId": info.id}}),
            };
            scratch.extend_from_slice(message.to_string().as_bytes());
        }
        _ => return,
    }
    frame::append(out, frame::TEXT, scratch);
}

fn write_token(out: &mut Vec<u8>, message: &str, part: &str, delta: &RawValue) {
    let pieces = [
        "{\"type\":\"token\",\"payload\":{\"messageId\":\"",
        message,
        "\",\"partId\":\"",
        part,
        "\",\"token\":",
        delta.get(),
        "}}",
    ];
    for piece in pieces {
        out.extend_from_slice(piece.as_bytes());
    }
}
