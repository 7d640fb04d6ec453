//! The options of `approvals`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::gateway::GatewayArgs;

#[derive(Args)]
pub(crate) struct ApprovalsArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    #[command(subcommand)]
    pub(crate) command: ApprovalsCommand,
}

#[derive(Subcommand)]
pub(crate) enum ApprovalsCommand {
    /// List the actions that wait for approval; `--json` shows their complete parameters
    Ls,
    /// Approve an action, which executes it, and print its result. Parameters that the list cuts are printed first, and
    /// on a terminal you are asked
    Approve {
        /// The complete id of the invocation
        invocation: String,
        /// Execute the action with the parameters in this JSON file (- is standard input) instead of its own
        #[arg(long, value_name = "FILE")]
        params: Option<PathBuf>,
        /// The `requestHash` of the parameters that you approve, or at least its first 8 digits; needed once somebody
        /// has edited them
        #[arg(long, value_name = "HASH")]
        request_hash: Option<String>,
        /// Afterwards set the mode of the action to allow, so that nobody is asked again; for owners and admins.
        /// `actions modes ls` shows such modes, `actions modes unset` revokes them
        #[arg(long)]
        always: bool,
        /// Do not ask on a terminal
        #[arg(long)]
        yes: bool,
    },
    /// Deny an action, which is then never executed
    Deny {
        /// The complete id of the invocation
        invocation: String,
        /// The reason; sent to the agent and recorded in the ledger
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
    },
    /// Print the actions that wait for approval, with their parameters, and then every new one, until you press Ctrl-C
    Watch,
}
