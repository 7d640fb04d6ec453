//! Tests with valid tokens, and with every kind of forged token.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as B64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use proptest::prelude::*;
use serde_json::json;
use sha2::Sha256;

use super::*;

const USER_VECTOR: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ1c2VyXzEiLCJlbWFpbCI6ImFAYi5jbyIsIm9yZ0lkIjoib3JnXzEiLCJpYXQiOjE3MDAwMDAwMDAsImV4cCI6NDEwMjQ0NDgwMH0.S6QXeLncyB5Qj57vm9k97FImxWu6_ahbwC-UPzEEW1g";
const SERVICE_VECTOR: &str = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJzbGFjay13b3JrZXIiLCJzZXJ2aWNlIjp0cnVlLCJpYXQiOjE3MDAwMDAwMDAsImV4cCI6NDEwMjQ0NDgwMH0.6CQC5aD8-QC61DSY4m1d3-j4AZy7GCDgPF2TNnVdkK8";

/// A time long past on any machine, so that a use of the system clock would fail these tests.
const TEST_TIME: i64 = 1_700_000_000;

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(TEST_TIME, 0).unwrap()
}

fn issuer() -> Issuer {
    Issuer::new(&"user-secret".into(), &"svc-secret".into())
}

/// A token signed by hand, so that the tests do not rely on our own signer.
fn signed(secret: &str, header: &Value, claims: &Value) -> String {
    let body = format!("{}.{}", B64.encode(header.to_string()), B64.encode(claims.to_string()));
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(body.as_bytes());
    format!("{body}.{}", B64.encode(mac.finalize().into_bytes()))
}

fn hs256(secret: &str, claims: &Value) -> String {
    signed(secret, &json!({"alg": "HS256"}), claims)
}

#[test]
fn the_published_vectors_are_read() {
    let user = Claim::User { user: "user_1".into(), org: Some("org_1".into()) };
    assert_eq!(issuer().read(USER_VECTOR, now()), Some(user));
    assert_eq!(
        issuer().read(SERVICE_VECTOR, now()),
        Some(Claim::Service { name: "slack-worker".into(), org: None })
    );
}

#[test]
fn signed_tokens_can_be_read_and_have_issuer_and_audience() {
    let (user, org) = (UserId::from(uuid::Uuid::from_u128(1)), OrgId::from(uuid::Uuid::from_u128(2)));
    let token = issuer().user(user, org, "a@b.co", now(), USER_TOKEN_LIFETIME);
    let read = issuer().read(token.expose_secret(), now());
    assert_eq!(read, Some(Claim::User { user: user.to_string(), org: Some(org.to_string()) }));
    let body = token.expose_secret().split('.').nth(1).unwrap().to_owned();
    let body: Value = serde_json::from_slice(&B64.decode(body).unwrap()).unwrap();
    assert_eq!((&body["iss"], &body["aud"]), (&json!("proliferate"), &json!("proliferate")));
    assert_eq!(body["exp"].as_i64().unwrap() - body["iat"].as_i64().unwrap(), 3600);
    let service = issuer().service("worker", Some(org), now(), USER_TOKEN_LIFETIME);
    let expected = Claim::Service { name: "worker".into(), org: Some(org.to_string()) };
    assert_eq!(issuer().read(service.expose_secret(), now()), Some(expected));
}

#[test]
fn forged_late_and_foreign_tokens_are_refused() {
    let good = json!({"sub": "u", "exp": TEST_TIME + 60});
    let with = |key: &str, value: Value| {
        let mut claims = good.clone();
        claims[key] = value;
        claims
    };
    let user = |claims: &Value| hs256("user-secret", claims);
    let cases = [
        ("expired beyond the leeway", user(&with("exp", json!(TEST_TIME - 10)))),
        ("no expiry", user(&json!({"sub": "u"}))),
        ("no subject", user(&json!({"exp": TEST_TIME + 60}))),
        ("empty subject", user(&with("sub", json!("")))),
        ("not yet valid", user(&with("nbf", json!(TEST_TIME + 60)))),
        ("another issuer", user(&with("iss", json!("evil")))),
        ("another audience", user(&with("aud", json!("internal")))),
        ("another secret", hs256("other-secret", &good)),
        ("service secret without the service claim", hs256("svc-secret", &good)),
        ("service claim that is false", hs256("svc-secret", &with("service", json!(false)))),
        ("algorithm none", signed("user-secret", &json!({"alg": "none"}), &good)),
        ("algorithm HS384", signed("user-secret", &json!({"alg": "HS384"}), &good)),
        ("algorithm RS256", signed("user-secret", &json!({"alg": "RS256"}), &good)),
        (
            "an extension",
            signed("user-secret", &json!({"alg": "HS256", "crit": ["b64"], "b64": true}), &good),
        ),
        ("no extensions, but named", signed("user-secret", &json!({"alg": "HS256", "crit": []}), &good)),
        ("no signature", user(&good).rsplit_once('.').unwrap().0.to_owned() + "."),
        ("a fourth part", user(&good) + ".e30"),
        ("padding", user(&good) + "="),
        ("empty", String::new()),
    ];
    for (name, token) in cases {
        assert_eq!(issuer().read(&token, now()), None, "{name}");
    }
    assert!(issuer().read(&user(&good), now()).is_some(), "the token all of these were made from is good");
    assert!(
        issuer().read(&user(&with("exp", json!(TEST_TIME - 2))), now()).is_some(),
        "two seconds are within the leeway"
    );
}

#[test]
fn a_token_is_valid_from_nbf_to_exp_with_five_seconds_of_leeway() {
    let token = hs256("user-secret", &json!({"sub": "u", "nbf": TEST_TIME, "exp": TEST_TIME + 60}));
    let holds =
        |at: i64| issuer().read(&token, DateTime::from_timestamp(TEST_TIME + at, 0).unwrap()).is_some();
    assert_eq!([-6, -5, 0, 60, 64, 65].map(holds), [false, true, true, true, true, false]);
    let endless = hs256("user-secret", &json!({"sub": "u", "nbf": i64::MIN, "exp": i64::MAX}));
    assert!(issuer().read(&endless, now()).is_some());
}

#[test]
fn a_user_token_cannot_pass_as_a_service_even_when_it_says_so() {
    let token = hs256("user-secret", &json!({"sub": "u", "exp": TEST_TIME + 60, "service": true}));
    assert_eq!(issuer().read(&token, now()), Some(Claim::User { user: "u".into(), org: None }));
}

proptest! {
    #[test]
    fn arbitrary_text_never_panics(text in "\\PC{0,80}") {
        let _ = issuer().read(&text, now());
    }

    #[test]
    fn every_changed_byte_is_noticed(at in 21usize..USER_VECTOR.len() - 1, to in "[A-Za-z0-9_-]") {
        let mut token = USER_VECTOR.to_owned();
        prop_assume!(&token[at..=at] != to.as_str() && &token[at..=at] != ".");
        token.replace_range(at..=at, &to);
        prop_assert_eq!(issuer().read(&token, now()), None);
    }
}
