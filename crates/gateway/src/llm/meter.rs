//! Meters the usage in a model's response while the response streams through unchanged.

use bytes::Bytes;
use serde::Deserialize;
use store::Usage;

use super::LONGEST_NAME;
use super::asked::Asked;
use crate::config::Prices;

/// The maximum size of an event line and of a body that is not streamed. A longer line contains no usage.
const LONGEST_LINE: usize = 64 * 1024;
const LONGEST_BODY: usize = 4 * 1024 * 1024;

/// Reads the usage from a Messages API response, streamed or not.
#[derive(Debug)]
pub(crate) struct Meter {
    /// Whether the response is streamed. `None` before there is a response.
    streamed: Option<bool>,
    line: Vec<u8>,
    /// The current line is longer than `LONGEST_LINE`, and the rest of it is skipped.
    skipping: bool,
    used: Tokens,
    model: String,
    /// The request. It bounds the usage of a response that nobody waited for.
    asked: Asked,
    /// Whether the final usage has arrived.
    settled: bool,
    /// The number of bytes that the model has produced, in case the final usage never arrives.
    said: usize,
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
    #[serde(rename = "cache_creation")]
    kept: Option<Kept>,
}

/// How many of the tokens written to the cache are kept for an hour.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(default)]
struct Kept {
    #[serde(rename = "ephemeral_1h_input_tokens")]
    long: Option<i64>,
}

#[derive(Deserialize)]
struct Said {
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default)]
    message: Option<Begun>,
    #[serde(default)]
    delta: Option<Delta>,
    #[serde(default)]
    model: Option<String>,
}

/// The next fragment of a text, a thought or a tool's input.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Delta {
    text: Option<String>,
    thinking: Option<String>,
    partial_json: Option<String>,
}

#[derive(Deserialize)]
struct Begun {
    #[serde(default)]
    usage: Option<Tokens>,
    #[serde(default)]
    model: Option<String>,
}

impl Meter {
    /// Creates the meter of a request that has no response yet.
    pub(crate) fn new(asked: Asked) -> Self {
        Self {
            streamed: None,
            line: Vec::new(),
            skipping: false,
            used: Tokens::default(),
            model: String::new(),
            asked,
            settled: false,
            said: 0,
        }
    }

    /// Records that the response has started, streamed or not.
    pub(crate) fn answered(&mut self, streamed: bool) {
        self.streamed = Some(streamed);
    }

