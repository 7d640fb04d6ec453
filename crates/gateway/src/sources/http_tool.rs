//! HTTP tools that a team describes in `tools.yaml` without code: a URL, a credential from the vault, and a schema.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{
    CallRequest, Definition, Failure, MAX_CONTENT_BYTES, Output, Outside, Permit, Review, Tool, ToolScope,
    Work,
};
use ledger::Redactor;
use policy::{Auth, HttpTool, Method, ModeKey, Policy, Risk, TableWrite};
use proto::JsonObject;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use store::Scope;
use url::Url;

use super::arguments::check_schema;
use super::catalog::{Guide, HTTP_TOOLS, definition_hash};
use super::credential::Credential;
use super::{CatalogAction, CatalogSource, Described, Found, Source};
use crate::outbound::Outbound;
use crate::vault::Vault;

/// The header that lets the other side detect a repeated request.
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The dependencies of HTTP tools.
pub(crate) struct HttpNeeds {
    pub(crate) vault: Option<Vault>,
    pub(crate) outbound: Arc<Outbound>,
    /// The `host:port` pairs with private addresses that tools may use.
    pub(crate) allowed_hosts: Vec<String>,
}

/// The source of the tools in `tools.yaml`, as defined by the policy in force.
pub(crate) struct HttpTools(Arc<HttpNeeds>);

impl HttpTools {
    pub(crate) fn new(needs: HttpNeeds) -> Self {
        Self(Arc::new(needs))
    }

    #[cfg(test)]
    pub(super) fn for_tests() -> Self {
        Self::new(HttpNeeds { vault: None, outbound: Arc::default(), allowed_hosts: Vec::new() })
    }
}

impl Source for HttpTools {
    fn claims(&self, policy: &Policy, name: &str) -> bool {
        policy.tool(name).is_some()
    }

    fn find<'a>(&'a self, policy: &'a Policy, _: ToolScope, name: &'a str) -> Found<'a> {
        let bind = |tool: &HttpTool| Arc::new(BoundTool { tool: tool.clone(), needs: self.0.clone() });
        let tool = policy.tool(name).map(|tool| bind(tool) as Arc<dyn Tool>);
        async { Ok(tool) }.boxed()
    }

    fn describe<'a>(&'a self, policy: &'a Policy, _: ToolScope) -> Described<'a> {
        let actions: Vec<_> = policy.tools().map(describe).collect();
        let source = CatalogSource {
            id: HTTP_TOOLS.to_owned(),
            integration_id: None,
            display_name: Some("HTTP tools".to_owned()),
            guide: Guide::Generated { title: "HTTP tools".to_owned(), note: String::new() },
            actions,
        };
        async { vec![Ok(source)] }.boxed()
    }
}

fn describe(tool: &HttpTool) -> CatalogAction {
    CatalogAction {
        name: tool.name.clone(),
        description: tool.description.clone(),
        params: Arc::new(tool.schema.clone()),
        risk: tool.risk,
        definition: definition(tool),
    }
}

/// Operators write the definition, so it needs no review. The address belongs into it, because whoever approves a call
/// approves where it goes.
fn definition(tool: &HttpTool) -> Definition {
    let HttpTool { name, method, url, auth, schema, risk, description, .. } = tool;
    let (method, auth) = (format!("{method:?}"), format!("{auth:?}"));
    let raw = json!({"name": name, "method": method, "url": url, "auth": auth, "schema": schema,
        "risk": risk.as_str(), "description": description});
    Definition { hash: definition_hash(&raw), review: Review::NotNeeded }
}

/// One tool of the file.
struct BoundTool {
    tool: HttpTool,
    needs: Arc<HttpNeeds>,
}

impl BoundTool {
    async fn send(&self, permit: &Permit, call: &CallRequest) -> Result<Output, Failure> {
        let credential = self.credential(permit).await?;
        // Checked before sending: a credential that could not be redacted from the response must not be sent.
        let own = credential.as_ref().map_or_else(|| Ok(Redactor::default()), Credential::redactor);
        let own = own.map_err(|_| Failure::Down("the tool's credential is too large".to_owned()))?;
        let redactor = permit.redactor().and(&own);
        let mut request = self.request(permit, call)?;
        if let Some(credential) = credential {
            request = request.header(credential.header, credential.value);
        }
        let response = request.send().await.map_err(|error| self.failure(&error))?;
        let text = self.read(response).await?;
        Ok(output(&text, &redactor))
    }

    /// The header that authenticates us to the tool.
    async fn credential(&self, permit: &Permit) -> Result<Option<Credential>, Failure> {
        Ok(match &self.tool.auth {
            Auth::None => None,
            Auth::Bearer { key } => Some(Credential::bearer(&self.secret(permit, key).await?)),
            Auth::Header { name, key } => Some(Credential::new(name, self.secret(permit, key).await?)),
        })
    }

    async fn secret(&self, permit: &Permit, key: &str) -> Result<String, Failure> {
        let unopened = || Failure::Down("the tool's credential cannot be opened".to_owned());
        let vault = self.needs.vault.as_ref().ok_or_else(unopened)?;
        let found = vault.open_for(permit, Scope::Org, key).await;
        let found = found.map_err(|error| {
            tracing::error!(%error, key, "the credential of a tool cannot be opened");
            unopened()
        })?;
        let found = found.ok_or_else(|| Failure::Down(format!("the secret {key} is not set")))?;
        Ok(found.expose_secret().to_owned())
    }

