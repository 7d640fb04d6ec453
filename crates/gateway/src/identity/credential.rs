//! Random credentials: API keys, sandbox tokens, tickets, login codes and login cookies.

use clock::Rng;
use hmac::{Hmac, KeyInit as _, Mac as _};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use store::TokenHash;

/// The purpose of a credential. Its prefix shows it, so that a leaked one can be recognized and revoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialKind {
    ApiKey,
    Sandbox,
    Ticket,
    /// The code of a login link, valid for one login.
    Login,
    /// The cookie of a logged-in browser.
    Cookie,
}

impl CredentialKind {
    const ALL: [Self; 5] = [Self::ApiKey, Self::Sandbox, Self::Ticket, Self::Login, Self::Cookie];

    fn prefix(self) -> &'static str {
        match self {
            Self::ApiKey => "plk_",
            Self::Sandbox => "pls_",
            Self::Ticket => "plt_",
            Self::Login => "pll_",
            Self::Cookie => "plc_",
        }
    }

    /// The kind of a presented credential, by its prefix.
    pub fn of(token: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| token.starts_with(kind.prefix()))
    }
}

/// A new credential: the text, which is shown once, and the hash, which is stored.
pub struct Credential {
    pub text: SecretString,
    pub hash: TokenHash,
    /// The first characters, shown in lists.
    pub hint: String,
}

impl Credential {
    /// Generates a credential with 256 random bits. These cannot be guessed, so a plain hash is enough for
    /// storage.
    pub fn new(kind: CredentialKind, rng: &Rng) -> Self {
        let text = format!("{}{}", kind.prefix(), hex::encode(rng.bytes::<32>()));
        Self { hash: hash(&text), hint: text[..kind.prefix().len() + 6].to_owned(), text: text.into() }
    }
}

/// The hash that is stored and looked up instead of the credential.
pub fn hash(token: &str) -> TokenHash {
    Sha256::digest(token.as_bytes()).into()
}

/// The plain per-session token of old sandbox images: `hex(HMAC-SHA256(service secret, session id as written))`.
pub fn compat_sandbox_token(service_secret: &SecretString, session: &str) -> String {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(service_secret.expose_secret().as_bytes()) else {
        return String::new();
    };
    mac.update(session.as_bytes());
    hex::encode(mac.finalize().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_differ_and_have_the_prefix_of_their_kind() {
        let rng = Rng::system();
        let (a, b) =
            (Credential::new(CredentialKind::ApiKey, &rng), Credential::new(CredentialKind::ApiKey, &rng));
        assert_ne!(a.hash, b.hash);
        assert_eq!(hash(a.text.expose_secret()), a.hash);
        assert_eq!(CredentialKind::of(a.text.expose_secret()), Some(CredentialKind::ApiKey));
        assert_eq!(CredentialKind::of("eyJhbGciOi"), None);
        assert!(a.text.expose_secret().starts_with(&a.hint) && a.hint.len() < 12);
    }

    #[test]
    fn the_old_sandbox_token_is_the_published_vector() {
        let secret = SecretString::from("svc-secret");
        assert_eq!(
            compat_sandbox_token(&secret, "3f2504e0-4f89-41d3-9a0c-0305e82c3301"),
            "cb701ce772183ebe058dd80f04f01d3855473dcfd6ad1c78c4703d191bb90f7c"
        );
        assert_eq!(
            compat_sandbox_token(&secret, "3F2504E0-4F89-41D3-9A0C-0305E82C3301"),
            "797f0599421075b718f2ea33506a7b31762f787915ba6d4488d01e009a041962"
        );
    }
}
