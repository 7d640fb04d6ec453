//! The options of `repos` and `configurations`.

use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;

use super::gateway::GatewayArgs;
use crate::complete;

#[derive(Args)]
pub(crate) struct ReposArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    #[command(subcommand)]
    pub(crate) command: ReposCommand,
}

#[derive(Subcommand)]
pub(crate) enum ReposCommand {
    /// List the repositories of the organization
    Ls,
    /// Add a repository that sessions can work on
    Add {
        /// The address of the repository, or a directory that the operator of the gateway allows
        #[arg(value_name = "URL|PATH")]
        repo: String,
        /// The name of the repository [default: the last part of the address]
        #[arg(long)]
        name: Option<String>,
        /// The branch that sessions start from [default: that of the repository]
        #[arg(long)]
        branch: Option<String>,
    },
    /// Remove repositories
    Rm {
        /// Repositories, by name, address, id or the beginning of an id
        #[arg(required = true, value_name = "REPO", add = ArgValueCandidates::new(complete::repos))]
        repos: Vec<String>,
    },
}

#[derive(Args)]
pub(crate) struct ConfigurationsArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    #[command(subcommand)]
    pub(crate) command: ConfigurationsCommand,
}

#[derive(Subcommand)]
pub(crate) enum ConfigurationsCommand {
    /// List the configurations that sessions can start from
    Ls,
    /// Show a configuration and its repositories
    Show {
        /// The configuration, by name, id or the beginning of its id
        #[arg(value_name = "CONFIGURATION", add = ArgValueCandidates::new(complete::configurations))]
        configuration: String,
    },
    /// Create a configuration from repositories of the organization
    New {
        /// The name of the configuration
        name: String,
        /// Include a repository, as REPO or REPO=DIRECTORY; may be repeated [default directory: the workspace itself for one
        /// repository, its name for several]
        #[arg(long = "repo", value_name = "REPO[=DIRECTORY]", add = ArgValueCandidates::new(complete::repos))]
        repos: Vec<String>,
    },
    /// Change the name of a configuration
    Rename {
        /// The configuration, by name, id or the beginning of its id
        #[arg(value_name = "CONFIGURATION", add = ArgValueCandidates::new(complete::configurations))]
        configuration: String,
        /// The new name
        name: String,
    },
    /// Remove configurations
    Rm {
        /// Configurations, by name, id or the beginning of an id
        #[arg(required = true, value_name = "CONFIGURATION", add = ArgValueCandidates::new(complete::configurations))]
        configurations: Vec<String>,
    },
}
