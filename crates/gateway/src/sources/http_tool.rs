//! Tools that a team describes in `tools.yaml`: a URL, a credential from the vault, a schema. No code.

use std::net::IpAddr;
use std::time::Duration;

use egress::{AddressClass, classify};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use policy::{Auth, HttpTool, Method, Risk, Write};
use proto::JsonObject;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use store::Scope;
use url::{Host, Url};

use super::{Failure, Output, Outside, Tool, Work};
use crate::app::AppState;
use crate::gate::{Call, LARGEST, Permit};

/// What tells the other side that a second request is the first one again.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The client that may go to this URL. Private addresses are gone to only where the operator named them.
fn way<'a>(app: &'a AppState, url: &Url) -> Option<reqwest::Result<&'a reqwest::Client>> {
    match reach(&app.config.allowed_hosts, url)? {
        Reach::Public => Some(app.outbound.public()),
        Reach::Named => Some(app.outbound.named()),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Reach {
    Public,
    Named,
}

fn reach(allowed: &[String], url: &Url) -> Option<Reach> {
    let place = format!("{}:{}", url.host_str()?, url.port_or_known_default()?);
    if allowed.contains(&place) {
        return Some(Reach::Named);
    }
    let literal = match url.host()? {
        Host::Domain(_) => None,
        Host::Ipv4(address) => Some(IpAddr::from(address)),
        Host::Ipv6(address) => Some(IpAddr::from(address)),
    };
    literal.is_none_or(|address| classify(address) == AddressClass::Public).then_some(Reach::Public)
}

/// One tool of the file.
pub(super) struct HttpSource {
    tool: HttpTool,
}

impl HttpSource {
    pub(super) fn new(tool: HttpTool) -> Self {
        Self { tool }
    }

    async fn send(&self, app: &AppState, permit: &Permit, call: &Call) -> Result<Output, Failure> {
        let url =
            Url::parse(&self.tool.url).map_err(|_| Failure::Down("the tool's URL is none".to_owned()))?;
        let private = || "the tool's address is private: name it in CONNECTOR_ALLOWED_HOSTS".to_owned();
        let client = way(app, &url).ok_or_else(|| Failure::Down(private()))?;
        let client = client.map_err(|error| failure(&error))?;
        let method = match self.tool.method {
            Method::Get => reqwest::Method::GET,
            Method::Post => reqwest::Method::POST,
            Method::Put => reqwest::Method::PUT,
            Method::Patch => reqwest::Method::PATCH,
            Method::Delete => reqwest::Method::DELETE,
        };
        let asks = method == reqwest::Method::GET;
        let mut url = url;
        if asks {
            url.query_pairs_mut().extend_pairs(queries(&call.parameters));
        }
        let mut request = client.request(method, url).header(IDEMPOTENCY_KEY, permit.run_id());
        if !asks {
            request = request.json(&call.parameters);
        }
        request = match &self.tool.auth {
            Auth::None => request,
            Auth::Bearer { key } => request.bearer_auth(secret(app, permit, key).await?),
            Auth::Header { name, key } => request.header(name, secret(app, permit, key).await?),
        };
        read(request.send().await.map_err(|error| failure(&error))?).await
    }
}

/// The values of a flat object; anything deeper goes as its JSON.
fn queries(parameters: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let object = parameters.as_object();
    object.into_iter().flatten().map(|(name, value)| (name.clone(), text(value))).collect()
}

async fn secret(app: &AppState, permit: &Permit, key: &str) -> Result<String, Failure> {
    let found = app.vault.open(permit.org(), Scope::Org, key).await;
    let found = found.map_err(|error| {
        tracing::error!(%error, key, "the credential of a tool cannot be opened");
        Failure::Down("the tool's credential cannot be opened".to_owned())
    })?;
    let found = found.ok_or_else(|| Failure::Down(format!("the secret {key} is not set")))?;
    Ok(found.expose_secret().to_owned())
}

/// The answer, up to its limit. What a failing tool says is its own business and may hold anything.
async fn read(mut response: reqwest::Response) -> Result<Output, Failure> {
    let status = response.status();
    if status.is_redirection() {
        return Err(Failure::Refused("the tool answered with a redirect, which is not followed".to_owned()));
    }
    if !status.is_success() {
        let message = format!("the tool answered {}", status.as_u16());
        let down = matches!(status.as_u16(), 429 | 502 | 503 | 504);
        return Err(if down { Failure::Down(message) } else { Failure::Refused(message) });
    }
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| failure(&error))? {
        if body.len() + chunk.len() > LARGEST {
            return Err(Failure::Refused("the tool's answer is larger than 1 MiB".to_owned()));
        }
        body.extend_from_slice(&chunk);
    }
    let text =
        String::from_utf8(body).map_err(|_| Failure::Refused("the tool's answer is no text".to_owned()))?;
    let data = serde_json::from_str::<Value>(&text).ok().map(|value| {
        let mut data = JsonObject::new();
        data.insert("response".to_owned(), value);
        data
    });
    Ok(Output { text: if data.is_some() { String::new() } else { text }, data })
}

fn failure(error: &reqwest::Error) -> Failure {
    if error.is_timeout() { Failure::Timeout } else { Failure::Down("the tool cannot be reached".to_owned()) }
}

impl Tool for HttpSource {
    fn risk(&self) -> Risk {
        self.tool.risk
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.tool.timeout_ms)
    }

    fn writes(&self) -> Option<&Write> {
        self.tool.writes.as_ref()
    }

    fn check(&self, parameters: &Value) -> Result<(), String> {
        let validator = jsonschema::validator_for(&self.tool.schema)
            .map_err(|_| "the schema of this tool is wrong".to_owned())?;
        let places: Vec<_> = validator
            .iter_errors(parameters)
            .take(5)
            .map(|error| format!("{}: {}", place(&error.instance_path().to_string()), keyword(&error)))
            .collect();
        if places.is_empty() { Ok(()) } else { Err(format!("parameters do not fit: {}", places.join(", "))) }
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

impl Outside for HttpSource {
    /// A GET asks and changes nothing; what another request does a second time nobody knows.
    fn replay_safe(&self) -> bool {
        self.tool.method == Method::Get
    }

    fn execute<'a>(
        &'a self,
        app: &'a AppState,
        permit: &'a Permit,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        self.send(app, permit, call).boxed()
    }
}

/// Where a parameter is wrong; its value is not repeated.
fn place(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

fn keyword(error: &jsonschema::ValidationError<'_>) -> String {
    let schema = error.schema_path().to_string();
    let keyword = schema.rsplit('/').next().unwrap_or_default();
    json!(keyword).to_string().trim_matches('"').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_and_named_private_ones_are_gone_to() {
        let allowed = ["127.0.0.1:9000".to_owned(), "tools.internal:80".to_owned()];
        let way = |url: &str| reach(&allowed, &Url::parse(url).unwrap()).is_some();
        assert!(
            way("http://127.0.0.1:9000/x") && way("http://tools.internal/x") && way("https://example.com/")
        );
        for refused in [
            "http://127.0.0.1:9001/",
            "http://[::1]/",
            "http://[::ffff:127.0.0.1]/",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://169.254.169.254/latest/meta-data",
            "http://10.0.0.1/",
        ] {
            assert!(!way(refused), "{refused}");
        }
    }
}
