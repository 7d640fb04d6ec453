//! The actions of Linear, Sentry, Slack and GitHub as pure functions: parameters in, an HTTP request without its token
//! out; a response in, a result or an error text out. The gateway sends the requests, so this crate knows neither the
//! network nor the vault.

mod github;
mod guide;
mod linear;
mod params;
mod request;
mod response;
mod retry;
mod schema;
mod sentry;
mod slack;

use std::time::Duration;

use policy::Risk;
use serde_json::Value;
use url::Url;

pub use params::{InvalidParams, Params};
pub use request::Request;
pub use response::{ApiError, Response};
pub use retry::{Attempt, MAX_ATTEMPTS, pause};

/// How long one action may take, its retries included.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// All providers, in the order in which catalogues list them.
pub static PROVIDERS: [Provider; 4] = [linear::PROVIDER, sentry::PROVIDER, slack::PROVIDER, github::PROVIDER];

/// A vendor with an API.
pub struct Provider {
    /// The id of the source in mode keys and URLs.
    pub id: &'static str,
    /// The vendor's name, as error texts and people spell it.
    pub name: &'static str,
    /// The URL of the vendor's public API.
    pub base_url: &'static str,
    pub actions: &'static [Action],
    /// The guide that an agent should read before it uses the actions.
    introduction: &'static str,
    headers: &'static [(&'static str, &'static str)],
    authorization: fn(&str) -> String,
}

/// One thing that can be done at a vendor.
pub struct Action {
    pub name: &'static str,
    pub description: &'static str,
    pub risk: Risk,
    schema: fn() -> Value,
    request: fn(&Url, &Params) -> Result<Request, InvalidParams>,
    /// Turns the JSON of a successful response into the result, or says why it is a failure nevertheless.
    result: fn(&Value) -> Result<Value, ApiError>,
}

/// Finds a provider by its id.
pub fn find(id: &str) -> Option<&'static Provider> {
    PROVIDERS.iter().find(|provider| provider.id == id)
}

impl Provider {
    pub fn action(&self, name: &str) -> Option<&'static Action> {
        self.actions.iter().find(|action| action.name == name)
    }

    /// The value of the header `Authorization` for this token.
    pub fn authorization(&self, token: &str) -> String {
        (self.authorization)(token)
    }

    /// The headers of every request to this vendor, without the token.
    pub fn headers(&self) -> &'static [(&'static str, &'static str)] {
        self.headers
    }

    /// A page in Markdown that tells an agent how to use those of the actions that `shows` selects.
    pub fn guide(&self, shows: impl Fn(&Action) -> bool) -> String {
        guide::guide(self, shows)
    }

    /// Reads a response to a request of this action.
    pub fn read(&self, action: &Action, response: &Response<'_>) -> Result<Value, ApiError> {
        response::read(self.name, action.result, response)
    }
}

impl Action {
    /// The JSON Schema of the parameters.
    pub fn schema(&self) -> Value {
        (self.schema)()
    }

    /// The request for validated parameters. `base` is the address of the vendor's API.
    pub fn request(&self, base: &Url, params: &Value) -> Result<Request, InvalidParams> {
        (self.request)(base, &Params::new(params)?)
    }

    /// Whether sending the request twice has the same effect as sending it once.
    pub fn replay_safe(&self) -> bool {
        self.risk == Risk::Read
    }
}

fn bearer(token: &str) -> String {
    format!("Bearer {token}")
}
