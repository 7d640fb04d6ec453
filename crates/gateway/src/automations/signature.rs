//! Signatures of webhooks. Nothing here accesses a database.

use axum::http::HeaderMap;
use chrono::{DateTime, TimeDelta, Utc};
use hmac::{Hmac, KeyInit as _, Mac as _};
use proto::{WebhookScheme, text};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use store::TokenHash;

/// The header of the generic scheme.
pub(crate) const GENERIC_HEADER: &str = "x-proliferate-signature";
const GITHUB_HEADER: &str = "x-hub-signature-256";
const LINEAR_HEADER: &str = "linear-signature";
/// How far the signed time may be from ours.
const MAX_AGE: TimeDelta = TimeDelta::minutes(5);
/// The most characters of a delivery id or the name of an event.
const MAX_HEADER: usize = 200;

/// A request whose signature is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    /// Hashes of what identifies the request. If any was seen before, the request is a repetition.
    pub(crate) keys: Vec<TokenHash>,
    /// The provider's name of the event.
    pub(crate) event_name: Option<String>,
}

/// Why a request is refused. The sender does not learn it; the log does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The automation does not exist or has no webhook.
    Unknown,
    Missing,
    Malformed,
    BadSignature,
    Stale,
    /// The signature was used before.
    Replayed,
}

impl Rejection {
    /// The name of the reason in logs and metrics.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Missing => "missing",
            Self::Malformed => "malformed",
            Self::BadSignature => "bad_signature",
            Self::Stale => "stale",
            Self::Replayed => "replayed",
        }
    }
}

/// Checks the signature of a request.
pub(crate) fn verify(
    scheme: WebhookScheme,
    secret: &[u8],
    headers: &HeaderMap,
    body: &[u8],
    now: DateTime<Utc>,
) -> Result<Delivery, Rejection> {
    match scheme {
        WebhookScheme::Generic => generic(secret, headers, body, now),
        WebhookScheme::Github => {
            let hex = header(headers, GITHUB_HEADER)?.strip_prefix("sha256=").ok_or(Rejection::Malformed)?;
            check(secret, &[body], hex)?;
            Ok(delivery(headers, body, "x-github-delivery", "x-github-event"))
        }
        WebhookScheme::Linear => {
            check(secret, &[body], header(headers, LINEAR_HEADER)?)?;
            let signed: SignedTime = serde_json::from_slice(body).map_err(|_| Rejection::Malformed)?;
            let at = DateTime::from_timestamp_millis(signed.webhook_timestamp).ok_or(Rejection::Malformed)?;
            fresh(at, now)?;
            Ok(delivery(headers, body, "linear-delivery", "linear-event"))
        }
    }
}

/// Signs a request of ours with the generic scheme, for the header [`GENERIC_HEADER`].
pub(crate) fn sign(secret: &[u8], body: &[u8], now: DateTime<Utc>) -> String {
    let time = now.timestamp().to_string();
    // HMAC takes a key of any length.
    let signature = Hmac::<Sha256>::new_from_slice(secret).map(|mut mac| {
        for part in [time.as_bytes(), b".", body] {
            mac.update(part);
        }
        hex::encode(mac.finalize().into_bytes())
    });
    format!("t={time},v1={}", signature.unwrap_or_default())
}

/// The time in the body of a request from Linear, in milliseconds.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SignedTime {
    webhook_timestamp: i64,
}

/// `t=<unix>,v1=<hex HMAC-SHA256 of t.body>`. The signature covers the time, so it identifies the request.
fn generic(
    secret: &[u8],
    headers: &HeaderMap,
    body: &[u8],
    now: DateTime<Utc>,
) -> Result<Delivery, Rejection> {
    let parts = header(headers, GENERIC_HEADER)?.split_once(',');
    let (time, hex) = parts
        .and_then(|(time, hex)| Some((time.strip_prefix("t=")?, hex.trim_start().strip_prefix("v1=")?)))
        .ok_or(Rejection::Malformed)?;
    let seconds = time.parse().map_err(|_| Rejection::Malformed)?;
    let signature = check(secret, &[time.as_bytes(), b".", body], hex)?;
    fresh(DateTime::from_timestamp(seconds, 0).ok_or(Rejection::Malformed)?, now)?;
    Ok(Delivery { keys: vec![key("signature", &signature)], event_name: None })
}

/// The only value of a header. A request with two is refused: it is not clear which one counts.
fn header<'a>(headers: &'a HeaderMap, name: &str) -> Result<&'a str, Rejection> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (None, _) => Err(Rejection::Missing),
        (Some(value), None) => value.to_str().map_err(|_| Rejection::Malformed),
        (Some(_), Some(_)) => Err(Rejection::Malformed),
    }
}

/// Compares the signature in constant time, and returns its bytes.
fn check(secret: &[u8], parts: &[&[u8]], hex: &str) -> Result<Vec<u8>, Rejection> {
    let signature = hex::decode(hex).map_err(|_| Rejection::Malformed)?;
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).map_err(|_| Rejection::BadSignature)?;
    for part in parts {
        mac.update(part);
    }
    mac.verify_slice(&signature).map_err(|_| Rejection::BadSignature)?;
    Ok(signature)
}

fn fresh(signed: DateTime<Utc>, now: DateTime<Utc>) -> Result<(), Rejection> {
    if (now - signed).abs() <= MAX_AGE { Ok(()) } else { Err(Rejection::Stale) }
}

