//! Meters the usage in a model's response while the response streams through unchanged.

mod chat;
mod messages;

use bytes::Bytes;
use store::Usage;

use super::request::ModelRequest;
use super::{LONGEST_NAME, Protocol};
use crate::config::Prices;

/// The maximum size of an event line and of a body that is not streamed. A longer line contains no usage.
const LONGEST_LINE: usize = 64 * 1024;
const LONGEST_BODY: usize = 4 * 1024 * 1024;

/// Reads the usage from a response, streamed or not.
#[derive(Debug)]
pub(crate) struct Meter {
    /// The request. It bounds the usage of a response that nobody waited for.
    request: ModelRequest,
    /// Whether the response is streamed. `None` before there is a response.
    streamed: Option<bool>,
    line: Vec<u8>,
    /// The current line is longer than `LONGEST_LINE`, and the rest of it is skipped.
    skipping: bool,
    used: Tokens,
    model: String,
    /// Whether the final usage has arrived.
    settled: bool,
    /// Whether the response is complete.
    ended: bool,
    /// The number of bytes that the model has produced, in case the final usage never arrives.
    shown: usize,
}

/// Numbers of tokens, as far as the provider has reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tokens {
    input: Option<i64>,
    output: Option<i64>,
    cache_read: Option<i64>,
    cache_write: Option<i64>,
    /// The written tokens that the cache keeps for an hour.
    cached_long: Option<i64>,
}

impl Tokens {
    /// Replaces earlier numbers by later ones, because they are cumulative.
    fn update(&mut self, later: Self) {
        self.input = later.input.or(self.input);
        self.output = later.output.or(self.output);
        self.cache_read = later.cache_read.or(self.cache_read);
        self.cache_write = later.cache_write.or(self.cache_write);
        self.cached_long = later.cached_long.or(self.cached_long);
    }
}

/// The content of one event, or of a response that is not streamed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Report {
    model: Option<String>,
    tokens: Tokens,
    /// The bytes of text, thoughts and tool input.
    shown: usize,
    /// The numbers of tokens are those of the complete response, if it ends here.
    settles: bool,
    ends: bool,
}

impl Meter {
    /// Creates the meter of a request that has no response yet.
    pub(crate) fn new(request: ModelRequest) -> Self {
        Self {
            request,
            streamed: None,
            line: Vec::new(),
            skipping: false,
            used: Tokens::default(),
            model: String::new(),
            settled: false,
            ended: false,
            shown: 0,
        }
    }

    /// Records that the response has started, streamed or not.
    pub(crate) fn start(&mut self, streamed: bool) {
        self.streamed = Some(streamed);
    }

    /// Meters the next chunk.
    pub(crate) fn pass(&mut self, chunk: &Bytes) {
        if self.streamed == Some(false) {
            if self.line.len() + chunk.len() <= LONGEST_BODY {
                self.line.extend_from_slice(chunk);
            } else {
                self.shown += chunk.len();
            }
            return;
        }
        for part in chunk.split_inclusive(|byte| *byte == b'\n') {
            if self.skipping {
                self.shown += part.len();
            } else {
                self.line.extend_from_slice(part);
                self.skipping = self.line.len() > LONGEST_LINE;
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                if std::mem::take(&mut self.skipping) {
                    self.shown += line.len();
                } else if let Some(data) = line.strip_prefix(b"data:") {
                    self.read(data);
                }
            }
        }
    }

    /// Records that the provider has sent its whole response.
    pub(crate) fn end(&mut self) {
        self.ended = true;
    }

    /// Whether the cost of the input is known. The Messages API reports it with the first event of a stream, the Chat
    /// Completions API with the last.
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
        let is_chat = self.request.protocol == Protocol::Chat;
        // Providers of the Chat Completions API may report preliminary numbers with every chunk.
        if !self.settled || is_chat && !self.ended {
            // A stream of the Messages API shows how far the model got. A chat model may have thought without showing
            // it, unless the response is complete: one without usage is charged by its bytes.
            let all_shown = if is_chat { self.ended } else { self.streamed == Some(true) };
            let most = self.request.most_output(self.shown + rest.len(), all_shown);
            self.used.output = self.used.output.max(Some(most));
        }
        if !self.knows_input() {
            let most = Some(self.request.most_input);
            let written = (None, most);
            (self.used.input, self.used.cache_write) = if is_chat { (most, None) } else { written };
        }
        let named = !self.model.is_empty();
        let model = if named { &self.model } else { &self.request.model };
        let used = self.used.priced(prices, model);
        // A model name that only the agent chose is not recorded, because agents could invent any number of them.
        (if named { self.model } else { "unknown".to_owned() }, used)
    }

    fn read(&mut self, json: &[u8]) {
        let report = match self.request.protocol {
            Protocol::Messages => messages::read(json),
            Protocol::Chat => chat::read(json),
        };
        let Some(report) = report else { return };
        if let Some(model) = report.model {
            self.model = model.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect();
        }
        self.shown += report.shown;
        self.settled |= report.settles;
        self.ended |= report.ends;
        self.used.update(report.tokens);
    }
}

impl Tokens {
    /// The usage with its cost. A negative number counts as none.
    fn priced(self, prices: &Prices, model: &str) -> Usage {
        let count = |tokens: Option<i64>| tokens.unwrap_or_default().max(0);
        let mut used = Usage {
            requests: 1,
            input_tokens: count(self.input),
            output_tokens: count(self.output),
            cache_read_tokens: count(self.cache_read),
            cache_write_tokens: count(self.cache_write),
            cost_micros: 0,
        };
        used.cost_micros = prices.cost(model, &used, count(self.cached_long));
        used
    }
}

#[cfg(test)]
mod tests;
