//! The options of `login`, `logout`, `approve-login` and `context`.

use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use url::Url;

use super::gateway::{GatewayArgs, web_url};
use crate::complete;

#[derive(Args)]
pub(crate) struct LoginArgs {
    /// The address of the gateway
    #[arg(value_name = "URL", value_parser = web_url)]
    pub(crate) url: Url,
    /// Save the login under this name [default: the host of the address]
    #[arg(long, value_name = "NAME", value_parser = context_name)]
    pub(crate) name: Option<String>,
    /// Do not ask for a key: show a code that a logged-in person approves
    #[arg(long)]
    pub(crate) device: bool,
}

#[derive(Args)]
pub(crate) struct ApproveArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// The code that the device shows, such as ABCD-1234
    #[arg(value_name = "CODE")]
    pub(crate) code: String,
    /// Deny the login instead
    #[arg(long)]
    pub(crate) deny: bool,
}

#[derive(Subcommand)]
pub(crate) enum ContextCommand {
    /// List saved logins; keys are never shown
    Ls,
    /// Use a saved login for later commands; `local` uses the data directory of this machine
    Use {
        /// The name of the login
        #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete::contexts))]
        name: String,
    },
}

/// The name that stands for the data directory of this machine.
pub(crate) const LOCAL: &str = "local";

/// Parses a name that needs no quoting in a shell.
fn context_name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
    if text == LOCAL || text.is_empty() || text.len() > 100 || !text.chars().all(plain) {
        return Err(format!("must have letters, digits and . _ - : only, and not be {LOCAL}"));
    }
    Ok(text.to_owned())
}
