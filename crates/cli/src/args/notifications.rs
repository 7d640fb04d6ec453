//! The options of `notifications`.

use clap::{Args, Subcommand};

use super::gateway::GatewayArgs;

#[derive(Args)]
pub(crate) struct NotificationsArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    #[command(subcommand)]
    pub(crate) command: NotificationsCommand,
}

#[derive(Subcommand)]
pub(crate) enum NotificationsCommand {
    /// Show where notifications go, and how many were not delivered
    Show,
    /// Set the address that is told about approvals, questions and failed runs, such as an incoming webhook of Slack
    ///
    /// Prints the secret that signs the requests when there was none. The address is stored in the vault and not shown again.
    Set {
        /// The address, or - to read it from standard input, so that it is in no shell history
        #[arg(value_name = "URL")]
        address: String,
    },
    /// End notifications
    Rm,
    /// Send a test message
    Test,
}
