//! The worst-case cost of a model request. It is checked against a budget before the request is forwarded, and the
//! request is lowered to fewer output tokens if no more fit.

use std::ops::Range;

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::AT_ONCE;
use super::bound::Fields;
use super::spending::Left;
use crate::config::{MILLION, Price, Prices, whole};

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
pub(crate) struct Asked {
    pub(super) model: String,
    /// The maximum number of input tokens.
    pub(super) most_input: i64,
    /// The bounds of its cost, or the reason why they are unknown.
    bounds: Result<Bounds, String>,
    /// The maximum number of output tokens, if it can be read although the bounds are unknown.
    max_tokens: i64,
}

#[derive(Clone, Debug)]
struct Bounds {
    input: i64,
    /// The input may be written to a cache for an hour, which is the most expensive way.
    kept_long: bool,
    output: Number,
    thinking: Option<Thinking>,
    /// The model thinks before it answers, and not all of its thinking is streamed.
    thinks: bool,
}

/// A number and its position in the body.
#[derive(Clone, Debug)]
struct Number {
    value: i64,
    place: Range<usize>,
}

/// The thinking budget, and the position of the whole `thinking` object in the body.
#[derive(Clone, Debug)]
struct Thinking {
    budget: Number,
    place: Range<usize>,
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

impl Asked {
    /// Parses the body of a request. A large body is parsed on a blocking thread.
    pub(crate) async fn read(body: &Bytes) -> Self {
        if body.len() <= AT_ONCE {
            return Self::of(body);
        }
        let (body, length) = (body.clone(), i64::try_from(body.len()).unwrap_or(i64::MAX));
        let read = tokio::task::spawn_blocking(move || Self::of(&body)).await;
        read.unwrap_or_else(|error| Self { most_input: length, ..Self::unknown(&[], &error.to_string()) })
    }

    pub(super) fn of(body: &[u8]) -> Self {
        let fields = match serde_json::from_slice::<Fields<'_>>(body) {
            Ok(fields) => fields,
            Err(error) => return Self::unknown(body, &error.to_string()),
        };
        match Bounds::of(body, &fields) {
            Ok(bounds) => Self {
                model: fields.model.into_owned(),
                most_input: bounds.input,
                max_tokens: bounds.output.value,
                bounds: Ok(bounds),
            },
            Err(why) => Self::unknown(body, &why),
        }
    }

    fn unknown(body: &[u8], why: &str) -> Self {
        let why = why.chars().take(LONGEST_REASON).collect();
        let Named { model, max_tokens } = serde_json::from_slice(body).unwrap_or_default();
        let most_input = i64::try_from(body.len()).unwrap_or(i64::MAX);
        let max_tokens = max_tokens.as_i64().unwrap_or_default().max(0);
        Self {
            model: model.as_str().unwrap_or_default().to_owned(),
            most_input,
            bounds: Err(why),
            max_tokens,
        }
    }

    /// The model's name in the request.
    pub(crate) fn model(&self) -> &str {
        &self.model
    }

    /// The maximum number of output tokens of an answer of which `shown` bytes were streamed, since a token is at least
    /// one byte. `None` means that the answer is not streamed.
    pub(super) fn most_output(&self, shown: Option<usize>) -> i64 {
        let shown = shown.map(|shown| i64::try_from(shown).unwrap_or(i64::MAX));
        match (&self.bounds, shown) {
            (Ok(bounds), Some(shown)) if !bounds.thinks => shown.min(bounds.output.value),
            (Ok(bounds), _) => bounds.output.value,
            (Err(_), shown) => shown.unwrap_or(self.max_tokens),
        }
    }

    /// The worst-case cost in micro-dollars, or 0 if it is unknown.
    pub(crate) fn at_most(&self, prices: &Prices) -> i64 {
        let known = self.bounds.as_ref().ok().zip(prices.dearest(&self.model));
        known.map_or(0, |(bounds, price)| bounds.cost(price, bounds.output.value).min(MOST_MICROS))
    }

