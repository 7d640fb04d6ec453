//! Uses the connectors of organizations: the gateway authenticates to their servers, lists their tools and calls them,
//! through the guard of `outbound` on every hop.

mod listings;

use std::sync::Arc;
use std::time::Duration;

use clock::Clock;
use gate::{Failure, MAX_CONTENT_BYTES, Output, Permit};
use ledger::Redactor;
use mcp::{Auth, Call, CallOutcome, ClientCredentials, Definition, Limits, Listing, Problem, ToolResult};
use proto::http::ConnectorAuth;
use proto::{JsonObject, OrgId};
use secrecy::SecretString;
use serde_json::Value;
use store::{Connector, Scope};
use tokio::time::timeout;
use url::Url;

use crate::outbound::{Outbound, is_allowed};
use crate::vault::Vault;
use listings::Listings;

/// The maximum number of characters of a server's or tool's own account of why it failed.
const MAX_FAILURE: usize = 1000;

/// The parts of the gateway that connectors use.
pub struct Connectors {
    vault: Vault,
    guard: Guard,
    listings: Listings,
}

/// Why a connector cannot be asked. The text contains nothing that its server sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unavailable {
    #[error("{0}")]
    Server(Problem),
    #[error("it has not listed its tools yet")]
    Late,
    #[error("the secret {0} is not set")]
    NoSecret(String),
    #[error("its credential cannot be opened")]
    Vault,
    #[error("its address or its authentication is stored wrongly")]
    Stored,
}

/// The HTTP clients that connectors may use.
struct Guard {
    outbound: Arc<Outbound>,
    allowed_hosts: Vec<String>,
}

impl mcp::Reach for Guard {
    fn client(&self, url: &Url) -> Option<reqwest::Client> {
        let client = self.outbound.client_for(&self.allowed_hosts, url)?;
        client.inspect_err(|error| tracing::error!(%error, "the HTTP client cannot be made")).ok().cloned()
    }
}

/// The party on whose behalf a secret is opened.
#[derive(Clone, Copy)]
enum Opener<'a> {
    /// The gateway lists tools on its own.
    Gateway(OrgId),
    Call(&'a Permit),
}

impl Connectors {
    pub(crate) fn new(
        vault: Vault,
        outbound: Arc<Outbound>,
        allowed_hosts: Vec<String>,
        clock: Clock,
    ) -> Self {
        Self { vault, guard: Guard { outbound, allowed_hosts }, listings: Listings::new(clock) }
    }

    /// Checks an address that somebody wants to store. Whether a name leads to a public address is checked again whenever
    /// the gateway connects.
    pub(crate) fn check_url(&self, text: &str) -> Result<Url, String> {
        let url = Url::parse(text).map_err(|_| "this is not a URL".to_owned())?;
        let plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() || !plain || text.len() > 2000 {
            return Err(
                "it must begin with https:// and name a host, without user name and fragment".to_owned()
            );
        }
        let allowed = is_allowed(&self.guard.allowed_hosts, &url);
        if url.scheme() == "http" && !allowed {
            return Err(
                "it must begin with https://, unless CONNECTOR_ALLOWED_HOSTS names its host and port"
                    .to_owned(),
            );
        }
        match self.guard.outbound.client_for(&self.guard.allowed_hosts, &url) {
            None => Err("its address is private: name it in CONNECTOR_ALLOWED_HOSTS".to_owned()),
            Some(_) => Ok(url),
        }
    }

