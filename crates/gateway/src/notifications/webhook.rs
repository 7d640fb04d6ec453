//! Requests to an organization's webhook: signed, through the guard of `outbound`, without following redirects, and without
//! reading what the receiver answers.

use std::sync::Arc;
use std::time::Duration;

use clock::Clock;
use proto::OrgId;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::Value;
use store::Scope;
use url::Url;

use crate::automations::{SIGNATURE_HEADER, sign};
use crate::outbound::{Outbound, is_allowed};
use crate::vault::{Vault, VaultError};

/// The names of the vault's secrets with the address, which may contain a credential, and with the key of the signatures.
pub(crate) const URL_NAME: &str = "PROLIFERATE_NOTIFICATION_URL";
pub(crate) const SECRET_NAME: &str = "PROLIFERATE_NOTIFICATION_SECRET";
/// How long a receiver may take.
const DELIVERY_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_URL: usize = 2000;

/// Why a notification was not delivered. For admins, so without the address and without what the receiver answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WebhookError {
    #[error("the address is not set, or cannot be opened: set it again")]
    NoAddress,
    #[error("{0}")]
    Address(&'static str),
    #[error("the receiver cannot be reached")]
    Unreachable,
    #[error("the receiver did not answer in time")]
    TimedOut,
    #[error("the receiver answered with a redirect, which is not followed")]
    Redirected,
    #[error("the receiver answered HTTP {0}")]
    Answered(u16),
}

/// What requests need.
pub(crate) struct Webhook {
    pub(crate) vault: Vault,
    pub(crate) clock: Clock,
    pub(crate) outbound: Arc<Outbound>,
    /// Private addresses that the operator allows.
    pub(crate) allowed_hosts: Vec<String>,
}

impl Webhook {
    /// Checks an address. Whether its name leads to a public address is checked again whenever the gateway connects.
    pub(crate) fn check_url(&self, text: &str) -> Result<Url, &'static str> {
        let url = Url::parse(text).map_err(|_| "this is not a URL")?;
        let plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
        let is_web = matches!(url.scheme(), "http" | "https") && url.has_host();
        if !is_web || !plain || text.len() > MAX_URL {
            return Err("it must begin with https:// and name a host, without user name and fragment");
        }
        if url.scheme() == "http" && !is_allowed(&self.allowed_hosts, &url) {
            return Err(
                "it must begin with https://, unless CONNECTOR_ALLOWED_HOSTS names its host and port",
            );
        }
        match self.outbound.client_for(&self.allowed_hosts, &url) {
            None => Err("the address is private: name it in CONNECTOR_ALLOWED_HOSTS"),
            Some(_) => Ok(url),
        }
    }

    /// Sends a message to the organization's webhook.
    pub(crate) async fn send(&self, org: OrgId, body: &Value) -> Result<(), WebhookError> {
        let url = self.secret(org, URL_NAME).await?;
        let secret = self.secret(org, SECRET_NAME).await?;
        let url = self.check_url(url.expose_secret()).map_err(WebhookError::Address)?;
        let Some(Ok(client)) = self.outbound.client_for(&self.allowed_hosts, &url) else {
            return Err(WebhookError::Unreachable);
        };
        let body = body.to_string();
        let signature = sign(secret.expose_secret().as_bytes(), body.as_bytes(), self.clock.now());
        let request = client
            .post(url)
            .header("content-type", "application/json")
            .header(SIGNATURE_HEADER, signature)
            .body(body)
            .timeout(DELIVERY_TIMEOUT);
        let failed = |error: reqwest::Error| {
            if error.is_timeout() { WebhookError::TimedOut } else { WebhookError::Unreachable }
        };
        let answer = request.send().await.map_err(failed)?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status if status.is_redirection() => Err(WebhookError::Redirected),
            status => Err(WebhookError::Answered(status.as_u16())),
        }
    }

    async fn secret(&self, org: OrgId, name: &str) -> Result<SecretString, WebhookError> {
        let opened =
            self.vault.open_without_permit(org, Scope::Org, name).await.inspect_err(|error: &VaultError| {
                tracing::error!(%org, %error, name, "a secret of notifications cannot be opened");
            });
        opened.ok().flatten().ok_or(WebhookError::NoAddress)
    }
}
