//! The options of `policy`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::ArgValueCandidates;

use crate::complete;

#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Subcommand)]
pub(crate) enum PolicyCommand {
    /// Check the files of a policy, and name the file and line of each mistake
    Check {
        /// The directory [default: setting PROLIFERATE_POLICY_DIR, or the built-in policy]
        dir: Option<PathBuf>,
    },
    /// Explain which checks a call would pass or fail; nothing is executed
    Explain(ExplainArgs),
    /// Compare two policies, loosened rules first
    Diff {
        /// The old and the new directory; one alone is compared with the built-in policy
        #[arg(value_name = "DIR", required = true, num_args = 1..=2)]
        dirs: Vec<PathBuf>,
    },
    /// Replay recorded decisions under another policy; exit code 1 if a verdict changes
    Replay {
        /// The directory of the other policy
        dir: PathBuf,
        /// Replay only decisions of this organization, by name or id [default: all]
        #[arg(long, value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
        org: Option<String>,
    },
    /// Engage the safety lock: within a second the gateway refuses every call in every lane
    Lock {
        /// The reason, recorded in the ledger
        #[arg(long)]
        reason: String,
    },
    /// Release the safety lock
    Unlock {
        /// The reason, recorded in the ledger
        #[arg(long)]
        reason: String,
    },
    /// Show the safety lock, the active grants and the policy in force
    Status,
    /// List and revoke break-glass grants
    #[command(subcommand)]
    Grants(GrantsCommand),
    /// Grant a member emergency access (break glass) to what no other lane allows
    #[command(subcommand)]
    Override(OverrideCommand),
}

#[derive(Subcommand)]
pub(crate) enum GrantsCommand {
    /// List active grants
    Ls {
        /// Include ended and revoked grants
        #[arg(long)]
        all: bool,
    },
    /// Revoke a grant before it expires
    Revoke {
        /// The grant, by id, the beginning of its id, its ticket or its member's e-mail address
        #[arg(value_name = "GRANT", add = ArgValueCandidates::new(complete::grants))]
        grant: String,
        /// The reason, recorded in the ledger
        #[arg(long)]
        reason: String,
    },
}

#[derive(Subcommand)]
pub(crate) enum OverrideCommand {
    /// Allow a member to use the override lane for a while, under a ticket
    Grant(GrantArgs),
}

#[derive(Args)]
pub(crate) struct GrantArgs {
    /// The member who gets the grant, by e-mail address, name or id
    #[arg(long, value_name = "USER", add = ArgValueCandidates::new(complete::users))]
    pub(crate) user: String,
    /// The organization, by name or id
    #[arg(long, value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
    pub(crate) org: String,
    /// The ticket that calls must name
    #[arg(long)]
    pub(crate) ticket: String,
    /// The reason, recorded in the ledger
    #[arg(long)]
    pub(crate) reason: String,
    /// How long the grant lasts, in minutes; the lane sets a maximum
    #[arg(long)]
    pub(crate) minutes: u64,
}

#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// The directory of the policy [default: setting PROLIFERATE_POLICY_DIR of this shell, or the built-in policy]
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// The caller's role, one of roles.yaml; built in are SETUP_AGENT, CODING_AGENT, AUTOMATION_AGENT,
    /// SERVICE, SYSTEM, OPERATOR and ORG_ADMIN
    #[arg(long)]
    pub(crate) role: String,
    /// The lane of the call, such as actions.read: a section of lanes.yaml
    #[arg(long)]
    pub(crate) lane: String,
    /// The tool that is called
    #[arg(long, required_unless_present = "table")]
    pub(crate) tool: Option<String>,
    /// The operation of the tool [default: the tool's name]
    #[arg(long)]
    pub(crate) operation: Option<String>,
    /// The risk to assume; required for tools of connectors and databases unless --org is given
    /// [default: the tool's own]
    #[arg(long, value_enum)]
    pub(crate) risk: Option<RiskArg>,
    /// The table to write to, instead of a tool
    #[arg(long, conflicts_with_all = ["tool", "operation", "risk"])]
    pub(crate) table: Option<String>,
    /// The write mode of the table
    #[arg(long, value_enum, default_value = "append", requires = "table")]
    pub(crate) mode: WriteArg,
    /// A scope field that the call has, besides run_id; may be repeated
    #[arg(long)]
    pub(crate) scope: Vec<String>,
    /// The case that the call names; it adds the scope field case_id
    #[arg(long, value_name = "ID")]
    pub(crate) case: Option<String>,
    /// A flag of the call, such as cross_case_lookup; may be repeated
    #[arg(long)]
    pub(crate) flag: Vec<String>,
    /// Read the call's arguments from a JSON file (- is standard input), for modes with conditions; without it, no
    /// condition matches
    #[arg(long, value_name = "FILE")]
    pub(crate) params: Option<PathBuf>,
    /// Assume that the caller holds a break-glass grant
    #[arg(long)]
    pub(crate) granted: bool,
    /// Use the modes of this organization, its databases, and the reviews of its connectors' tools
    /// [default: the mode follows from the risk]
    #[arg(long, value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
    pub(crate) org: Option<String>,
    /// Also apply the modes of this automation, by name or id
    #[arg(long, value_name = "AUTOMATION", requires = "org", add = ArgValueCandidates::new(complete::automations))]
    pub(crate) automation: Option<String>,
    /// Assume that the safety lock is engaged
    #[arg(long)]
    pub(crate) locked: bool,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum RiskArg {
    Read,
    Write,
    Danger,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum WriteArg {
    Append,
    Upsert,
}