    /// Decides how the request fits into the rest of a budget. Returns `Err` with the reason if its cost is unknown.
    pub(crate) fn fit(&self, price: Price, left: &Left) -> Result<Fit, &str> {
        let bounds = self.bounds.as_ref().map_err(String::as_str)?;
        let least = bounds.output.value.min(LEAST_OUTPUT);
        if left.alone <= 0 {
            return Ok(Fit::Gone(bounds.cost(price, least)));
        }
        Ok(match bounds.output_for(price, left.now) {
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
        let mut changes = vec![(bounds.output.place.clone(), output.to_string())];
        bounds.output.value = output;
        let half = output / 2;
        match &bounds.thinking {
            Some(thinking) if half < LEAST_THOUGHT => {
                bounds.thinks = false;
                changes.push((thinking.place.clone(), r#"{"type":"disabled"}"#.to_owned()));
            }
            Some(thinking) if thinking.budget.value > half => {
                changes.push((thinking.budget.place.clone(), half.to_string()));
            }
            _ => {}
        }
        changes.sort_by_key(|(place, _)| place.start);
        let mut lowered = Vec::with_capacity(body.len() + changes.len() * 20);
        let mut from = 0;
        for (place, text) in changes {
            lowered.extend_from_slice(&body[from..place.start]);
            lowered.extend_from_slice(text.as_bytes());
            from = place.end;
        }
        lowered.extend_from_slice(&body[from..]);
        lowered.into()
    }
}

impl Bounds {
    fn of(body: &[u8], fields: &Fields<'_>) -> Result<Self, String> {
        let output = Number::of(body, fields.max_tokens).ok_or("max_tokens must be a whole number")?;
        let thinking = fields.thinking.map(|raw| Thinking::of(body, raw)).transpose()?.flatten();
        let (input, kept_long) = (fields.most_input(body.len()), may_keep_long(body));
        Ok(Self { input, kept_long, output, thinking, thinks: fields.thinking.is_some_and(thinks) })
    }

    /// The worst-case cost of all input and this many output tokens.
    fn cost(&self, price: Price, output: i64) -> i64 {
        whole(self.input_cost(price) + i128::from(output) * i128::from(price.output))
    }

    /// The worst-case cost of the input in millionths of micro-dollars.
    fn input_cost(&self, price: Price) -> i128 {
        let twentieths = if self.kept_long { 40 } else { 25 };
        (i128::from(self.input) * i128::from(price.input) * twentieths + 19) / 20
    }

    /// The number of output tokens that this amount buys after paying for the input. Negative if it does not even cover
    /// the input.
    fn output_for(&self, price: Price, micros: i64) -> i64 {
        let rest = i128::from(micros.min(MOST_MICROS)) * i128::from(MILLION) - self.input_cost(price);
        match (rest < 0, price.output) {
            (true, _) => -1,
            (false, 0) => i64::MAX,
            (false, output) => i64::try_from(rest / i128::from(output)).unwrap_or(i64::MAX),
        }
    }
}

impl Number {
    fn of(body: &[u8], raw: &RawValue) -> Option<Self> {
        let text = raw.get();
        let value =
            text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().unwrap_or(i64::MAX))?;
        Some(Self { value, place: place(body, raw) })
    }
}

impl Thinking {
    fn of(body: &[u8], raw: &RawValue) -> Result<Option<Self>, String> {
        #[derive(Deserialize)]
        struct Wanted<'a> {
            #[serde(borrow)]
            budget_tokens: Option<&'a RawValue>,
        }
        let wanted: Wanted<'_> = serde_json::from_str(raw.get()).map_err(|error| error.to_string())?;
        let Some(budget) = wanted.budget_tokens else { return Ok(None) };
        let budget = Number::of(body, budget).ok_or("thinking.budget_tokens must be a whole number")?;
        Ok(Some(Self { budget, place: place(body, raw) }))
    }
}

/// Whether this `thinking` value makes the model think. Anything but an explicit `disabled` counts.
fn thinks(raw: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Wanted {
        r#type: String,
    }
    serde_json::from_str::<Wanted>(raw.get()).map_or(true, |wanted| wanted.r#type != "disabled")
}

/// The position in the body of a value that was parsed from it.
fn place(body: &[u8], raw: &RawValue) -> Range<usize> {
    let start = raw.get().as_ptr().addr() - body.as_ptr().addr();
    start..start + raw.get().len()
}

/// Whether the body can contain a `ttl` field, even if its letters are escaped.
fn may_keep_long(body: &[u8]) -> bool {
    let letter = |six: &[u8]| six.eq_ignore_ascii_case(br"\u0074") || six.eq_ignore_ascii_case(br"\u006c");
    body.windows(3).any(|three| three == b"ttl") || body.windows(6).any(letter)
}

/// The fields that can still be read if the bounds are unknown.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Named {
    model: Value,
    max_tokens: Value,
}

#[cfg(test)]
#[path = "asked_tests.rs"]
mod tests;
