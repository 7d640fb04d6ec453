//! What tokens cost, as the operator says it: the gateway has no price list of its own that could be out of date.

use store::Usage;

/// Prices by model; the last entry may stand for all others.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prices(Vec<Price>);

/// Micro-dollars for a million tokens.
#[derive(Clone, Debug, PartialEq)]
struct Price {
    /// The id that the model's API takes, or `*`.
    model: String,
    input: i64,
    output: i64,
}

const MILLION: i64 = 1_000_000;

impl Prices {
    /// Reads `model=input/output`, dollars for a million tokens, comma-separated.
    pub fn parse(text: &str) -> Result<Self, String> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let prices = entries.map(|entry| {
            let wanted = || format!("`{entry}` must be model=input/output in dollars, e.g. *=3/15");
            let (model, both) = entry.split_once('=').ok_or_else(wanted)?;
            let (input, output) = both.split_once('/').ok_or_else(wanted)?;
            let price = |text: &str| micros(text).ok_or_else(wanted);
            Ok(Price { model: model.trim().to_owned(), input: price(input)?, output: price(output)? })
        });
        prices.collect::<Result<_, String>>().map(Self)
    }

    /// Whether every model has a price.
    pub fn cover_all(&self) -> bool {
        self.0.iter().any(|price| price.model == "*")
    }

    /// What this usage costs, in micro-dollars, rounded up. Reading a cache counts a tenth of input, writing one five
    /// quarters.
    pub fn cost(&self, model: &str, used: &Usage) -> i64 {
        let price = self.0.iter().find(|price| model.starts_with(&price.model));
        let Some(price) = price.or_else(|| self.0.iter().find(|price| price.model == "*")) else { return 0 };
        let input = used.input_tokens * 20 + used.cache_read_tokens * 2 + used.cache_write_tokens * 25;
        let input = i128::from(input) * i128::from(price.input) / 20;
        let output = i128::from(used.output_tokens) * i128::from(price.output);
        let whole = (input + output + i128::from(MILLION) - 1) / i128::from(MILLION);
        i64::try_from(whole).unwrap_or(i64::MAX)
    }
}

/// Dollars with up to six decimals as micro-dollars.
pub fn micros(text: &str) -> Option<i64> {
    let (whole, part) = text.trim().split_once('.').unwrap_or((text.trim(), ""));
    if part.len() > 6
        || !whole.bytes().chain(part.bytes()).all(|byte| byte.is_ascii_digit())
        || whole.is_empty()
    {
        return None;
    }
    let part: i64 = format!("{part:0<6}").parse().ok()?;
    whole.parse::<i64>().ok()?.checked_mul(MILLION)?.checked_add(part)
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
    fn a_request_costs_what_its_model_costs() {
        let prices = Prices::parse("claude-opus=5/25, *=3/15").unwrap();
        let used = Usage { input_tokens: 1_000_000, output_tokens: 100_000, ..Usage::default() };
        assert_eq!(prices.cost("claude-opus-4-6", &used), 5_000_000 + 2_500_000);
        assert_eq!(prices.cost("claude-sonnet-4-6", &used), 3_000_000 + 1_500_000);
        let cached =
            Usage { cache_read_tokens: 1_000_000, cache_write_tokens: 1_000_000, ..Usage::default() };
        assert_eq!(prices.cost("other", &cached), 300_000 + 3_750_000);
        assert_eq!(prices.cost("other", &Usage { input_tokens: 1, ..Usage::default() }), 3, "rounded up");
        assert_eq!(Prices::default().cost("other", &used), 0);
        for bad in ["x", "x=1", "x=1/y", "x=-1/2"] {
            assert!(Prices::parse(bad).is_err(), "{bad}");
        }
    }
}
