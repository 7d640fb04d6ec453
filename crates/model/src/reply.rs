//! The model's response as plain data, which the gateway and the test server each serve in their own way.

use std::time::Duration;

use serde_json::Value;

/// One HTTP response of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub status: u16,
    /// Names are in lower case, values are ASCII.
    pub headers: Vec<(&'static str, String)>,
    /// The delay before anything is sent, including the status line.
    pub delay: Duration,
    /// The body: one frame for JSON, or one frame per event of a stream.
    pub frames: Vec<Frame>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// Wait for `delay`, then send `bytes`.
    Send { delay: Duration, bytes: Vec<u8> },
    /// Break the connection here, without a proper end of the body. Always the last frame.
    Cut,
}

impl Reply {
    /// The complete body, ignoring delays and cuts.
    pub fn bytes(&self) -> Vec<u8> {
        let sent = self.frames.iter().filter_map(|frame| match frame {
            Frame::Send { bytes, .. } => Some(bytes.as_slice()),
            Frame::Cut => None,
        });
        sent.collect::<Vec<_>>().concat()
    }

    pub(crate) fn json(status: u16, body: &Value) -> Self {
        let frame = Frame::Send { delay: Duration::ZERO, bytes: body.to_string().into_bytes() };
        Self {
            status,
            headers: vec![("content-type", "application/json".to_owned())],
            delay: Duration::ZERO,
            frames: vec![frame],
        }
    }

    pub(crate) fn stream(frames: Vec<Frame>) -> Self {
        let headers = vec![
            ("content-type", "text/event-stream; charset=utf-8".to_owned()),
            ("cache-control", "no-cache".to_owned()),
        ];
        Self { status: 200, headers, delay: Duration::ZERO, frames }
    }
}
