//! The three kinds of tokens, signed here so that no login is part of a measurement.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

use crate::clock::unix_secs;
use crate::context::Context;

const LIFETIME_SECS: u64 = 36_000;

#[derive(clap::Args)]
pub struct Options {
    #[arg(long, default_value = "")]
    pub session: String,
}

pub fn print(context: &Context, session: &str) {
    let secret = &context.common.service_secret;
    println!(
        "{}",
        json!({"user": context.user_token, "service": service_jwt("loadgen", secret), "sandbox": sandbox_token(secret, session)})
    );
}

pub fn user_jwt(user: &str, org: &str, secret: &str) -> String {
    let now = unix_secs();
    jwt_hs256(&json!({"sub": user, "orgId": org, "iat": now, "exp": now + LIFETIME_SECS}), secret)
}

pub fn service_jwt(name: &str, secret: &str) -> String {
    let now = unix_secs();
    jwt_hs256(&json!({"sub": name, "service": true, "iat": now, "exp": now + LIFETIME_SECS}), secret)
}

/// Sandbox token of a session: hex(HMAC-SHA256(service secret, session id)).
pub fn sandbox_token(service_secret: &str, session: &str) -> String {
    hex::encode(sign(service_secret, session))
}

pub fn key(secret: &str) -> Hmac<Sha256> {
    <Hmac<Sha256> as Mac>::new_from_slice(secret.as_bytes()).expect("HMAC takes keys of any length")
}

fn sign(secret: &str, text: &str) -> Vec<u8> {
    key(secret).chain_update(text).finalize().into_bytes().to_vec()
}

fn jwt_hs256(claims: &Value, secret: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(r#"{"alg":"HS256"}"#);
    let payload = URL_SAFE_NO_PAD.encode(claims.to_string());
    let signed = format!("{header}.{payload}");
    let signature = URL_SAFE_NO_PAD.encode(sign(secret, &signed));
    format!("{signed}.{signature}")
}
