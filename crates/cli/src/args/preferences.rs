//! The options of `preferences`.

use clap::{Args, Subcommand};

use super::gateway::GatewayArgs;

#[derive(Args)]
pub(crate) struct PreferencesArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    #[command(subcommand)]
    pub(crate) command: PreferencesCommand,
}

#[derive(Subcommand)]
pub(crate) enum PreferencesCommand {
    /// List what you have disabled; everything else is enabled
    Ls,
    /// Disable a source of actions, or one action, in the sessions that you create
    Disable {
        #[command(flatten)]
        what: WhichActions,
    },
    /// Enable a source or an action again
    Enable {
        #[command(flatten)]
        what: WhichActions,
    },
}

/// A source of actions, or one of its actions.
#[derive(Args)]
pub(crate) struct WhichActions {
    /// The source of the actions, such as linear, tools or connector:ID; `actions modes ls` shows it before the action
    pub(crate) source: String,
    /// One action of the source [default: all]
    pub(crate) action: Option<String>,
}