    fn request(&self, permit: &Permit, call: &CallRequest) -> Result<reqwest::RequestBuilder, Failure> {
        let mut url =
            Url::parse(&self.tool.url).map_err(|_| Failure::Down("the tool's URL is none".to_owned()))?;
        let private = || "the tool's address is private: name it in CONNECTOR_ALLOWED_HOSTS".to_owned();
        let client = self.needs.outbound.client_for(&self.needs.allowed_hosts, &url);
        let client = client.ok_or_else(|| Failure::Down(private()))?;
        let client = client.map_err(|error| self.failure(&error))?;
        let method = match self.tool.method {
            Method::Get => reqwest::Method::GET,
            Method::Post => reqwest::Method::POST,
            Method::Put => reqwest::Method::PUT,
            Method::Patch => reqwest::Method::PATCH,
            Method::Delete => reqwest::Method::DELETE,
        };
        let asks = method == reqwest::Method::GET;
        if asks {
            url.query_pairs_mut().extend_pairs(queries(&call.target.parameters));
        }
        let request = client.request(method, url).header(IDEMPOTENCY_KEY, permit.run_id());
        Ok(if asks { request } else { request.json(&call.target.parameters) })
    }

    /// Reads the response text up to its limit. The body of an error response is ignored, because it may contain
    /// anything.
    async fn read(&self, mut response: reqwest::Response) -> Result<String, Failure> {
        let status = response.status();
        if status.is_redirection() {
            let message = "the tool answered with a redirect, which is not followed";
            return Err(Failure::Refused(message.to_owned()));
        }
        if !status.is_success() {
            return Err(self.status_failure(status.as_u16()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failure(&error))? {
            if body.len() + chunk.len() > MAX_CONTENT_BYTES {
                return Err(Failure::Refused("the tool's answer is larger than 1 MiB".to_owned()));
            }
            body.extend_from_slice(&chunk);
        }
        String::from_utf8(body).map_err(|_| Failure::Refused("the tool's answer is no text".to_owned()))
    }

    /// The failure for an error status. A proxy before the tool that answers 502 or 504 may have passed the request on.
    fn status_failure(&self, status: u16) -> Failure {
        let message = format!("the tool answered {status}");
        match status {
            429 | 503 => Failure::Down(message),
            502 | 504 if self.replay_safe() => Failure::Down(message),
            502 | 504 => Failure::Refused(format!("{message}: whether it took effect is unknown")),
            _ => Failure::Refused(message),
        }
    }

    /// The failure for a missing response. Only if no connection was made is it certain that nothing happened.
    fn failure(&self, error: &reqwest::Error) -> Failure {
        if error.is_builder() {
            return Failure::Down("the request cannot be made of the tool's URL and secret".to_owned());
        }
        match (error.is_connect(), self.replay_safe(), error.is_timeout()) {
            (true, ..) => Failure::Down("the tool cannot be reached".to_owned()),
            (_, true, true) => Failure::Timeout,
            (_, true, false) => Failure::Down("the connection to the tool broke".to_owned()),
            (_, false, true) => Failure::Late,
            (_, false, false) => {
                let message = "the connection to the tool broke: whether it took effect is unknown";
                Failure::Refused(message.to_owned())
            }
        }
    }
}

/// The part of a response that is stored and returned, with known secrets and fields named like secrets redacted. Redaction may lengthen the text, so it is truncated again.
fn output(text: &str, redactor: &Redactor) -> Output {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return Output { text: redactor.text(text), data: None };
    };
    let mut data = JsonObject::new();
    data.insert("response".to_owned(), redactor.redact_and_truncate(&value, MAX_CONTENT_BYTES));
    Output { text: String::new(), data: Some(data) }
}

/// The query parameters of a flat object. Nested values are sent as JSON.
fn queries(parameters: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let object = parameters.as_object();
    object.into_iter().flatten().map(|(name, value)| (name.clone(), text(value))).collect()
}

impl Tool for BoundTool {
    fn risk(&self) -> Risk {
        self.tool.risk
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.tool.timeout_ms)
    }

    fn writes(&self) -> Option<&TableWrite> {
        self.tool.writes.as_ref()
    }

    fn mode_key(&self) -> Option<ModeKey> {
        Some(self.tool.mode_key())
    }

    fn definition(&self) -> Option<Definition> {
        Some(definition(&self.tool))
    }

    fn check(&self, parameters: &Value) -> Result<(), String> {
        check_schema(&self.tool.schema, parameters)
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

impl Outside for BoundTool {
    /// A GET changes nothing, so it can be repeated. The effect of repeating any other request is unknown.
    fn replay_safe(&self) -> bool {
        self.tool.method == Method::Get
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        call: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        self.send(permit, call).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(method: &str) -> BoundTool {
        let tools = format!("- {{name: a.b, method: {method}, url: 'http://127.0.0.1/'}}\n");
        let files = policy::Files { tools: Some(&tools), ..policy::Files::default() };
        let policy = Policy::load(files).unwrap();
        BoundTool { tool: policy.tool("a.b").unwrap().clone(), needs: HttpTools::for_tests().0 }
    }

    #[tokio::test]
    async fn unreachable_targets_may_be_retried() {
        // The port is bound, but nobody listens on it.
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let url = format!("http://{}/", socket.local_addr().unwrap());
        let out = Outbound::default();
        let error = out.named().unwrap().post(url).send().await.unwrap_err();
        let down = Failure::Down("the tool cannot be reached".to_owned());
        assert_eq!((tool("POST").failure(&error), tool("GET").failure(&error)), (down.clone(), down));
    }
}