    /// Meters the next chunk.
    pub(crate) fn pass(&mut self, piece: &Bytes) {
        if self.streamed == Some(false) {
            if self.line.len() + piece.len() <= LONGEST_BODY {
                self.line.extend_from_slice(piece);
            } else {
                self.said += piece.len();
            }
            return;
        }
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            if self.skipping {
                self.said += part.len();
            } else {
                self.line.extend_from_slice(part);
                self.skipping = self.line.len() > LONGEST_LINE;
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                if std::mem::take(&mut self.skipping) {
                    self.said += line.len();
                } else if let Some(data) = line.strip_prefix(b"data:") {
                    self.read(data);
                }
            }
        }
    }

    /// Whether the cost of the input is known. It comes with the first event of a stream, or with the complete body.
    pub(crate) fn knows_input(&self) -> bool {
        self.used.input.is_some()
    }

    /// The model that answered, and the usage with its cost. Usage that the provider did not report is charged at the
    /// worst case, so that an aborted request is never cheaper.
    pub(crate) fn usage(mut self, prices: &Prices) -> (String, Usage) {
        let rest = std::mem::take(&mut self.line);
        if self.streamed == Some(false) {
            self.read(&rest);
        }
        if !self.settled {
            self.said += rest.len();
            // Only a stream shows how far the model got. Any other answer is bounded by what was requested.
            let shown = (self.streamed == Some(true)).then_some(self.said);
            self.used.output = self.used.output.max(Some(self.asked.most_output(shown)));
        }
        if !self.knows_input() {
            (self.used.input, self.used.cache_write) = (None, Some(self.asked.most_input));
        }
        let count = |tokens: Option<i64>| tokens.unwrap_or_default().max(0);
        let mut used = Usage {
            requests: 1,
            input_tokens: count(self.used.input),
            output_tokens: count(self.used.output),
            cache_read_tokens: count(self.used.cache_read),
            cache_write_tokens: count(self.used.cache_write),
            cost_micros: 0,
        };
        let named = !self.model.is_empty();
        let model = if named { &self.model } else { &self.asked.model };
        used.cost_micros = prices.cost(model, &used, count(self.used.kept.and_then(|kept| kept.long)));
        // A model name that only the agent chose is not recorded, because agents could invent any number of them.
        (if named { self.model } else { "unknown".to_owned() }, used)
    }

    /// Reads the usage of an event. Later numbers replace earlier ones, because they are cumulative.
    fn read(&mut self, json: &[u8]) {
        let Ok(said) = serde_json::from_slice::<Said>(json) else { return };
        let (begun, named) = said.message.map_or((None, None), |message| (message.usage, message.model));
        if let Some(model) = said.model.or(named) {
            self.model = model.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect();
        }
        if let Some(delta) = said.delta {
            let pieces = [delta.text, delta.thinking, delta.partial_json];
            self.said += pieces.iter().flatten().map(String::len).sum::<usize>();
        }
        self.settled |= said.usage.is_some();
        let all = [begun, said.usage];
        for tokens in all.into_iter().flatten() {
            let used = &mut self.used;
            used.input = tokens.input.or(used.input);
            used.output = tokens.output.or(used.output);
            used.cache_read = tokens.cache_read.or(used.cache_read);
            used.cache_write = tokens.cache_write.or(used.cache_write);
            used.kept = tokens.kept.or(used.kept);
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

    const ASKED: &str = r#"{"model":"asked","max_tokens":64000,"messages":[]}"#;

    fn prices() -> Prices {
        Prices::parse("*=1000000/1000000").unwrap()
    }

    fn meter(streamed: bool) -> Meter {
        let mut meter = Meter::new(Asked::of(ASKED.as_bytes()));
        meter.answered(streamed);
        meter
    }

    #[test]
    fn a_streamed_answer_is_counted_however_it_is_cut() {
        for size in [1, 2, 7, 64, 10_000] {
            let mut meter = meter(true);
            for piece in STREAM.as_bytes().chunks(size) {
                meter.pass(&Bytes::copy_from_slice(piece));
            }
            let (model, used) = meter.usage(&Prices::default());
            assert_eq!(
                (used.input_tokens, used.output_tokens, used.cache_read_tokens),
                (10, 42, 3),
                "{size}"
            );
            assert_eq!(model, "m-1");
        }
    }

    #[test]
    fn whoever_hangs_up_before_the_last_word_pays_for_what_was_said() {
        let (begin, _) = STREAM.split_once("event: message_delta").unwrap();
        let mut cut = meter(true);
        cut.pass(&Bytes::from(begin));
        for delta in ["text", "thinking", "partial_json"] {
            let line = format!("data: {{\"delta\":{{\"{delta}\":\"{}\"}}}}\n", "x".repeat(400));
            cut.pass(&Bytes::from(line));
        }
        cut.pass(&Bytes::from(format!("data: {}\n", "x".repeat(LONGEST_LINE * 2))));
        let (_, used) = cut.usage(&prices());
        assert_eq!(used.input_tokens, 10);
        assert_eq!(used.output_tokens, 64_000, "all that it was asked for, as more was said");
        let mut short = meter(true);
        short.pass(&Bytes::from(begin));
        short.pass(&Bytes::from_static(b"data: {\"delta\":{\"text\":\"hello\"}}\n"));
        let used = short.usage(&prices()).1.output_tokens;
        assert!((5..50).contains(&used), "a token for a byte: {used}");
        // The model's thinking is not streamed completely.
        let asked = Asked::of(
            br#"{"model":"m","max_tokens":9000,"messages":[],"thinking":{"type":"enabled","budget_tokens":5000}}"#,
        );
        let mut thinking = Meter::new(asked);
        thinking.pass(&Bytes::from(begin));
        assert_eq!(thinking.usage(&prices()).1.output_tokens, 9000);
        let whole = {
            let mut whole = meter(false);
            whole.pass(&Bytes::from("x".repeat(400)));
            whole
        };
        assert_eq!(whole.usage(&prices()).1.output_tokens, 64_000, "half of it shows nothing");
        assert_eq!(meter(false).usage(&prices()).1.output_tokens, 64_000);
        let unanswered = Meter::new(Asked::of(ASKED.as_bytes())).usage(&prices()).1;
        assert_eq!(unanswered.output_tokens, 64_000, "nobody knows how far it came");
        // The output cannot exceed what was requested.
        let mut endless = meter(true);
        endless.pass(&Bytes::from(format!("data: {}\n", "x".repeat(1_000_000))));
        assert_eq!(endless.usage(&prices()).1.output_tokens, 64_000);
        // Before the first event, only the worst case of the request is known.
        let (model, used) = meter(true).usage(&prices());
        let most = i64::try_from(ASKED.len()).unwrap();
        assert_eq!((model.as_str(), used.cache_write_tokens, used.output_tokens), ("unknown", most, 0));
        assert_eq!((used.input_tokens, used.cost_micros), (0, most * 1_250_000));
    }

    #[test]
    fn what_a_cache_keeps_for_an_hour_costs_more() {
        let mut kept = meter(false);
        kept.pass(&Bytes::from_static(
            br#"{"usage":{"input_tokens":1,"output_tokens":0,"cache_creation_input_tokens":30,
            "cache_creation":{"ephemeral_5m_input_tokens":10,"ephemeral_1h_input_tokens":20}}}"#,
        ));
        let (_, used) = kept.usage(&prices());
        assert_eq!((used.cache_write_tokens, used.cost_micros), (30, 1_000_000 + 12_500_000 + 40_000_000));
    }

    #[test]
    fn a_whole_answer_is_counted_and_nobody_earns_tokens() {
        let mut whole = meter(false);
        whole.pass(&Bytes::from_static(br#"{"content":[],"usage":{"input_tokens":5,"#));
        whole.pass(&Bytes::from_static(br#""output_tokens":6}}"#));
        let (_, used) = whole.usage(&prices());
        assert_eq!((used.requests, used.input_tokens, used.output_tokens), (1, 5, 6));
        let mut odd = meter(true);
        odd.pass(&Bytes::from(format!("data: {}", "x".repeat(LONGEST_LINE * 3))));
        assert!(odd.line.len() <= LONGEST_LINE * 3 + 10 && odd.skipping);
        odd.pass(&Bytes::from_static(b"\ndata: {\"usage\":{\"output_tokens\":-5}}\n"));
        assert_eq!(odd.usage(&prices()).1.output_tokens, 0, "nobody earns tokens");
    }
}
