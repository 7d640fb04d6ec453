//! The worst-case cost of a model request. It is checked against a budget before the request is forwarded, and the
//! request is lowered to fewer output tokens if no more fit.

use std::ops::Range;

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::Value;

use super::spending::Remaining;
use super::weight::{Number, splice};
use super::{AT_ONCE, Protocol, chat, messages};
use crate::config::{Price, Prices, TOKENS_PER_PRICE, whole};

/// The maximum amount held for one request, so that sums cannot overflow.
const MOST_MICROS: i64 = 1 << 40;
/// The minimum output worth paying for: an answer cut off earlier is useless, unless no more was requested.
const LEAST_OUTPUT: i64 = 1024;
/// The minimum thinking budget. Providers refuse a smaller one.
const LEAST_THOUGHT: i64 = 1024;
/// The maximum length of a refusal, which quotes the request.
const LONGEST_REASON: usize = 300;

/// One request, as far as it determines its cost.
#[derive(Clone, Debug)]
pub(crate) struct ModelRequest {
    pub(super) protocol: Protocol,
    pub(super) model: String,
    /// The maximum number of input tokens.
    pub(super) most_input: i64,
    /// The bounds of its cost, or the reason why they are unknown.
    bounds: Result<Bounds, String>,
    /// The maximum number of output tokens, if it can be read although the bounds are unknown.
    max_tokens: i64,
}

/// The bounds of a request's cost.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    pub(super) input: i64,
    /// The price of the input at most, in twentieths of the price of input tokens.
    pub(super) input_twentieths: i128,
    pub(super) output: Number,
    /// The request does not limit its output, so a limit has to be added at `output.place` where a budget applies.
    pub(super) output_is_absent: bool,
    pub(super) thinking: Option<Thinking>,
    /// The model thinks before it answers, and not all of its thinking is streamed.
    pub(super) hides_output: bool,
}

/// The thinking budget, and the position of the whole `thinking` object in the body.
#[derive(Clone, Debug)]
pub(super) struct Thinking {
    pub(super) budget: Number,
    pub(super) place: Range<usize>,
}

/// How a request fits into a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Whole,
    /// The request fits with at most this many output tokens.
    Lowered(i64),
    /// Requests in flight hold the rest of the budget. Once they have ended, the request may fit.
    Busy,
    /// The budget is spent, or too small for even the shortest answer, which could cost this much.
    Gone(i64),
}

impl ModelRequest {
    /// Parses the body of a request. A large body is parsed on a blocking thread.
    pub(crate) async fn read(protocol: Protocol, body: &Bytes) -> Self {
        if body.len() <= AT_ONCE {
            return Self::of(protocol, body);
        }
        let (body, length) = (body.clone(), i64::try_from(body.len()).unwrap_or(i64::MAX));
        let read = tokio::task::spawn_blocking(move || Self::of(protocol, &body)).await;
        read.unwrap_or_else(|error| Self {
            most_input: length,
            ..Self::unknown(protocol, &[], &error.to_string())
        })
    }

    pub(super) fn of(protocol: Protocol, body: &[u8]) -> Self {
        let bounds = match protocol {
            Protocol::Messages => messages::bounds(body),
            Protocol::Chat => chat::bounds(body),
        };
        match bounds {
            Ok((model, bounds)) => Self {
                protocol,
                model,
                most_input: bounds.input,
                max_tokens: bounds.output.value,
                bounds: Ok(bounds),
            },
            Err(why) => Self::unknown(protocol, body, &why),
        }
    }

    fn unknown(protocol: Protocol, body: &[u8], why: &str) -> Self {
        let why = why.chars().take(LONGEST_REASON).collect();
        let ReadableFields { model, max_tokens, max_completion_tokens } =
            serde_json::from_slice(body).unwrap_or_default();
        let most_input = i64::try_from(body.len()).unwrap_or(i64::MAX);
        let limit = |value: &Value| value.as_i64().unwrap_or_default().max(0);
        Self {
            protocol,
            model: model.as_str().unwrap_or_default().to_owned(),
            most_input,
            bounds: Err(why),
            max_tokens: limit(&max_tokens).max(limit(&max_completion_tokens)),
        }
    }

