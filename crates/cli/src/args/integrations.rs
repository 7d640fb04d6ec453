//! The options of `integrations`.

use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use proto::IntegrationProvider;

use super::gateway::GatewayArgs;
use super::words;
use crate::complete;

#[derive(Args)]
pub(crate) struct IntegrationsArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// The organization, by name or id [default: that of the login or token, else the first one]
    #[arg(long, global = true, value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
    pub(crate) org: Option<String>,
    #[command(subcommand)]
    pub(crate) command: IntegrationsCommand,
}

#[derive(Subcommand)]
pub(crate) enum IntegrationsCommand {
    /// List the integrations of the organization
    Ls,
    /// Connect a vendor with a token from the vault
    ///
    /// Store the token first: `proliferate secrets set LINEAR_TOKEN -`. Sessions that are created later can use the vendor's
    /// actions; the organization's modes decide which of them need approval.
    Add {
        /// The vendor
        #[arg(value_parser = words(IntegrationProvider::ALL, IntegrationProvider::as_str))]
        provider: IntegrationProvider,
        /// The name of the organization's secret that holds the token
        #[arg(long, value_name = "KEY")]
        secret: String,
        /// The name that people and agents see [default: the vendor's name]
        #[arg(long)]
        name: Option<String>,
    },
    /// Let sessions use integrations again
    Enable {
        /// Integrations, by vendor, name, id or the beginning of an id
        #[arg(required = true, value_name = "INTEGRATION", add = ArgValueCandidates::new(complete::integrations))]
        integrations: Vec<String>,
    },
    /// Stop all sessions from using integrations
    Disable {
        /// Integrations, by vendor, name, id or the beginning of an id
        #[arg(required = true, value_name = "INTEGRATION", add = ArgValueCandidates::new(complete::integrations))]
        integrations: Vec<String>,
    },
    /// Remove integrations; their secrets stay in the vault
    Rm {
        /// Integrations, by vendor, name, id or the beginning of an id
        #[arg(required = true, value_name = "INTEGRATION", add = ArgValueCandidates::new(complete::integrations))]
        integrations: Vec<String>,
    },
}