    /// Checks that a secret can be sent in a header, if it is set already. Returns what is wrong with it.
    pub(crate) async fn check_header_secret(
        &self,
        org: OrgId,
        key: &str,
    ) -> Result<Option<mcp::AuthError>, Unavailable> {
        match self.secret(Opener::Gateway(org), key).await {
            Ok(value) => Ok(mcp::check_header_value(&value).err()),
            Err(Unavailable::NoSecret(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The tools of a connector, as its server listed them within the last minutes.
    pub(crate) async fn tools(&self, connector: &Connector) -> Result<Arc<Listing>, Unavailable> {
        self.listings.get(connector, || self.list(connector)).await
    }

    /// The same, if they are known within this time. If not, they are still asked for, for those who ask later, and a list
    /// of the last hour is returned. It is only shown: a call waits for a list of the last minutes.
    pub(crate) async fn list_tools_within(
        self: &Arc<Self>,
        connector: &Connector,
        time: Duration,
    ) -> Result<Arc<Listing>, Unavailable> {
        let (connectors, asked) = (self.clone(), connector.clone());
        let listing = tokio::spawn(async move { connectors.tools(&asked).await });
        match timeout(time, listing).await {
            Ok(listed) => listed.unwrap_or(Err(Unavailable::Late)),
            Err(_) => self.listings.last(connector).ok_or(Unavailable::Late),
        }
    }

    /// Asks for the tools of these connectors in the background, so that a catalog soon has them.
    pub(crate) fn prepare_lists(self: &Arc<Self>, connectors: Vec<Connector>) {
        for connector in connectors.into_iter().filter(|connector| connector.enabled) {
            let connectors = self.clone();
            tokio::spawn(async move {
                connectors.listings.prepare(&connector, || connectors.list(&connector)).await;
            });
        }
    }

    /// The tools of a connector, as its server lists them now.
    pub(crate) async fn tools_now(&self, connector: &Connector) -> Result<Arc<Listing>, Unavailable> {
        self.listings.refresh(connector, || self.list(connector)).await
    }

    /// The tools of a connector that is not stored. They are not kept: each has a new id, and would displace others.
    pub(crate) async fn tools_of_unstored(&self, connector: &Connector) -> Result<Listing, Unavailable> {
        self.list(connector).await
    }

    /// The number of connectors whose lists of tools are kept in memory.
    pub fn cached_listings(&self) -> usize {
        self.listings.len()
    }

    async fn list(&self, connector: &Connector) -> Result<Listing, Unavailable> {
        let url = Url::parse(&connector.url).map_err(|_| Unavailable::Stored)?;
        let auth = self.auth(connector, Opener::Gateway(connector.org_id)).await?;
        mcp::list_tools(&self.guard, &url, &auth, Limits::default()).await.map_err(|problem| {
            // A server's own words are for nobody but the server.
            Unavailable::Server(match problem {
                Problem::Server { code, .. } => Problem::Server { code, message: "(not shown)".to_owned() },
                other => other,
            })
        })
    }

    /// Calls a tool. The answer has known secrets and fields named like secrets redacted.
    pub(crate) async fn call(
        &self,
        permit: &Permit,
        connector: &Connector,
        tool: &Definition,
        arguments: JsonObject,
    ) -> Result<Output, Failure> {
        let url = Url::parse(&connector.url).map_err(|_| Failure::Down(Unavailable::Stored.to_string()))?;
        let auth = self.auth(connector, Opener::Call(permit)).await;
        let auth = auth.map_err(|unavailable| Failure::Down(unavailable.to_string()))?;
        let call = Call { tool, arguments };
        let outcome = mcp::call_tool(&self.guard, &url, &auth, call, Limits::default()).await;
        read_outcome(outcome, permit.redactor())
    }

    async fn auth(&self, connector: &Connector, opener: Opener<'_>) -> Result<Auth, Unavailable> {
        let auth: ConnectorAuth =
            serde_json::from_value(connector.auth.clone()).map_err(|_| Unavailable::Stored)?;
        Ok(match auth {
            ConnectorAuth::None => Auth::None,
            ConnectorAuth::Bearer { secret_key } => Auth::Bearer(self.secret(opener, &secret_key).await?),
            ConnectorAuth::CustomHeader { secret_key, header_name } => {
                Auth::Header { name: header_name, value: self.secret(opener, &secret_key).await? }
            }
            ConnectorAuth::Oauth { token_url, client_id_key, client_secret_key, scope } => {
                Auth::ClientCredentials(ClientCredentials {
                    token_url: Url::parse(&token_url).map_err(|_| Unavailable::Stored)?,
                    client_id: self.secret(opener, &client_id_key).await?,
                    client_secret: self.secret(opener, &client_secret_key).await?,
                    scope,
                })
            }
        })
    }

    async fn secret(&self, opener: Opener<'_>, key: &str) -> Result<SecretString, Unavailable> {
        let found = match opener {
            Opener::Gateway(org) => self.vault.open_without_permit(org, Scope::Org, key).await,
            Opener::Call(permit) => self.vault.open_for(permit, Scope::Org, key).await,
        };
        let found = found.map_err(|error| {
            tracing::error!(%error, key, "the credential of a connector cannot be opened");
            Unavailable::Vault
        })?;
        found.ok_or_else(|| Unavailable::NoSecret(key.to_owned()))
    }
}

/// Converts the end of a call to the result for its caller.
fn read_outcome(outcome: CallOutcome, known: &Redactor) -> Result<Output, Failure> {
    let CallOutcome { result, sent, secrets } = outcome;
    let Ok(own) = Redactor::new(secrets) else {
        return Err(Failure::Refused("the answer cannot be redacted, so it is not returned".to_owned()));
    };
    let redactor = known.and(&own);
    match result {
        Ok(ToolResult::Done(value)) => Ok(output(&value, &redactor)),
        Ok(ToolResult::Failed(message)) => {
            Err(Failure::Refused(format!("the tool failed: {}", cut(&redactor.text(&message)))))
        }
        Err(problem) => Err(failure(&problem, sent, &redactor)),
    }
}

/// The part of an answer that is stored and returned. Redaction may lengthen it, so it is truncated afterwards.
fn output(value: &Value, redactor: &Redactor) -> Output {
    let mut data = JsonObject::new();
    data.insert("response".to_owned(), redactor.redact_and_truncate(value, MAX_CONTENT_BYTES));
    Output { text: String::new(), data: Some(data) }
}

/// The beginning of a redacted text. Before redaction nothing may be cut, because half a secret is not found.
fn cut(redacted: &str) -> String {
    redacted.chars().take(MAX_FAILURE).collect()
}

/// The failure for a problem. A call is retryable only if it certainly did not reach the tool.
fn failure(problem: &Problem, sent: bool, redactor: &Redactor) -> Failure {
    let message = format!("the connector failed: {}", cut(&redactor.text(&problem.to_string())));
    match (problem, sent) {
        (Problem::Timeout, true) => Failure::Late,
        (Problem::Broken | Problem::Status(_), true) => {
            Failure::Refused(format!("{message}: whether the tool took effect is unknown"))
        }
        (Problem::TooLarge(_), true) => {
            Failure::Refused(format!("{message}; the tool may have taken effect"))
        }
        (Problem::Timeout, false) => Failure::Timeout,
        (Problem::Unreachable | Problem::Broken | Problem::Status(429 | 500..=599), false) => {
            Failure::Down(message)
        }
        _ => Failure::Refused(message),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn end(result: Result<ToolResult, Problem>, sent: bool) -> Result<Output, Failure> {
        let known = Redactor::new(["0ther-s3cret"]).unwrap();
        read_outcome(CallOutcome { result, sent, secrets: vec!["tops3cret".to_owned()] }, &known)
    }

    #[test]
    fn only_a_call_that_was_never_sent_is_retryable() {
        for (problem, sent, retryable) in [
            (Problem::Unreachable, false, true),
            (Problem::Status(503), false, true),
            (Problem::Timeout, false, true),
            (Problem::Timeout, true, false),
            (Problem::Broken, true, false),
            (Problem::Status(502), true, false),
            (Problem::TooLarge(9), true, false),
            (Problem::Credential(401), false, false),
        ] {
            let failure = end(Err(problem.clone()), sent).unwrap_err();
            let down = matches!(failure, Failure::Down(_) | Failure::Timeout);
            assert_eq!(down, retryable, "{problem:?} {sent}: {failure:?}");
        }
    }

    #[test]
    fn our_credential_does_not_come_back() {
        let done =
            end(Ok(ToolResult::Done(json!({"env": {"KEY": "tops3cret"}, "text": "x tops3cret"}))), true);
        assert!(!done.unwrap().content().to_string().contains("tops3cret"));
        let failed = end(Ok(ToolResult::Failed("bad token tops3cret".to_owned())), true).unwrap_err();
        assert!(matches!(&failed, Failure::Refused(message) if !message.contains("tops3cret")), "{failed:?}");
        for secret in ["tops3cret", "0ther-s3cret"] {
            for before in 0..MAX_FAILURE {
                let message = format!("{}{secret}", "x ".repeat(before / 2) + &"y".repeat(before % 2));
                let error = Problem::Server { code: 1, message: message.clone() };
                for end in [end(Err(error), true), end(Ok(ToolResult::Failed(message)), true)] {
                    let said = format!("{end:?}");
                    assert!(!said.contains(&secret[..4]), "{said}");
                }
            }
        }
    }
}
