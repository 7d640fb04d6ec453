//! JSON Web Tokens of users and services: HS256, two secrets, one issuer.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation, decode, encode};
use proto::{OrgId, UserId};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The lifetime of a user's or service's token.
pub const USER_TOKEN_LIFETIME: Duration = Duration::from_hours(1);

/// The issuer and audience of our own tokens. A token that names others is not for us.
const ISSUER: &str = "proliferate";
const AUDIENCE: &str = "proliferate";
/// The allowed clock skew between two machines.
const LEEWAY_SECONDS: i64 = 5;

/// Signs and verifies tokens.
pub struct Issuer {
    user: Pair,
    service: Pair,
}

struct Pair {
    encode: EncodingKey,
    decode: DecodingKey,
}

/// The claim of a token with a valid signature. Whether it still holds is decided by the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Claim {
    User { user: String, org: Option<String> },
    Service { name: String, org: Option<String> },
}

#[derive(Serialize, Deserialize)]
struct Claims {
    sub: String,
    #[serde(rename = "orgId", skip_serializing_if = "Option::is_none")]
    org: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    email: Option<String>,
    /// Any true value counts. We write `true`.
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iss: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    aud: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    iat: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nbf: Option<i64>,
    exp: i64,
}

impl Issuer {
    pub fn new(user: &SecretString, service: &SecretString) -> Self {
        Self { user: Pair::new(user), service: Pair::new(service) }
    }

    /// Creates a token for a user in one organization.
    pub fn user(
        &self,
        user: UserId,
        org: OrgId,
        email: &str,
        now: DateTime<Utc>,
        life: Duration,
    ) -> SecretString {
        let claims =
            Claims { email: Some(email.to_owned()), ..claims(user.to_string(), Some(org), now, life) };
        self.user.sign(&claims)
    }

    /// Creates a token for a service, bound to one organization or to none.
    pub fn service(
        &self,
        name: &str,
        org: Option<OrgId>,
        now: DateTime<Utc>,
        life: Duration,
    ) -> SecretString {
        let claims = Claims { service: Some(true.into()), ..claims(name.to_owned(), org, now, life) };
        self.service.sign(&claims)
    }

    /// The claim of a token that is signed by us and valid at `now`. User tokens are tried first.
    pub fn read(&self, token: &str, now: DateTime<Utc>) -> Option<Claim> {
        if let Some(claims) = self.user.verify(token, now) {
            return Some(Claim::User { user: claims.sub, org: claims.org });
        }
        let claims = self.service.verify(token, now)?;
        let is_service = claims.service.as_ref().is_some_and(is_true);
        is_service.then_some(Claim::Service { name: claims.sub, org: claims.org })
    }
}

impl Issuer {
    /// The expiry of a token that we signed, if that is its only problem.
    pub fn expired(&self, token: &str, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let claims = self.user.verify_signature(token).or_else(|| self.service.verify_signature(token))?;
        let over = claims.exp.saturating_add(LEEWAY_SECONDS) <= now.timestamp();
        if over { DateTime::from_timestamp(claims.exp, 0) } else { None }
    }
}

impl Pair {
    fn new(secret: &SecretString) -> Self {
        let bytes = secret.expose_secret().as_bytes();
        Self { encode: EncodingKey::from_secret(bytes), decode: DecodingKey::from_secret(bytes) }
    }

    fn sign(&self, claims: &Claims) -> SecretString {
        // HS256 over a struct of strings and numbers cannot fail. If it did, the empty token would
        // authenticate nobody.
        encode(&Header::new(Algorithm::HS256), claims, &self.encode).unwrap_or_default().into()
    }

    fn verify(&self, token: &str, now: DateTime<Utc>) -> Option<Claims> {
        self.verify_signature(token).filter(|claims| claims.hold_at(now.timestamp()))
    }

    /// The claims of a token with a valid signature, whether it has expired or not.
    fn verify_signature(&self, token: &str) -> Option<Claims> {
        if names_extensions(token) {
            return None;
        }
        let mut rules = Validation::new(Algorithm::HS256);
        rules.set_required_spec_claims(&["exp", "sub"]);
        rules.set_issuer(&[ISSUER]);
        rules.set_audience(&[AUDIENCE]);
        // The library would use the system clock. We check the times ourselves, with our own clock.
        rules.validate_exp = false;
        rules.validate_nbf = false;
        let claims = decode::<Claims>(token, &self.decode, &rules).ok()?.claims;
        Some(claims).filter(|claims| !claims.sub.is_empty())
    }
}

/// Whether the header has `crit`, which lists extensions that a verifier must understand. We support none.
fn names_extensions(token: &str) -> bool {
    let header = token.split('.').next().and_then(|part| BASE64_URL_SAFE_NO_PAD.decode(part).ok());
    let header: Option<Value> = header.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    header.is_none_or(|header| header.get("crit").is_some())
}

impl Claims {
    fn hold_at(&self, now: i64) -> bool {
        let begun = self.nbf.is_none_or(|nbf| nbf <= now.saturating_add(LEEWAY_SECONDS));
        begun && now < self.exp.saturating_add(LEEWAY_SECONDS)
    }
}

fn claims(sub: String, org: Option<OrgId>, now: DateTime<Utc>, life: Duration) -> Claims {
    let life = i64::try_from(life.as_secs()).unwrap_or(i64::MAX);
    Claims {
        sub,
        org: org.map(|org| org.to_string()),
        email: None,
        service: None,
        iss: Some(ISSUER.to_owned()),
        aud: Some(AUDIENCE.into()),
        iat: Some(now.timestamp()),
        nbf: None,
        exp: now.timestamp().saturating_add(life),
    }
}

fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(b) => *b,
        Value::String(s) => !s.is_empty(),
        Value::Number(n) => n.as_f64() != Some(0.0),
        Value::Array(_) | Value::Object(_) => true,
    }
}

#[cfg(test)]
mod tests;
