//! `/v1/usage`: sums by day, model and session, page by page, of one organization only.

use proto::{Role, SessionId};
use serde_json::{Value, json};
use store::Usage;

use crate::harness::TestGateway;
use crate::people::{org, person};

const CALL_USAGE: Usage = Usage {
    requests: 1,
    input_tokens: 100,
    output_tokens: 20,
    cache_read_tokens: 7,
    cache_write_tokens: 3,
    cost_micros: 50,
};

#[tokio::test]
async fn usage_is_summed_by_day_model_and_session() {
    for gateway in TestGateway::both().await {
        let (ours, theirs) = (org(&gateway.app).await, org(&gateway.app).await);
        let ada = person(&gateway.app, ours, Role::Member).await;
        let sessions: [SessionId; 2] =
            std::array::from_fn(|_| gateway.app.rng.uuid(gateway.app.clock.now()).into());
        let (today, store) = (gateway.app.clock.now(), &gateway.app.store);
        let yesterday = today - chrono::TimeDelta::days(1);
        for (org, session, model, at) in [
            (ours, sessions[0], "a", yesterday),
            (ours, sessions[0], "a", today),
            (ours, sessions[0], "b", today),
            (ours, sessions[1], "b", today),
            (theirs, sessions[1], "c", today),
        ] {
            store.add_usage(org, session, model, CALL_USAGE, at).await.unwrap();
        }
        let ask = async |query: &str| {
            let answer = gateway.get(&format!("/v1/usage{query}")).bearer(&ada.token).send().await;
            assert_eq!(answer.status, 200, "{query}: {}", answer.text());
            answer.json()
        };
        let costs = |report: &Value| -> Vec<(String, i64)> {
            let entries = report["entries"].as_array().unwrap().iter();
            entries
                .map(|one| (one["key"].as_str().unwrap().to_owned(), one["costMicros"].as_i64().unwrap()))
                .collect()
        };
        let day = |at: chrono::DateTime<chrono::Utc>| at.format("%Y-%m-%d").to_string();
        let report = ask("").await;
        assert_eq!(costs(&report), [(day(today), 150), (day(yesterday), 50)]);
        assert_eq!((&report["total"]["requests"], &report["spentMicros"]), (&json!(4), &json!(200)));
        assert_eq!(costs(&ask("?by=model").await), [("a".to_owned(), 100), ("b".to_owned(), 100)]);
        let by_session = ask("?by=session").await;
        assert_eq!(costs(&by_session).len(), 2);
        let only = format!("?by=session&sessionId={}&model=b", sessions[0]);
        assert_eq!(costs(&ask(&only).await), [(sessions[0].to_string(), 50)]);
        let past = format!("?to={}", day(yesterday));
        assert_eq!(ask(&past).await["total"]["costMicros"], 50);

        for by in ["day", "model", "session"] {
            let first = ask(&format!("?by={by}&limit=1")).await;
            let next = first["next"].as_str().unwrap();
            let second = ask(&format!("?by={by}&limit=1&after={next}")).await;
            assert_eq!((costs(&first).len(), costs(&second).len(), &second["next"]), (1, 1, &Value::Null));
            assert_ne!(costs(&first)[0].0, costs(&second)[0].0, "{by}");
        }
        for wrong in ["?from=yesterday", "?by=week", "?by=session&after=x", "?to=12026-01-01"] {
            assert_eq!(
                gateway.get(&format!("/v1/usage{wrong}")).bearer(&ada.token).status().await,
                400,
                "{wrong}"
            );
        }
    }
}