/// The id of a delivery is not signed, so the body counts as well: a captured request with another id is a repetition.
fn delivery(headers: &HeaderMap, body: &[u8], id: &str, event: &str) -> Delivery {
    let short = |name: &str| header(headers, name).ok().filter(|value| text::is_line(value, MAX_HEADER));
    let id = short(id).map(|id| key("delivery", id.as_bytes()));
    Delivery {
        keys: std::iter::once(key("body", body)).chain(id).collect(),
        event_name: short(event).map(str::to_owned),
    }
}

fn key(kind: &str, value: &[u8]) -> TokenHash {
    Sha256::new().chain_update(kind).chain_update([0]).chain_update(value).finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &[u8] = b"the-secret-of-the-webhook";

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap()
    }

    fn mac(parts: &[&[u8]]) -> String {
        let mut mac = Hmac::<Sha256>::new_from_slice(SECRET).unwrap();
        for part in parts {
            mac.update(part);
        }
        hex::encode(mac.finalize().into_bytes())
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    fn generic_headers(age: i64, body: &[u8]) -> HeaderMap {
        let time = (now().timestamp() - age).to_string();
        let signed = mac(&[time.as_bytes(), b".", body]);
        headers(&[(GENERIC_HEADER, &format!("t={time},v1={signed}"))])
    }

    #[test]
    fn a_generic_signature_is_valid_for_five_minutes() {
        let check = |age: i64, body: &[u8]| {
            verify(WebhookScheme::Generic, SECRET, &generic_headers(age, b"{}"), body, now())
        };
        for age in [-300, 0, 300] {
            assert_eq!(check(age, b"{}").unwrap().keys.len(), 1);
        }
        assert_eq!(check(301, b"{}"), Err(Rejection::Stale));
        assert_eq!(check(-301, b"{}"), Err(Rejection::Stale));
        assert_eq!(check(0, b"{} "), Err(Rejection::BadSignature));
        assert_ne!(check(1, b"{}").unwrap().keys, check(2, b"{}").unwrap().keys);
    }

    #[test]
    fn our_own_requests_are_signed_as_we_demand_it_of_others() {
        let given = headers(&[(GENERIC_HEADER, &sign(SECRET, b"{}", now()))]);
        assert!(verify(WebhookScheme::Generic, SECRET, &given, b"{}", now()).is_ok());
    }

    #[test]
    fn a_signature_in_upper_case_is_the_same_signature() {
        let lower = generic_headers(0, b"{}");
        let upper = lower[GENERIC_HEADER].to_str().unwrap().split_once("v1=").unwrap();
        let upper = headers(&[(GENERIC_HEADER, &format!("{}v1={}", upper.0, upper.1.to_uppercase()))]);
        let keys =
            |given: &HeaderMap| verify(WebhookScheme::Generic, SECRET, given, b"{}", now()).unwrap().keys;
        assert_eq!(keys(&lower), keys(&upper));
    }

    #[test]
    fn malformed_and_repeated_headers_are_refused() {
        let check = |given: &HeaderMap| verify(WebhookScheme::Generic, SECRET, given, b"{}", now());
        assert_eq!(check(&HeaderMap::new()), Err(Rejection::Missing));
        for wrong in ["", "t=1", "v1=00,t=1", "t=x,v1=00", "t=1,v1=zz", "t=99999999999999999999,v1=00"] {
            assert_eq!(check(&headers(&[(GENERIC_HEADER, wrong)])), Err(Rejection::Malformed), "{wrong}");
        }
        let mut twice = generic_headers(0, b"{}");
        twice.append(GENERIC_HEADER, "t=1,v1=00".parse().unwrap());
        assert_eq!(check(&twice), Err(Rejection::Malformed));
    }

    #[test]
    fn github_requests_are_known_by_body_and_by_delivery() {
        let signed = format!("sha256={}", mac(&[b"{}"]));
        let given =
            headers(&[(GITHUB_HEADER, &signed), ("x-github-delivery", "1"), ("x-github-event", "push")]);
        let first = verify(WebhookScheme::Github, SECRET, &given, b"{}", now()).unwrap();
        assert_eq!((first.keys.len(), first.event_name.as_deref()), (2, Some("push")));
        let other = headers(&[(GITHUB_HEADER, &signed), ("x-github-delivery", "2")]);
        let other = verify(WebhookScheme::Github, SECRET, &other, b"{}", now()).unwrap();
        assert_eq!(first.keys[0], other.keys[0], "the same body");
        assert_ne!(first.keys[1], other.keys[1], "another delivery");
        let plain = headers(&[(GITHUB_HEADER, &mac(&[b"{}"]))]);
        assert_eq!(verify(WebhookScheme::Github, SECRET, &plain, b"{}", now()), Err(Rejection::Malformed));
    }

    #[test]
    fn linear_signs_its_time_in_the_body() {
        let check = |age: i64| {
            let time = now().timestamp_millis() - age * 1000;
            let body = format!(r#"{{"webhookTimestamp":{time}}}"#);
            let given = headers(&[(LINEAR_HEADER, &mac(&[body.as_bytes()]))]);
            verify(WebhookScheme::Linear, SECRET, &given, body.as_bytes(), now())
        };
        assert!(check(299).is_ok());
        assert_eq!(check(301), Err(Rejection::Stale));
        let given = headers(&[(LINEAR_HEADER, &mac(&[b"{}"]))]);
        assert_eq!(verify(WebhookScheme::Linear, SECRET, &given, b"{}", now()), Err(Rejection::Malformed));
    }
}
