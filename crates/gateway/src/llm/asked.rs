//! What a request to the model asks for at most, so that it can be held against a budget before it is passed on.

use axum::body::Bytes;
use serde::Deserialize;
use store::Usage;

use super::{AT_ONCE, Prices};

/// More than any model says in one answer; it stands for what cannot be read, so that a request cannot make itself cheap
/// by being odd.
const MOST_OUTPUT: i64 = 128_000;
/// About how many bytes of text a token is.
pub(super) const BYTES_PER_TOKEN: usize = 4;
/// The most that is held for one request: sums of it stay exact.
const MOST_MICROS: i64 = 1 << 40;

/// One request, as far as it says what it will cost.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    pub(super) model: String,
    /// By the length of the request.
    pub(super) input_tokens: i64,
    pub(super) most_output: i64,
}

#[derive(Deserialize)]
struct Fields {
    #[serde(default)]
    model: String,
    #[serde(default)]
    max_tokens: u64,
}

impl Asked {
    /// Reads the body of a request; a large one where nobody else waits.
    pub(crate) async fn read(body: &Bytes) -> Self {
        if body.len() <= AT_ONCE {
            return Self::of(body);
        }
        let (body, length) = (body.clone(), body.len());
        let read = tokio::task::spawn_blocking(move || Self::of(&body)).await;
        read.unwrap_or_else(|_| Self {
            input_tokens: tokens(length),
            most_output: MOST_OUTPUT,
            ..Self::default()
        })
    }

    fn of(body: &[u8]) -> Self {
        let fields = serde_json::from_slice::<Fields>(body);
        let (model, asked) =
            fields.map_or((String::new(), None), |fields| (fields.model, Some(fields.max_tokens)));
        let most_output = asked.and_then(|tokens| i64::try_from(tokens).ok()).unwrap_or(MOST_OUTPUT);
        Self { model, input_tokens: tokens(body.len()), most_output: most_output.min(MOST_OUTPUT) }
    }

    /// What it costs at most, in micro-dollars.
    pub(crate) fn at_most(&self, prices: &Prices) -> i64 {
        let most =
            Usage { input_tokens: self.input_tokens, output_tokens: self.most_output, ..Usage::default() };
        prices.cost(&self.model, &most).min(MOST_MICROS)
    }
}

/// About how many tokens so many bytes are.
pub(super) fn tokens(bytes: usize) -> i64 {
    i64::try_from(bytes.div_ceil(BYTES_PER_TOKEN)).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_costs_at_most_what_it_asks_for_and_an_odd_one_the_most() {
        let prices = Prices::parse("cheap=1/1,*=1000000/1000000").unwrap();
        let asked = async |text: &str| Asked::read(&Bytes::from(text.to_owned())).await.at_most(&prices);
        let plain = r#"{"model":"m","max_tokens":9,"stream":true}"#;
        assert_eq!(asked(plain).await, (9 + tokens(plain.len())) * 1_000_000);
        assert!(asked(r#"{"model":"cheap-1","max_tokens":9}"#).await < 100);
        let most = MOST_OUTPUT * 1_000_000;
        for odd in [
            r#"{"model":"m","max_tokens":1,"max_tokens":64000}"#,
            r#"{"model":"m","max_tokens":64000.0}"#,
            r#"{"model":"m","max_tokens":99999999999999999999}"#,
            r#"{"model":"m","max_tokens":18446744073709551615}"#,
            "x",
        ] {
            assert!(asked(odd).await >= most, "{odd}");
        }
        let large = format!(r#"{{"max_tokens":1,"x":"{}"}}"#, "x".repeat(AT_ONCE));
        assert!((asked(&large).await / 1_000_000) - tokens(large.len()) == 1);
    }
}
