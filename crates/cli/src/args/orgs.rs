//! The options of `orgs`.

use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use gateway::config::micros;

use crate::complete;

#[derive(Subcommand)]
pub(crate) enum OrgsCommand {
    /// Create an organization
    Create {
        /// The name of the organization
        #[arg(long)]
        name: String,
    },
    /// List organizations
    Ls,
    /// Show or change the budget and the session limit of an organization
    Limits(LimitsArgs),
}

#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Args)]
pub(crate) struct LimitsArgs {
    /// The organization, by name or id
    #[arg(value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
    pub(crate) org: String,
    /// The budget of all its sessions in dollars, at the prices of MODEL_PRICES; `none` removes the limit
    #[arg(long, value_name = "DOLLARS", value_parser = budget)]
    pub(crate) budget: Option<Limit>,
    /// The maximum number of live sessions; `none` removes the limit
    #[arg(long, value_name = "N", value_parser = sessions)]
    pub(crate) sessions: Option<Limit>,
}

/// A limit, or `none`.
#[derive(Clone, Copy)]
pub(crate) struct Limit(pub(crate) Option<i64>);

fn budget(text: &str) -> Result<Limit, String> {
    limit(text, micros(text), "dollars, e.g. 2.50")
}

fn sessions(text: &str) -> Result<Limit, String> {
    limit(text, text.parse().ok().filter(|count| *count >= 0), "a whole number")
}

fn limit(text: &str, value: Option<i64>, wanted: &str) -> Result<Limit, String> {
    match (text, value) {
        ("none", _) => Ok(Limit(None)),
        (_, Some(value)) => Ok(Limit(Some(value))),
        _ => Err(format!("must be {wanted}, or none")),
    }
}
