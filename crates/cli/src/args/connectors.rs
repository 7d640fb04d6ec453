//! The options of `connectors`.

use clap::{Args, Subcommand, ValueEnum};
use proto::Risk;
use proto::http::ConnectorAuth;
use url::Url;

use super::WhichOrg;
use super::gateway::{GatewayArgs, web_url};
use crate::failure::Failure;

#[derive(Subcommand)]
pub(crate) enum ConnectorsCommand {
    /// Connect a remote MCP server; agents can use its tools once their modes and reviews allow it
    Add(AddConnector),
    /// List the connectors of the organization
    Ls {
        #[command(flatten)]
        place: Place,
    },
    /// Show a connector, the tools that its server offers now, and what changed since they were reviewed
    Show {
        #[command(flatten)]
        connector: OneConnector,
    },
    /// Review the tools of a server: pin their current definitions, so that their modes apply until a definition changes
    Review {
        #[command(flatten)]
        connector: OneConnector,
        /// Review only this tool; may be repeated
        #[arg(long = "tool", value_name = "TOOL", conflicts_with = "all")]
        tools: Vec<String>,
        /// Review all tools that are new or have changed
        #[arg(long)]
        all: bool,
        /// Pin the reviewed definitions; without this flag, only show what would be pinned
        #[arg(long)]
        yes: bool,
    },
    /// Enable a connector, so that agents can use it
    Enable {
        #[command(flatten)]
        connector: OneConnector,
    },
    /// Disable a connector, so that agents cannot use it; its settings are kept
    Disable {
        #[command(flatten)]
        connector: OneConnector,
    },
    /// Remove a connector, with the reviews of its tools
    Rm {
        #[command(flatten)]
        connector: OneConnector,
    },
}

/// The gateway and the organization.
#[derive(Args)]
pub(crate) struct Place {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    #[command(flatten)]
    pub(crate) org: WhichOrg,
}

#[derive(Args)]
pub(crate) struct OneConnector {
    /// The connector, by name, id or the beginning of its id
    #[arg(value_name = "CONNECTOR")]
    pub(crate) connector: String,
    #[command(flatten)]
    pub(crate) place: Place,
}

#[derive(Args)]
pub(crate) struct AddConnector {
    /// The name of the connector
    #[arg(long)]
    pub(crate) name: String,
    /// The address of the MCP server; set `PROLIFERATE_URL` to choose the gateway
    #[arg(long, value_parser = server_url)]
    pub(crate) url: Url,
    /// How to authenticate: none, bearer:KEY, header:NAME:KEY or oauth, where KEY is the name of a secret
    #[arg(long, default_value = "none")]
    pub(crate) auth: String,
    /// The address of the token endpoint, for oauth
    #[arg(long, value_parser = server_url)]
    pub(crate) token_url: Option<Url>,
    /// The name of the secret with the OAuth client id
    #[arg(long, value_name = "KEY")]
    pub(crate) client_id_key: Option<String>,
    /// The name of the secret with the OAuth client secret
    #[arg(long, value_name = "KEY")]
    pub(crate) client_secret_key: Option<String>,
    /// The scopes to request, for oauth
    #[arg(long)]
    pub(crate) scope: Option<String>,
    /// The risk of its tools; a server's hints may raise it, never lower it
    #[arg(long, value_enum, default_value = "write")]
    pub(crate) default_risk: ConnectorRisk,
    /// The token or API key for the gateway
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    pub(crate) org: WhichOrg,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum ConnectorRisk {
    Read,
    Write,
    Danger,
}

impl From<ConnectorRisk> for Risk {
    fn from(risk: ConnectorRisk) -> Self {
        match risk {
            ConnectorRisk::Read => Self::Read,
            ConnectorRisk::Write => Self::Write,
            ConnectorRisk::Danger => Self::Danger,
        }
    }
}

/// Parses the address of an MCP server, which may have a query.
fn server_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    let mut bare = url.clone();
    bare.set_query(None);
    web_url(bare.as_str()).map(|_| url)
}

impl AddConnector {
    pub(crate) fn auth(&self) -> Result<ConnectorAuth, Failure> {
        let parts: Vec<&str> = self.auth.splitn(3, ':').collect();
        match parts[..] {
            ["none"] => Ok(ConnectorAuth::None),
            ["bearer", key] => Ok(ConnectorAuth::Bearer { secret_key: key.to_owned() }),
            ["header", name, key] => {
                Ok(ConnectorAuth::CustomHeader { secret_key: key.to_owned(), header_name: name.to_owned() })
            }
            ["oauth"] => self.oauth(),
            _ => Err(Failure::usage("--auth is none, bearer:KEY, header:NAME:KEY or oauth")),
        }
    }

    fn oauth(&self) -> Result<ConnectorAuth, Failure> {
        let missing =
            || Failure::usage("--auth oauth needs --token-url, --client-id-key and --client-secret-key");
        Ok(ConnectorAuth::Oauth {
            token_url: self.token_url.as_ref().ok_or_else(missing)?.to_string(),
            client_id_key: self.client_id_key.clone().ok_or_else(missing)?,
            client_secret_key: self.client_secret_key.clone().ok_or_else(missing)?,
            scope: self.scope.clone(),
        })
    }
}
