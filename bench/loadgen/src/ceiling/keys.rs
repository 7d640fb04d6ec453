//! Verification of the three kinds of tokens.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac};
use serde::Deserialize;
use sha2::Sha256;

use crate::clock::unix_secs;
use crate::tokens::key;

pub struct Keys {
    user: Hmac<Sha256>,
    service: Hmac<Sha256>,
}

#[derive(Deserialize)]
pub struct Claims {
    #[serde(rename = "orgId")]
    pub org: Option<String>,
    exp: u64,
}

impl Keys {
    pub fn new(user_secret: &str, service_secret: &str) -> Self {
        Self { user: key(user_secret), service: key(service_secret) }
    }

    /// The claims of a user or service token.
    pub fn jwt(&self, token: &str) -> Option<Claims> {
        let (signed, signature) = token.rsplit_once('.')?;
        let (_, payload) = signed.split_once('.')?;
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        let good = |key: &Hmac<Sha256>| key.clone().chain_update(signed).verify_slice(&signature).is_ok();
        if !good(&self.user) && !good(&self.service) {
            return None;
        }
        let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
        (claims.exp > unix_secs()).then_some(claims)
    }

    /// Sandbox token: hex(HMAC-SHA256(service secret, session id)).
    pub fn sandbox(&self, token: &str, session: &str) -> bool {
        let mut raw = [0; 32];
        hex::decode_to_slice(token, &mut raw).is_ok()
            && self.service.clone().chain_update(session).verify_slice(&raw).is_ok()
    }
}
