//! The prices of tokens, as set by the operator. The gateway has no price list of its own that could be outdated.

use store::Usage;

/// Prices by model. One entry may apply to all others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prices(Vec<(String, Price)>);

/// The price in micro-dollars per million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Price {
    pub(crate) input: i64,
    pub(crate) output: i64,
}

pub(crate) const TOKENS_PER_PRICE: i64 = 1_000_000;
/// The entry for all models that have none of their own.
const ALL_OTHER_MODELS: &str = "*";

impl Prices {
    /// Parses `model=input/output` entries, comma-separated, in dollars per million tokens.
    pub fn parse(text: &str) -> Result<Self, String> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let prices = entries.map(|entry| {
            let wanted = || format!("`{entry}` must be model=input/output in dollars, e.g. *=3/15");
            let (model, both) = entry.split_once('=').ok_or_else(wanted)?;
            let (input, output) = both.split_once('/').ok_or_else(wanted)?;
            let price = |text: &str| micros(text).ok_or_else(wanted);
            Ok((model.trim().to_owned(), Price { input: price(input)?, output: price(output)? }))
        });
        prices.collect::<Result<_, String>>().map(Self)
    }

    /// Whether every model has a price.
    pub fn cover_all(&self) -> bool {
        self.others().is_some()
    }

    fn others(&self) -> Option<Price> {
        self.0.iter().find(|(model, _)| model == ALL_OTHER_MODELS).map(|(_, price)| *price)
    }

    fn price_of(&self, model: &str) -> Option<Price> {
        self.0.iter().find(|(named, _)| model.starts_with(named.as_str())).map(|(_, price)| *price)
    }

    /// The highest price that a request for this model name can cost. A model without an entry of its own may answer
    /// under a name that has one.
    pub(crate) fn highest_price(&self, model: &str) -> Option<Price> {
        let dearer = |one: Price, other: &(String, Price)| Price {
            input: one.input.max(other.1.input),
            output: one.output.max(other.1.output),
        };
        self.price_of(model).or_else(|| Some(self.0.iter().fold(self.others()?, dearer)))
    }

    /// The cost of this usage in micro-dollars, rounded up. A cache read costs a tenth of input, a cache write 1.25
    /// times input, and twice input for those written tokens that are kept for an hour (`kept_long`).
    pub(crate) fn cost(&self, model: &str, used: &Usage, kept_long: i64) -> i64 {
        let Some(price) = self.price_of(model).or_else(|| self.others()) else { return 0 };
        let twentieths = [
            (used.input_tokens, 20),
            (used.cache_read_tokens, 2),
            (used.cache_write_tokens, 25),
            (kept_long.min(used.cache_write_tokens), 15),
        ];
        let input: i128 = twentieths.iter().map(|(tokens, weight)| i128::from(*tokens) * weight).sum();
        let input = input * i128::from(price.input) / 20;
        let output = i128::from(used.output_tokens) * i128::from(price.output);
        whole(input + output)
    }
}

/// Converts millionths of micro-dollars to micro-dollars, rounded up.
pub(crate) fn whole(millionths: i128) -> i64 {
    i64::try_from((millionths + i128::from(TOKENS_PER_PRICE) - 1) / i128::from(TOKENS_PER_PRICE))
        .unwrap_or(i64::MAX)
}

/// Parses dollars with up to six decimals as micro-dollars.
pub fn micros(text: &str) -> Option<i64> {
    let (whole, part) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    if part.len() > 6
        || !whole.bytes().chain(part.bytes()).all(|byte| byte.is_ascii_digit())
        || whole.is_empty()
    {
        return None;
    }
    let part: i64 = format!("{part:0<6}").parse().ok()?;
    whole.parse::<i64>().ok()?.checked_mul(TOKENS_PER_PRICE)?.checked_add(part)
}

/// Formats micro-dollars as dollars. Amounts below a cent are shown in full.
pub fn dollars(micros: i64) -> String {
    let micros = micros.max(0);
    let text = format!("{}.{:06}", micros / TOKENS_PER_PRICE, micros % TOKENS_PER_PRICE);
    let cents = text.len() - 4;
    let short = text.trim_end_matches('0').len().max(cents);
    text[..short].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_are_read_exactly() {
        for (text, expected) in
            [("3", Some(3_000_000)), ("0.25", Some(250_000)), ("0.000001", Some(1)), ("", None)]
        {
            assert_eq!(micros(text), expected, "{text}");
        }
        for bad in ["-1", "1.0000001", "x", "1e3", ".5", "99999999999999999999"] {
            assert_eq!(micros(bad), None, "{bad}");
        }
    }

    #[test]
    fn dollars_have_cents_and_more_where_it_matters() {
        for (micros, text) in
            [(0, "0.00"), (2_500_000, "2.50"), (100, "0.0001"), (12_345_678, "12.345678"), (-9, "0.00")]
        {
            assert_eq!(dollars(micros), text);
        }
    }

    #[test]
    fn a_request_costs_what_its_model_costs() {
        let prices = Prices::parse("claude-opus=5/25, *=3/15").unwrap();
        let used = Usage { input_tokens: 1_000_000, output_tokens: 100_000, ..Usage::default() };
        assert_eq!(prices.cost("claude-opus-4-6", &used, 0), 5_000_000 + 2_500_000);
        assert_eq!(prices.cost("claude-sonnet-4-6", &used, 0), 3_000_000 + 1_500_000);
        let cached =
            Usage { cache_read_tokens: 1_000_000, cache_write_tokens: 1_000_000, ..Usage::default() };
        assert_eq!(prices.cost("other", &cached, 0), 300_000 + 3_750_000);
        assert_eq!(prices.cost("other", &cached, 1_000_000), 300_000 + 6_000_000, "kept for an hour");
        assert_eq!(prices.cost("other", &cached, i64::MAX), 300_000 + 6_000_000, "no more than was written");
        assert_eq!(prices.cost("other", &Usage { input_tokens: 1, ..Usage::default() }, 0), 3, "rounded up");
        assert_eq!(Prices::default().cost("other", &used, 0), 0);
        for bad in ["x", "x=1", "x=1/y", "x=-1/2"] {
            assert!(Prices::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_model_without_a_price_is_charged_the_highest_matching_price() {
        let dearest = |prices: &str, model: &str| {
            let price = Prices::parse(prices).unwrap().highest_price(model);
            price.map(|price| (price.input / TOKENS_PER_PRICE, price.output / TOKENS_PER_PRICE))
        };
        assert_eq!(dearest("opus=5/25,*=3/15", "opus-4"), Some((5, 25)));
        assert_eq!(dearest("opus=5/25,*=3/15", "best"), Some((5, 25)), "an alias may be the dearest");
        assert_eq!(dearest("haiku=1/99,*=3/15", "best"), Some((3, 99)));
        assert_eq!(dearest("opus=5/25", "best"), None);
    }
}
