//! The actions of connected vendors. The token is opened with the permit of the call, sent to the vendor and to nobody
//! else, and removed from whatever the vendor answers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{
    CallRequest, Definition, Failure, MAX_CONTENT_BYTES, Output, Outside, Permit, Review, SourceError, Tool,
    ToolScope, Work,
};
use ledger::{Redactor, credential_parts};
use policy::{Method, ModeKey, Policy, Risk, ToolFacts};
use proto::JsonObject;
use providers::{Action, ApiError, Attempt, Provider, Request, Response, pause};
use reqwest::header::{AUTHORIZATION, HeaderValue, RETRY_AFTER};
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use store::{Integration, Scope, Store};
use tokio::time::{sleep, timeout};
use url::Url;

use super::arguments::check_schema;
use super::catalog::{Guide, definition_hash};
use super::http_tool::HttpNeeds;
use super::{CatalogAction, CatalogSource, Described, Found, Missing, Source, action_mode_key};
use crate::config::Config;

/// The source of the actions of all vendors. Each connected vendor is one source of the catalog.
pub(crate) struct Integrations(Arc<IntegrationServices>);

struct IntegrationServices {
    store: Store,
    http: HttpNeeds,
    /// Addresses of vendors' APIs by provider id, where they differ from the public ones.
    base_urls: BTreeMap<String, Url>,
}

impl Integrations {
    pub(crate) fn new(store: Store, http: HttpNeeds, config: &Config) -> Self {
        Self(Arc::new(IntegrationServices { store, http, base_urls: base_urls(config) }))
    }

    async fn usable(&self, scope: ToolScope, source: &str) -> Result<Vec<Integration>, SourceError> {
        let found = self.0.store.usable_integrations(scope.org, scope.session).await;
        found.map_err(|error| {
            tracing::error!(%error, "the integrations of an organization cannot be read");
            SourceError { source_id: source.to_owned(), problem: "the database does not answer".to_owned() }
        })
    }
}

/// The action with this full name, whether it is connected or not.
fn action(name: &str) -> Option<(&'static Provider, &'static Action)> {
    let (provider, action) = name.split_once(':')?;
    let provider = providers::find(provider)?;
    Some((provider, provider.action(action)?))
}

/// The facts about a vendor's action that policy needs.
pub(super) fn known(name: &str) -> Option<ToolFacts> {
    let (provider, action) = action(name)?;
    let mode_key = action_mode_key(provider.id, action.name).ok();
    Some(ToolFacts { risk: action.risk, writes: None, mode_key })
}

impl Source for Integrations {
    fn claims(&self, _: &Policy, name: &str) -> bool {
        name.split_once(':').is_some_and(|(provider, _)| providers::find(provider).is_some())
    }

    fn find<'a>(&'a self, _: &'a Policy, scope: ToolScope, name: &'a str) -> Found<'a> {
        async move {
            let Some((provider, action)) = action(name) else { return Ok(None) };
            let usable = self.usable(scope, provider.id).await?;
            let integration = usable.into_iter().find(|found| found.provider.as_str() == provider.id);
            let bind = |integration: Integration| {
                let secret = integration.secret_key;
                Arc::new(VendorAction { provider, action, secret, needs: self.0.clone() }) as Arc<dyn Tool>
            };
            Ok(integration.map(bind))
        }
        .boxed()
    }

    fn explain_missing<'a>(&'a self, _: ToolScope, name: &'a str) -> Missing<'a> {
        async move {
            let (provider, _) = action(name)?;
            Some(format!("Integration {} not connected to this session", provider.id))
        }
        .boxed()
    }

    fn describe<'a>(&'a self, _: &'a Policy, scope: ToolScope) -> Described<'a> {
        async move {
            match self.usable(scope, "integrations").await {
                Ok(usable) => usable.into_iter().filter_map(describe).map(Ok).collect(),
                Err(error) => vec![Err(error)],
            }
        }
        .boxed()
    }
}

fn describe(integration: Integration) -> Option<CatalogSource> {
    let provider = providers::find(integration.provider.as_str())?;
    let actions = provider.actions.iter().map(|action| CatalogAction {
        name: action.name.to_owned(),
        description: action.description.to_owned(),
        params: Arc::new(action.schema()),
        risk: action.risk,
        definition: definition(provider, action),
    });
    Some(CatalogSource {
        id: provider.id.to_owned(),
        integration_id: Some(integration.id.uuid()),
        display_name: Some(integration.display_name.unwrap_or_else(|| provider.name.to_owned())),
        guide: Guide::OfVendor(provider),
        actions: actions.collect(),
    })
}

