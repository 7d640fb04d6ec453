//! The options of `automations` and `runs`.

use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use proto::{AutomationRunStatus, Resolution, WebhookScheme};

use super::gateway::GatewayArgs;
use super::words;
use crate::complete;

#[derive(Args)]
pub(crate) struct AutomationsArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    #[command(subcommand)]
    pub(crate) command: AutomationsCommand,
}

#[derive(Subcommand)]
pub(crate) enum AutomationsCommand {
    /// List automations
    Ls,
    /// Show an automation and its triggers
    Show {
        /// The automation, by name, id or the beginning of its id
        #[arg(value_name = "AUTOMATION", add = ArgValueCandidates::new(complete::automations))]
        automation: String,
    },
    /// Create an automation
    New {
        /// The name of the automation
        name: String,
        #[command(flatten)]
        settings: AutomationSettings,
    },
    /// Change an automation; settings that you leave out keep their values
    Set {
        /// The automation, by name, id or the beginning of its id
        #[arg(value_name = "AUTOMATION", add = ArgValueCandidates::new(complete::automations))]
        automation: String,
        /// The new name
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        settings: AutomationSettings,
    },
    /// Enable automations, so that their triggers start runs
    Enable {
        /// Automations, by name, id or the beginning of an id
        #[arg(required = true, value_name = "AUTOMATION", add = ArgValueCandidates::new(complete::automations))]
        automations: Vec<String>,
    },
    /// Disable automations, so that their triggers start no runs
    Disable {
        /// Automations, by name, id or the beginning of an id
        #[arg(required = true, value_name = "AUTOMATION", add = ArgValueCandidates::new(complete::automations))]
        automations: Vec<String>,
    },
    /// Run an automation now
    Run {
        /// The automation, by name, id or the beginning of its id
        #[arg(value_name = "AUTOMATION", add = ArgValueCandidates::new(complete::automations))]
        automation: String,
        /// Give the agent this JSON object as the payload of its trigger
        #[arg(long, value_name = "JSON")]
        context: Option<String>,
    },
    /// Remove automations
    Rm {
        /// Automations, by name, id or the beginning of an id
        #[arg(required = true, value_name = "AUTOMATION", add = ArgValueCandidates::new(complete::automations))]
        automations: Vec<String>,
    },
}

#[derive(Args)]
pub(crate) struct AutomationSettings {
    /// The prompt of every run; `-` reads it from standard input
    #[arg(long, value_name = "TEXT")]
    pub(crate) instructions: Option<String>,
    /// The model of its sessions
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// The configuration that its sessions start from, by name or id
    #[arg(long, value_name = "CONFIGURATION", add = ArgValueCandidates::new(complete::configurations))]
    pub(crate) configuration: Option<String>,
    /// Replace the base of the agent's system prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) system_prompt: Option<String>,
    /// Add a webhook that starts runs; the scheme is how the sender signs requests. A new signing secret is printed once
    #[arg(long, value_name = "SCHEME", value_parser = words(WebhookScheme::ALL, WebhookScheme::as_str))]
    pub(crate) webhook: Option<WebhookScheme>,
    /// Start runs on this cron schedule, such as "0 9 * * 1-5": minute, hour, day of month, month, day of week
    #[arg(long, value_name = "SCHEDULE")]
    pub(crate) cron: Option<String>,
    /// The time zone of the schedule, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub(crate) time_zone: Option<String>,
}

#[derive(Args)]
pub(crate) struct RunsArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    #[command(subcommand)]
    pub(crate) command: RunsCommand,
}

#[derive(Subcommand)]
pub(crate) enum RunsCommand {
    /// List runs of automations, newest first
    Ls {
        /// Show only runs of this automation, by name, id or the beginning of its id
        #[arg(long, value_name = "AUTOMATION", add = ArgValueCandidates::new(complete::automations))]
        automation: Option<String>,
        /// Show only runs with this status
        #[arg(long, value_parser = words(AutomationRunStatus::ALL, AutomationRunStatus::as_str))]
        status: Option<AutomationRunStatus>,
        /// Show at most this many
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=100))]
        limit: u32,
    },
    /// Show a run, what its agent reported, and its log
    Show {
        /// The run, by id or the beginning of its id
        #[arg(value_name = "RUN", add = ArgValueCandidates::new(complete::runs))]
        run: String,
    },
    /// Cancel a run
    Cancel {
        /// The run, by id or the beginning of its id
        #[arg(value_name = "RUN", add = ArgValueCandidates::new(complete::runs))]
        run: String,
    },
    /// Repeat a run, as a new run
    Rerun {
        /// The run, by id or the beginning of its id
        #[arg(value_name = "RUN", add = ArgValueCandidates::new(complete::runs))]
        run: String,
    },
    /// Assign a run to a member [default: to yourself]
    Assign {
        /// The run, by id or the beginning of its id
        #[arg(value_name = "RUN", add = ArgValueCandidates::new(complete::runs))]
        run: String,
        /// The member, by e-mail address, name or id
        #[arg(long, value_name = "USER", conflicts_with = "nobody")]
        to: Option<String>,
        /// Remove the assignment
        #[arg(long)]
        nobody: bool,
    },
    /// Resolve a run that did not succeed: record its final outcome
    Resolve {
        /// The run, by id or the beginning of its id
        #[arg(value_name = "RUN", add = ArgValueCandidates::new(complete::runs))]
        run: String,
        /// The outcome to record
        #[arg(value_parser = words(Resolution::ALL, Resolution::as_str))]
        outcome: Resolution,
        /// The reason, for the log of the run
        #[arg(long, value_name = "TEXT")]
        comment: Option<String>,
    },
}
