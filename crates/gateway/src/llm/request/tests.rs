//! Tests of a request's worst-case cost, and of how requests are lowered to fit a budget.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::spending::BudgetOwner;
use super::*;

fn dollar_a_token() -> Prices {
    Prices::parse("cheap=1/1,*=1000000/1000000").unwrap()
}

fn body(value: &Value) -> Bytes {
    value.to_string().into()
}

fn left(now: i64, alone: i64) -> Remaining {
    Remaining { owner: BudgetOwner::Session, budget: alone, alone, now }
}

#[tokio::test]
async fn a_request_costs_at_most_its_bytes_and_the_answer_that_it_asks_for() {
    let prices = dollar_a_token();
    let most = async |text: &str| {
        ModelRequest::read(Protocol::Messages, &Bytes::from(text.to_owned())).await.at_most(&prices)
    };
    let plain = r#"{"model":"m","max_tokens":9,"stream":true,"messages":[]}"#;
    let bytes = |text: &str| i64::try_from(text.len()).unwrap();
    assert_eq!(
        most(plain).await,
        9_000_000 + bytes(plain) * 1_250_000,
        "all of it may be written to a cache"
    );
    for hour in [
        r#"{"model":"m","max_tokens":9,"messages":[],"cache_control":{"ttl":"1h"}}"#,
        r#"{"model":"m","max_tokens":9,"messages":[],"cache_control":{"\u0074\u0074\u006C":"1h"}}"#,
    ] {
        assert_eq!(most(hour).await, 9_000_000 + bytes(hour) * 2_000_000, "{hour}");
    }
    assert!(most(r#"{"model":"cheap-1","max_tokens":9,"messages":[]}"#).await < 200);
    let large = format!(r#"{{"model":"m","max_tokens":1,"messages":[],"system":"{}"}}"#, "x".repeat(AT_ONCE));
    assert_eq!(most(&large).await, MOST_MICROS, "sums of it stay exact");
}

#[test]
fn a_request_that_says_two_things_or_no_number_is_not_known() {
    for odd in [
        r#"{"model":"m","max_tokens":1,"max_tokens":64000,"messages":[]}"#,
        r#"{"model":"m","max_tokens":64000.0,"messages":[]}"#,
        r#"{"model":"m","max_tokens":-1,"messages":[]}"#,
        r#"{"model":"m","max_tokens":1e3,"messages":[]}"#,
        r#"{"model":"m","max_tokens":"9","messages":[]}"#,
        r#"{"model":"m","max_tokens":null,"messages":[]}"#,
        r#"{"model":"m","messages":[]}"#,
        r#"{"model":"m","max_tokens":9,"messages":[],"thinking":{"budget_tokens":1,"budget_tokens":9}}"#,
        r#"{"model":"m","max_tokens":9,"messages":[],"thinking":{"type":"enabled","budget_tokens":1.5}}"#,
        "x",
    ] {
        let request = ModelRequest::of(Protocol::Messages, odd.as_bytes());
        assert!(request.fit(Price::default(), &left(9, 9)).is_err(), "{odd}");
        assert_eq!(request.most_input, i64::try_from(odd.len()).unwrap(), "{odd}");
    }
    let request = ModelRequest::of(
        Protocol::Messages,
        br#"{"model":"m","max_tokens":99999999999999999999999,"messages":[]}"#,
    );
    let price = dollar_a_token().highest_price("m").unwrap();
    assert!(matches!(request.fit(price, &left(MOST_MICROS, MOST_MICROS)), Ok(Fit::Lowered(_))));
    assert_eq!(request.at_most(&dollar_a_token()), MOST_MICROS);
}

#[test]
fn a_request_is_unchanged_lowered_or_refused_by_the_remaining_budget() {
    let text = br#"{"model":"m","max_tokens":4000,"messages":[]}"#;
    let request = ModelRequest::of(Protocol::Messages, text);
    let price = dollar_a_token().highest_price("m").unwrap();
    let input = i64::try_from(text.len()).unwrap() * 1_250_000;
    let fit = |now: i64, alone: i64| {
        request.fit(price, &left(input + now * TOKENS_PER_PRICE, input + alone * TOKENS_PER_PRICE)).unwrap()
    };
    assert_eq!(fit(4000, 4000), Fit::Whole);
    assert_eq!(fit(3999, 4000), Fit::Lowered(3999));
    assert_eq!(fit(1024, 1024), Fit::Lowered(1024));
    assert_eq!(fit(1023, 4000), Fit::Busy);
    assert_eq!(fit(1023, 1023), Fit::Gone(input + 1024 * TOKENS_PER_PRICE));
    assert_eq!(request.fit(price, &left(-5, 0)), Ok(Fit::Gone(input + 1024 * TOKENS_PER_PRICE)));
    let short = ModelRequest::of(Protocol::Messages, br#"{"model":"m","max_tokens":3,"messages":[]}"#);
    assert_eq!(
        short.fit(price, &left(input + 3 * TOKENS_PER_PRICE, input + 3 * TOKENS_PER_PRICE)),
        Ok(Fit::Whole),
        "asks for no more"
    );
    assert_eq!(short.fit(Price::default(), &left(0, 1)), Ok(Fit::Whole), "free");
}

#[test]
fn a_lowered_request_is_the_same_but_for_its_numbers() {
    let lowered = |thinking: Value, output: i64| {
        let whole = json!({"thinking": thinking, "model": "m", "max_tokens": 64_000, "messages": []});
        let body = body(&whole);
        let mut request = ModelRequest::of(Protocol::Messages, &body);
        let text = request.lower(&body, output);
        assert_eq!(request.most_output(0, false), output);
        let less: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            (&less["model"], &less["messages"], &less["max_tokens"]),
            (&json!("m"), &json!([]), &json!(output))
        );
        less["thinking"].clone()
    };
    let enabled = |budget: i64| json!({"type": "enabled", "budget_tokens": budget});
    assert_eq!(lowered(enabled(32_000), 10_000), enabled(5_000));
    assert_eq!(lowered(enabled(4_000), 10_000), enabled(4_000));
    assert_eq!(
        lowered(enabled(32_000), 2_047),
        json!({"type": "disabled"}),
        "providers take no less than 1024"
    );
    assert_eq!(lowered(json!({"type": "adaptive"}), 2_000), json!({"type": "adaptive"}));
    assert_eq!(lowered(Value::Null, 2_000), Value::Null);
}

proptest! {
    #[test]
    fn an_admitted_request_never_costs_more_than_the_remaining_budget(
        input in 0..10_000_usize, output in 0..100_000_i64, left_micros in 1..1_000_000_i64,
        prices in (0..100_000_000_i64, 0..100_000_000_i64), thinking in proptest::option::of(0..50_000_i64),
    ) {
        let mut whole = json!({"model": "m", "max_tokens": output, "messages": [], "system": "x".repeat(input)});
        if let Some(budget) = thinking {
            whole["thinking"] = json!({"type": "enabled", "budget_tokens": budget});
        }
        let body = body(&whole);
        let mut request = ModelRequest::of(Protocol::Messages, &body);
        let price = Price { input: prices.0, output: prices.1 };
        let cost = |request: &ModelRequest| {
            let bounds = request.bounds.as_ref().unwrap();
            bounds.cost(price, bounds.output.value)
        };
        match request.fit(price, &left(left_micros, left_micros)).unwrap() {
            Fit::Whole => prop_assert!(cost(&request) <= left_micros),
            Fit::Lowered(output) => {
                prop_assert!(cost(&request) > left_micros, "it would have fitted");
                let sent = request.lower(&body, output);
                prop_assert!(cost(&request) <= left_micros);
                let sent: Value = serde_json::from_slice(&sent).unwrap();
                prop_assert_eq!(&sent["max_tokens"], &json!(output));
                let thought = sent["thinking"]["budget_tokens"].as_i64().unwrap_or_default();
                prop_assert!(thought < output);
            }
            Fit::Gone(least) => prop_assert!(least > left_micros),
            Fit::Busy => prop_assert!(false, "nobody is beside it"),
        }
    }
}
