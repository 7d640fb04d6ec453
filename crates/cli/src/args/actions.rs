//! The options of `actions`.

use std::path::PathBuf;

use clap::{Subcommand, ValueEnum};
use policy::ModeKey;
use proto::ActionMode;

use super::WhichOrg;

#[derive(Subcommand)]
pub(crate) enum ActionsCommand {
    /// Set which actions agents may use, need approval for, or may not use
    #[command(subcommand)]
    Modes(ModesCommand),
}

#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Subcommand)]
pub(crate) enum ModesCommand {
    /// Set the mode of an action from the next call on; the ledger records it
    Set {
        /// The action: sourceId:actionId, such as linear:create_issue; tools:NAME for a tool from tools.yaml
        key: ModeKey,
        /// allow: execute at once · require_approval: ask a person first · deny: never execute
        #[arg(value_enum)]
        mode: ModeArg,
        /// Read rules that choose the mode by the call's arguments, with examples that must hold, from a JSON file (- is stdin):
        /// {"rules": [{"when": JSON SCHEMA, "mode": MODE}], "examples": [{"args": {}, "mode": MODE}]}
        #[arg(long, value_name = "FILE")]
        conditions: Option<PathBuf>,
        /// Require approval by two owners or admins who did not create the session
        #[arg(long)]
        two_person: bool,
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Remove the mode of an action, so that it follows from the action's risk again
    Unset {
        /// The action, as `actions modes ls` shows it
        key: ModeKey,
        #[command(flatten)]
        org: WhichOrg,
    },
    /// List the modes that were set; all others follow from the risk of the action
    Ls {
        #[command(flatten)]
        org: WhichOrg,
    },
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum ModeArg {
    Allow,
    RequireApproval,
    Deny,
}

impl From<ModeArg> for ActionMode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Allow => Self::Allow,
            ModeArg::RequireApproval => Self::RequireApproval,
            ModeArg::Deny => Self::Deny,
        }
    }
}
