//! The options of `usage`.

use chrono::NaiveDate;
use clap::Args;
use clap_complete::ArgValueCandidates;
use proto::http::UsageBy;

use super::gateway::GatewayArgs;
use super::words;
use crate::complete;

#[derive(Args)]
pub(crate) struct UsageArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    /// Sum by day, model or session
    #[arg(long, default_value = UsageBy::Day.as_str(), value_parser = words(UsageBy::ALL, UsageBy::as_str))]
    pub(crate) by: UsageBy,
    /// The first day, in UTC [default: 29 days before the last day]
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub(crate) from: Option<NaiveDate>,
    /// The last day, in UTC [default: today]
    #[arg(long, value_name = "YYYY-MM-DD")]
    pub(crate) to: Option<NaiveDate>,
    /// Show only the usage of this session, by id, the beginning of its id, or title
    #[arg(long, value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
    pub(crate) session: Option<String>,
    /// Show only the usage of this model
    #[arg(long, value_name = "MODEL")]
    pub(crate) model: Option<String>,
    /// Show at most this many lines
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) limit: u32,
}
