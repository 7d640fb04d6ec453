//! The options of every command that speaks to a gateway over its API.

use clap::Args;
use url::Url;

/// The gateway that a command talks to, and the credential.
#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Args)]
pub(crate) struct GatewayArgs {
    /// The gateway's URL [setting PROLIFERATE_URL, default: the login chosen by `context use`, else the data directory's gateway]
    #[arg(long, global = true, value_name = "URL", value_parser = web_url)]
    pub(crate) url: Option<Url>,
    /// The token or API key [setting PROLIFERATE_TOKEN, default: the key that `login` saved, else a token of the first owner]
    #[arg(long, global = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
}

/// Parses the address of a gateway.
pub(crate) fn web_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    let plain = url.username().is_empty() && url.password().is_none() && url.query().is_none();
    if matches!(url.scheme(), "http" | "https") && url.has_host() && plain {
        return Ok(url);
    }
    Err("must begin with http:// or https:// and name a host, without user name and query".to_owned())
}
