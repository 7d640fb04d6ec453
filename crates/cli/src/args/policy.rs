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
        /// The folder [default: setting PROLIFERATE_POLICY_DIR, or the built-in policy]
        dir: Option<PathBuf>,
    },
    /// Describe a call and see every check that it passes or fails; nothing is executed
    Explain(ExplainArgs),
    /// What differs between two policies, what loosens first
    Diff {
        /// The old and the new folder; one alone is compared with the built-in policy
        #[arg(value_name = "DIR", required = true, num_args = 1..=2)]
        dirs: Vec<PathBuf>,
    },
    /// Make recorded decisions again under another policy; exit code 1 if a verdict would flip
    Replay {
        /// The folder of the candidate
        dir: PathBuf,
        /// Only decisions of this organisation, by name or id [default: all]
        #[arg(long, value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
        org: Option<String>,
    },
    /// Stop every call in every lane, within a second
    Lock {
        /// Why; it stands in the ledger
        #[arg(long)]
        reason: String,
    },
    /// Let calls through again
    Unlock {
        /// Why; it stands in the ledger
        #[arg(long)]
        reason: String,
    },
    /// Show the safety lock, the grants that count now, and the policy that is in force
    Status,
    /// List and revoke grants to break the glass
    #[command(subcommand)]
    Grants(GrantsCommand),
    /// Break the glass: let a member do in an emergency what no other lane allows
    #[command(subcommand)]
    Override(OverrideCommand),
}

#[derive(Subcommand)]
pub(crate) enum GrantsCommand {
    /// List the grants that count now
    Ls {
        /// Show also those that have ended or were revoked
        #[arg(long)]
        all: bool,
    },
    /// End a grant before its time
    Revoke {
        /// The grant, by id, the beginning of its id, its ticket or its member's e-mail address
        #[arg(value_name = "GRANT", add = ArgValueCandidates::new(complete::grants))]
        grant: String,
        /// Why; it stands in the ledger
        #[arg(long)]
        reason: String,
    },
}

#[derive(Subcommand)]
pub(crate) enum OverrideCommand {
    /// Let a member use the override lane for a while, under a ticket
    Grant(GrantArgs),
}

#[derive(Args)]
pub(crate) struct GrantArgs {
    /// The member who gets it, by e-mail address, name or id
    #[arg(long, value_name = "USER", add = ArgValueCandidates::new(complete::users))]
    pub(crate) user: String,
    /// The organisation, by name or id
    #[arg(long, value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
    pub(crate) org: String,
    /// The ticket that calls must name
    #[arg(long)]
    pub(crate) ticket: String,
    /// Why; it stands in the ledger
    #[arg(long)]
    pub(crate) reason: String,
    /// For how long; the lane says how long at most
    #[arg(long)]
    pub(crate) minutes: u64,
}

#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Args)]
pub(crate) struct ExplainArgs {
    /// The folder of the policy [default: setting PROLIFERATE_POLICY_DIR, or the built-in policy]
    #[arg(long)]
    pub(crate) dir: Option<PathBuf>,
    /// The caller's role, such as SERVICE
    #[arg(long)]
    pub(crate) role: String,
    /// The lane, such as actions.read
    #[arg(long)]
    pub(crate) lane: String,
    /// The tool that is called
    #[arg(long, required_unless_present = "table")]
    pub(crate) tool: Option<String>,
    /// What the tool is to do [default: the tool's name]
    #[arg(long)]
    pub(crate) operation: Option<String>,
    /// The risk of a tool, also of one that is not there [default: its own]
    #[arg(long, value_enum)]
    pub(crate) risk: Option<RiskArg>,
    /// Instead of a tool: the table that is written
    #[arg(long, conflicts_with_all = ["tool", "operation", "risk"])]
    pub(crate) table: Option<String>,
    /// How the table is written
    #[arg(long, value_enum, default_value = "append", requires = "table")]
    pub(crate) mode: WriteArg,
    /// A scope field that is given; run_id always is; may be repeated
    #[arg(long)]
    pub(crate) scope: Vec<String>,
    /// The case that the call names; gives the scope field case_id
    #[arg(long, value_name = "ID")]
    pub(crate) case: Option<String>,
    /// What the call would do beyond its case, such as cross_case_lookup; may be repeated
    #[arg(long)]
    pub(crate) flag: Vec<String>,
    /// The caller holds a grant to break the glass
    #[arg(long)]
    pub(crate) granted: bool,
    /// Use the modes that this organisation has set [default: none is set, and the mode follows from the risk]
    #[arg(long, value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
    pub(crate) org: Option<String>,
    /// The safety lock is engaged
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