    /// The model's name in the request.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The maximum number of output tokens of an answer of which `shown` bytes were received, since a token is at least
    /// one byte. `all_shown` means that the model cannot have produced more than that.
    pub(super) fn most_output(&self, shown: usize, all_shown: bool) -> i64 {
        let shown = i64::try_from(shown).unwrap_or(i64::MAX);
        match &self.bounds {
            Ok(bounds) if all_shown && !bounds.hides_output => shown.min(bounds.output.value),
            Ok(bounds) => bounds.output.value,
            Err(_) if all_shown => shown,
            Err(_) => shown.max(self.max_tokens),
        }
    }

    /// The worst-case cost in micro-dollars, or 0 if it is unknown.
    pub(crate) fn at_most(&self, prices: &Prices) -> i64 {
        let known = self.bounds.as_ref().ok().zip(prices.highest_price(&self.model));
        known.map_or(0, |(bounds, price)| bounds.cost(price, bounds.output.value).min(MOST_MICROS))
    }

    /// Decides how the request fits into the rest of a budget. Returns `Err` with the reason if its cost is unknown.
    pub(crate) fn fit(&self, price: Price, left: &Remaining) -> Result<Fit, &str> {
        let bounds = self.bounds.as_ref().map_err(String::as_str)?;
        let least = bounds.output.value.min(LEAST_OUTPUT);
        if left.alone <= 0 {
            return Ok(Fit::Gone(bounds.cost(price, least)));
        }
        Ok(match bounds.output_for(price, left.now) {
            enough if enough >= bounds.output.value && bounds.output_is_absent => {
                Fit::Lowered(bounds.output.value)
            }
            enough if enough >= bounds.output.value => Fit::Whole,
            some if some >= least => Fit::Lowered(some),
            _ if bounds.output_for(price, left.alone) >= least => Fit::Busy,
            _ => Fit::Gone(bounds.cost(price, least)),
        })
    }

    /// Lowers the request to at most this many output tokens. Thinking counts as output, so it gets half of them, or is
    /// disabled if that is less than providers accept.
    pub(crate) fn lower(&mut self, body: &Bytes, output: i64) -> Bytes {
        let Ok(bounds) = &mut self.bounds else { return body.clone() };
        let limit = if bounds.output_is_absent { chat::limit(output) } else { output.to_string() };
        let mut changes = vec![(bounds.output.place.clone(), limit)];
        bounds.output.value = output;
        let half = output / 2;
        match &bounds.thinking {
            Some(thinking) if half < LEAST_THOUGHT => {
                bounds.hides_output = false;
                changes.push((thinking.place.clone(), r#"{"type":"disabled"}"#.to_owned()));
            }
            Some(thinking) if thinking.budget.value > half => {
                changes.push((thinking.budget.place.clone(), half.to_string()));
            }
            _ => {}
        }
        splice(body, changes)
    }
}

impl Bounds {
    /// The worst-case cost of all input and this many output tokens.
    fn cost(&self, price: Price, output: i64) -> i64 {
        whole(self.input_cost(price) + i128::from(output) * i128::from(price.output))
    }

    /// The worst-case cost of the input in millionths of micro-dollars.
    fn input_cost(&self, price: Price) -> i128 {
        (i128::from(self.input) * i128::from(price.input) * self.input_twentieths + 19) / 20
    }

    /// The number of output tokens that this amount buys after paying for the input. Negative if it does not even cover
    /// the input.
    fn output_for(&self, price: Price, micros: i64) -> i64 {
        let rest =
            i128::from(micros.min(MOST_MICROS)) * i128::from(TOKENS_PER_PRICE) - self.input_cost(price);
        match (rest < 0, price.output) {
            (true, _) => -1,
            (false, 0) => i64::MAX,
            (false, output) => i64::try_from(rest / i128::from(output)).unwrap_or(i64::MAX),
        }
    }
}

/// The fields that can still be read if the bounds are unknown.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ReadableFields {
    model: Value,
    max_tokens: Value,
    max_completion_tokens: Value,
}

#[cfg(test)]
mod tests;
