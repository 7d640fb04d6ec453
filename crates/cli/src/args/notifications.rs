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
    /// Show the webhook that notifications go to, and how many could not be delivered
    Show,
    /// Set the webhook that is called for new approvals, questions and failed runs, such as an incoming webhook of Slack
    ///
    /// The first time it prints the secret that signs the requests. The URL is stored in the vault and not shown again.
    Set {
        /// The URL of the webhook; `-` reads it from standard input, which keeps it out of the shell history
        #[arg(value_name = "URL")]
        address: String,
    },
    /// Remove the webhook, so that no more notifications are sent
    Rm,
    /// Send a test message
    Test,
}
