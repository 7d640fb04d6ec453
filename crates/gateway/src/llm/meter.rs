//! Counts what an answer of the model used, while it passes: the bytes go on as they are.

use bytes::Bytes;
use serde::Deserialize;
use store::Usage;

/// A line that is longer holds no usage; a whole answer that is not streamed may.
const LONGEST_LINE: usize = 64 * 1024;
const LONGEST_BODY: usize = 4 * 1024 * 1024;
const LONGEST_NAME: usize = 100;

/// Reads the usage out of a Messages API answer, streamed or whole.
#[derive(Debug)]
pub(crate) struct Meter {
    streamed: bool,
    line: Vec<u8>,
    /// The line is longer than any that matters; its rest is skipped.
    skipping: bool,
    used: Tokens,
    model: String,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Tokens {
    #[serde(rename = "input_tokens")]
    input: Option<i64>,
    #[serde(rename = "output_tokens")]
    output: Option<i64>,
    #[serde(rename = "cache_read_input_tokens")]
    cache_read: Option<i64>,
    #[serde(rename = "cache_creation_input_tokens")]
    cache_write: Option<i64>,
}

#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default)]
    message: Option<Begun>,
    #[serde(default)]
    model: Option<String>,
}

#[derive(Deserialize)]
struct Begun {
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default)]
    model: Option<String>,
}

impl Meter {
    pub(crate) fn new(streamed: bool) -> Self {
        Self { streamed, line: Vec::new(), skipping: false, used: Tokens::default(), model: String::new() }
    }

    /// Looks at the next piece.
    pub(crate) fn pass(&mut self, piece: &Bytes) {
        if !self.streamed {
            if self.line.len() + piece.len() <= LONGEST_BODY {
                self.line.extend_from_slice(piece);
            }
            return;
        }
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            if !self.skipping {
                self.line.extend_from_slice(part);
                self.skipping = self.line.len() > LONGEST_LINE;
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                if !std::mem::take(&mut self.skipping)
                    && let Some(data) = line.strip_prefix(b"data:")
                {
                    self.read(data);
                }
            }
        }
    }

    /// The model that answered and what was used, as far as it was said.
    pub(crate) fn usage(mut self) -> (String, Usage) {
        if !self.streamed {
            let body = std::mem::take(&mut self.line);
            self.read(&body);
        }
        let count = |tokens: Option<i64>| tokens.unwrap_or_default().max(0);
        let used = Usage {
            requests: 1,
            input_tokens: count(self.used.input),
            output_tokens: count(self.used.output),
            cache_read_tokens: count(self.used.cache_read),
            cache_write_tokens: count(self.used.cache_write),
            cost_micros: 0,
        };
        (if self.model.is_empty() { "unknown".to_owned() } else { self.model }, used)
    }

    /// Later numbers replace earlier ones: they are sums so far.
    fn read(&mut self, json: &[u8]) {
        let Ok(said) = serde_json::from_slice::<Said>(json) else { return };
        let (begun, named) = said.message.map_or((None, None), |message| (message.usage, message.model));
        if let Some(model) = said.model.or(named) {
            self.model = model.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect();
        }
        let all = [begun, said.usage];
        for tokens in all.into_iter().flatten() {
            let used = &mut self.used;
            used.input = tokens.input.or(used.input);
            used.output = tokens.output.or(used.output);
            used.cache_read = tokens.cache_read.or(used.cache_read);
            used.cache_write = tokens.cache_write.or(used.cache_write);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"m-1\",\"usage\":{\"input_tokens\":10,\
        \"cache_read_input_tokens\":3,\"output_tokens\":1}}}\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\n\
        data: {\"type\":\"content_block_delta\",\"delta\":{\"text\":\"\\\"usage\\\":{}\"}}\n\n\
        event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":42}}\n\n";

    #[test]
    fn a_streamed_answer_is_counted_however_it_is_cut() {
        for size in [1, 2, 7, 64, 10_000] {
            let mut meter = Meter::new(true);
            for piece in STREAM.as_bytes().chunks(size) {
                meter.pass(&Bytes::copy_from_slice(piece));
            }
            let (model, used) = meter.usage();
            assert_eq!(
                (used.input_tokens, used.output_tokens, used.cache_read_tokens),
                (10, 42, 3),
                "{size}"
            );
            assert_eq!(model, "m-1");
        }
    }

    #[test]
    fn a_whole_answer_is_counted_and_garbage_is_nothing() {
        let mut meter = Meter::new(false);
        meter.pass(&Bytes::from_static(br#"{"content":[],"usage":{"input_tokens":5,"#));
        meter.pass(&Bytes::from_static(br#""output_tokens":6}}"#));
        let (_, used) = meter.usage();
        assert_eq!((used.requests, used.input_tokens, used.output_tokens), (1, 5, 6));
        let mut meter = Meter::new(true);
        meter.pass(&Bytes::from(format!("data: {}", "x".repeat(LONGEST_LINE * 3))));
        assert!(meter.line.len() <= LONGEST_LINE * 3 + 10 && meter.skipping);
        meter.pass(&Bytes::from_static(b"\ndata: {\"usage\":{\"output_tokens\":-5}}\n"));
        assert_eq!(meter.usage().1.output_tokens, 0, "nobody earns tokens");
    }
}