/// The definition is in our code, so it needs no review.
fn definition(provider: &Provider, action: &Action) -> Definition {
    let raw = json!({"source": provider.id, "name": action.name, "description": action.description,
        "schema": action.schema(), "risk": action.risk.as_str()});
    Definition { hash: definition_hash(&raw), review: Review::NotNeeded }
}

/// One action of a connected vendor.
struct VendorAction {
    provider: &'static Provider,
    action: &'static Action,
    /// The name of the secret that holds the token.
    secret: String,
    needs: Arc<IntegrationServices>,
}

impl VendorAction {
    async fn send(&self, permit: &Permit, call: &CallRequest) -> Result<Output, Failure> {
        let request = self.action.request(&self.base_url()?, &call.target.parameters);
        let request = request.map_err(|error| Failure::Invalid(error.to_string()))?;
        let token = self.open_token(permit).await?;
        let too_large = |_| Failure::Down("the integration's token is too large".to_owned());
        let authorization = self.provider.authorization(&token);
        let own = Redactor::new(credential_parts(&authorization)).map_err(too_large)?;
        let redactor = permit.redactor().and(&own);
        let mut authorization = HeaderValue::from_str(&authorization)
            .map_err(|_| Failure::Down("the integration's token cannot be a header".to_owned()))?;
        authorization.set_sensitive(true);
        let attempts = self.attempts(&request, &authorization, &redactor);
        let result = timeout(providers::TIMEOUT, attempts).await.unwrap_or(Err(AttemptError::Late));
        result.map(|value| output(&value, &redactor)).map_err(|error| self.failure(error))
    }

    /// Sends the request, again and again as long as that is allowed.
    async fn attempts(
        &self,
        request: &Request,
        authorization: &HeaderValue,
        redactor: &Redactor,
    ) -> Result<Value, AttemptError> {
        let mut made = 0;
        loop {
            made += 1;
            let error = match self.attempt(request, authorization, redactor).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            match self.pause(&error, made) {
                Some(pause) => sleep(pause).await,
                None => return Err(error),
            }
        }
    }

    fn base_url(&self) -> Result<Url, Failure> {
        let configured = self.needs.base_urls.get(self.provider.id).cloned();
        let public = || Url::parse(self.provider.base_url);
        configured.map_or_else(public, Ok).map_err(|_| Failure::Down("the vendor's URL is wrong".to_owned()))
    }

    async fn open_token(&self, permit: &Permit) -> Result<String, Failure> {
        let key = &self.secret;
        let unopened = || Failure::Down("the integration's token cannot be opened".to_owned());
        let vault = self.needs.http.vault.as_ref().ok_or_else(unopened)?;
        let found = vault.open_for(permit, Scope::Org, key).await.map_err(|error| {
            tracing::error!(%error, key, "the token of an integration cannot be opened");
            unopened()
        })?;
        let found = found.ok_or_else(|| Failure::Down(format!("the secret {key} is not set")))?;
        Ok(found.expose_secret().trim().to_owned())
    }

    async fn attempt(
        &self,
        request: &Request,
        authorization: &HeaderValue,
        redactor: &Redactor,
    ) -> Result<Value, AttemptError> {
        let private = || "its address is private: name it in CONNECTOR_ALLOWED_HOSTS".to_owned();
        let http = &self.needs.http;
        let client = http.outbound.client_for(&http.allowed_hosts, &request.url);
        let client = client.ok_or_else(|| AttemptError::Refused(private()))?;
        let client = client.map_err(|_| AttemptError::NotSent)?;
        let method = match request.method {
            Method::Get => reqwest::Method::GET,
            Method::Post => reqwest::Method::POST,
            Method::Put => reqwest::Method::PUT,
            Method::Patch => reqwest::Method::PATCH,
            Method::Delete => reqwest::Method::DELETE,
        };
        let mut builder = client.request(method, request.url.clone()).header(AUTHORIZATION, authorization);
        for (name, value) in self.provider.headers() {
            builder = builder.header(*name, *value);
        }
        if let Some(body) = &request.body {
            builder = builder.json(body);
        }
        let response = builder
            .send()
            .await
            .map_err(|error| if error.is_connect() { AttemptError::NotSent } else { AttemptError::Broken })?;
        let status = response.status().as_u16();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let retry_after = retry_after.map(str::to_owned);
        let body = read(response).await?;
        let response = Response { status, retry_after: retry_after.as_deref(), body: &body, redactor };
        let result = self.provider.read(self.action, &response);
        result.map_err(|error| AttemptError::Answered { error, retry_after })
    }

