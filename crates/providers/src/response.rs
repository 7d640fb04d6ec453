//! Responses of vendors: the result of an action, or an error text that is short and without the token. A vendor may
//! repeat what it was sent, so the token is removed before the text is cut: half a token would no longer match.

use ledger::Redactor;
use serde_json::Value;

/// How many characters of a vendor's error reach the caller.
const MAX_ERROR_CHARS: usize = 200;

/// A response of a vendor, read up to the gateway's limit.
pub struct Response<'a> {
    pub status: u16,
    /// The header `Retry-After`, as the vendor sent it.
    pub retry_after: Option<&'a str>,
    pub body: &'a [u8],
    /// Removes the token.
    pub redactor: &'a Redactor,
}

/// Why an action failed, with a text for the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The vendor refused the request. Repeating it would not help.
    #[error("{0}")]
    Refused(String),
    /// The vendor refused the request because of too many requests, and did nothing.
    #[error("{0}")]
    RateLimited(String),
    /// The vendor, or something in front of it, failed. The effect may have happened.
    #[error("{0}")]
    Failed(String),
}

impl ApiError {
    pub(crate) fn map(self, change: impl Fn(String) -> String) -> Self {
        match self {
            Self::Refused(text) => Self::Refused(change(text)),
            Self::RateLimited(text) => Self::RateLimited(change(text)),
            Self::Failed(text) => Self::Failed(change(text)),
        }
    }
}

pub(crate) fn read(
    vendor: &str,
    result: fn(&Value) -> Result<Value, ApiError>,
    response: &Response<'_>,
) -> Result<Value, ApiError> {
    let redactor = response.redactor;
    if !(200..300).contains(&response.status) {
        let text = redactor.text(&String::from_utf8_lossy(response.body));
        let text = format!("{vendor} API {}: {}", response.status, shorten(&text));
        return Err(match response.status {
            429 => ApiError::RateLimited(text),
            // GitHub answers 403 with this header when requests come too quickly.
            403 if response.retry_after.is_some() => ApiError::RateLimited(text),
            500.. => ApiError::Failed(text),
            _ if is_rate_limited(response.body) => ApiError::RateLimited(text),
            _ => ApiError::Refused(text),
        });
    }
    let Ok(value) = serde_json::from_slice(response.body) else {
        return Err(ApiError::Failed(format!("{vendor} API {}: the answer is not JSON", response.status)));
    };
    let found = result(&redactor.value(&value));
    found.map_err(|error| error.map(|text| format!("{vendor} API error: {}", shorten(&text))))
}

/// Linear answers 400 with an error of this code.
fn is_rate_limited(body: &[u8]) -> bool {
    let parsed = serde_json::from_slice::<Value>(body).unwrap_or_default();
    graphql_errors(&parsed).any(|error| error.pointer("/extensions/code") == Some(&"RATELIMITED".into()))
}

pub(crate) fn graphql_errors(body: &Value) -> impl Iterator<Item = &Value> {
    body.get("errors").and_then(Value::as_array).into_iter().flatten()
}

/// The beginning of a text, on one line.
fn shorten(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    line.trim().chars().take(MAX_ERROR_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TOKEN: &str = "canary-0123456789abcdef";

    fn error(status: u16, retry_after: Option<&str>, body: &str) -> ApiError {
        let redactor = Redactor::new([TOKEN]).unwrap();
        let response = Response { status, retry_after, body: body.as_bytes(), redactor: &redactor };
        read("Acme", |body| Ok(body.clone()), &response).unwrap_err()
    }

    #[test]
    fn an_error_has_the_status_and_the_first_200_characters() {
        let found = error(404, None, &format!("{}\n", "é".repeat(300)));
        assert_eq!(found, ApiError::Refused(format!("Acme API 404: {}", "é".repeat(200))));
        assert!(matches!(error(502, None, ""), ApiError::Failed(_)));
        assert!(matches!(error(200, None, "<html>"), ApiError::Failed(_)));
        assert_eq!(error(418, None, "a\u{1b}[2J\nb").to_string(), "Acme API 418: a [2J b");
    }

    #[test]
    fn a_token_is_removed_before_the_text_is_cut() {
        let cut_inside = format!("{}{TOKEN}", "x".repeat(190));
        let found = error(401, None, &cut_inside).to_string();
        assert!(!found.contains("canary"), "{found}");
        let encoded = json!({"sent": format!("Bearer {TOKEN}")}).to_string();
        assert!(!error(400, None, &encoded).to_string().contains("canary"));
    }

    #[test]
    fn rate_limits_differ_from_refusals() {
        assert!(matches!(error(429, None, ""), ApiError::RateLimited(_)));
        assert!(matches!(error(403, Some("60"), ""), ApiError::RateLimited(_)));
        assert!(matches!(error(403, None, ""), ApiError::Refused(_)));
        let limited = json!({"errors": [{"message": "slow", "extensions": {"code": "RATELIMITED"}}]});
        assert!(matches!(error(400, None, &limited.to_string()), ApiError::RateLimited(_)));
        assert!(matches!(error(400, None, "{\"errors\": [{}]}"), ApiError::Refused(_)));
    }

    #[test]
    fn a_result_does_not_contain_the_token() {
        let redactor = Redactor::new([TOKEN]).unwrap();
        let body = json!({"echo": TOKEN}).to_string();
        let response =
            Response { status: 200, retry_after: None, body: body.as_bytes(), redactor: &redactor };
        assert!(!read("Acme", |body| Ok(body.clone()), &response).unwrap().to_string().contains(TOKEN));
    }
}
