//! The options of `audit`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;

use crate::complete;

#[derive(Subcommand)]
pub(crate) enum AuditCommand {
    /// Verify the ledger of this database, or of an export, which needs no database
    Verify(VerifyArgs),
    /// Write the ledger, its checkpoints and the public key to a new directory
    Export {
        /// The directory; it must not contain an export already
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
    /// Show the newest events
    Tail {
        /// Follow new events
        #[arg(long)]
        follow: bool,
        /// Show this many events first
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=10_000))]
        limit: u32,
        /// Show only events of this organization, by name or id [default: all organizations and the gateway's own events]
        #[arg(long, value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
        org: Option<String>,
    },
    /// Show an event, or all events of a run
    Show {
        /// The event or run, by id or the beginning of its id
        id: String,
    },
    /// Prove that an event is in the ledger, or that the ledger is append-only since an earlier size; check a proof offline
    Prove(ProveArgs),
    /// Print the public key that signs checkpoints, for auditors
    Key,
    /// Rotate the signing key; the ledger records the change, signed by both keys
    RotateKey,
    /// Create a new signing key because the old one is lost; the ledger records it, and nothing links the two keys
    ReplaceLostKey {
        /// The reason, recorded in the ledger
        #[arg(long)]
        reason: String,
    },
}

#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// The directory of an export [default: the database]
    #[arg(long, value_name = "DIR")]
    pub(crate) export: Option<PathBuf>,
    /// A file with checkpoints that were stored elsewhere [default: those in the export or data directory]
    #[arg(long, value_name = "FILE")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// The public key that must have signed the checkpoints [default for a database: the gateway's own]
    #[arg(long, value_name = "FILE")]
    pub(crate) key: Option<PathBuf>,
}

#[derive(Args)]
pub(crate) struct ProveArgs {
    /// The event to prove, by id or the beginning of its id
    #[arg(required_unless_present_any = ["from", "check"], conflicts_with_all = ["from", "check"])]
    pub(crate) event: Option<String>,
    /// The size of the checkpoint to prove against [default: the first that covers the event]
    #[arg(long, value_name = "N", requires = "event")]
    pub(crate) size: Option<u64>,
    /// Prove that nothing was changed or removed since the ledger had this size (the size of a checkpoint)
    #[arg(long, value_name = "N", conflicts_with = "check")]
    pub(crate) from: Option<u64>,
    /// With --from: the later size, also the size of a checkpoint [default: the newest checkpoint]
    #[arg(long, value_name = "M", requires = "from")]
    pub(crate) to: Option<u64>,
    /// Check a proof instead; needs no database
    #[arg(long, value_name = "FILE")]
    pub(crate) check: Option<PathBuf>,
    /// The public key that must have signed the checkpoints of the proof
    #[arg(long, value_name = "FILE", requires = "check")]
    pub(crate) key: Option<PathBuf>,
}