    fn pause(&self, failure: &AttemptError, made: u32) -> Option<Duration> {
        let attempt = match failure {
            AttemptError::NotSent => Attempt::NotSent,
            AttemptError::Broken => Attempt::Broken,
            AttemptError::Answered { error, retry_after } => {
                Attempt::Answered { error, retry_after: retry_after.as_deref() }
            }
            AttemptError::Late | AttemptError::Refused(_) => return None,
        };
        pause(self.action.replay_safe(), made, &attempt)
    }

    /// The failure of a call. Only if nothing can have happened, or repeating is harmless, may the caller try again.
    fn failure(&self, error: AttemptError) -> Failure {
        let (vendor, harmless) = (self.provider.name, self.action.replay_safe());
        match error {
            AttemptError::NotSent => Failure::Down(format!("{vendor} cannot be reached")),
            AttemptError::Late if harmless => Failure::Timeout,
            AttemptError::Late => Failure::Late,
            AttemptError::Broken if harmless => Failure::Down(format!("the connection to {vendor} broke")),
            AttemptError::Broken => Failure::Refused(format!(
                "the connection to {vendor} broke: whether it took effect is unknown"
            )),
            AttemptError::Refused(problem) => Failure::Refused(format!("{vendor}: {problem}")),
            AttemptError::Answered { error: ApiError::RateLimited(text), .. } => Failure::Down(text),
            AttemptError::Answered { error: ApiError::Failed(text), .. } if harmless => Failure::Down(text),
            AttemptError::Answered { error: ApiError::Failed(text), .. } => {
                Failure::Refused(format!("{text} (whether it took effect is unknown)"))
            }
            AttemptError::Answered { error: ApiError::Refused(text), .. } => Failure::Refused(text),
        }
    }
}

/// Why one attempt failed.
enum AttemptError {
    /// No connection was made.
    NotSent,
    /// The connection broke after something may have been sent.
    Broken,
    /// The answer did not come in time.
    Late,
    /// We do not send the request, or do not accept the answer.
    Refused(String),
    Answered {
        error: ApiError,
        retry_after: Option<String>,
    },
}

/// Reads a body up to the limit of results.
async fn read(mut response: reqwest::Response) -> Result<Vec<u8>, AttemptError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|_| AttemptError::Broken)? {
        if body.len() + chunk.len() > MAX_CONTENT_BYTES {
            return Err(AttemptError::Refused("the answer is larger than 1 MiB".to_owned()));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn output(value: &Value, redactor: &Redactor) -> Output {
    let mut data = JsonObject::new();
    data.insert("response".to_owned(), redactor.redact_and_truncate(value, MAX_CONTENT_BYTES));
    Output { text: String::new(), data: Some(data) }
}

impl Tool for VendorAction {
    fn risk(&self) -> Risk {
        self.action.risk
    }

    fn timeout(&self) -> Duration {
        // The deadline of the request comes first, so that its text reaches the caller.
        providers::TIMEOUT + Duration::from_secs(2)
    }

    fn mode_key(&self) -> Option<ModeKey> {
        action_mode_key(self.provider.id, self.action.name).ok()
    }

    fn definition(&self) -> Option<Definition> {
        Some(definition(self.provider, self.action))
    }

    fn check(&self, parameters: &Value) -> Result<(), String> {
        check_schema(&self.action.schema(), parameters)
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

impl Outside for VendorAction {
    fn replay_safe(&self) -> bool {
        self.action.replay_safe()
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        call: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        self.send(permit, call).boxed()
    }
}

/// The configured addresses. An Enterprise server of GitHub has its API below its own address.
fn base_urls(config: &Config) -> BTreeMap<String, Url> {
    let mut urls: BTreeMap<_, _> = config.integration_urls.iter().cloned().collect();
    if config.github_url.host_str() != Some("github.com") {
        let api = format!("{}/api/v3", config.github_url.as_str().trim_end_matches('/'));
        if let Ok(api) = Url::parse(&api) {
            urls.entry("github".to_owned()).or_insert(api);
        }
    }
    urls
}
