//! The command line: every command, its options and its help.

mod actions;
mod audit;
mod orgs;
mod policy;
mod session;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use proto::{ApiKeyId, ConfigurationId, EgressMode, OrgId, RepoId, Role, SessionId, UserId};

pub(crate) use actions::{ActionsCommand, ModesCommand};
pub(crate) use audit::{AuditCommand, ProveArgs, VerifyArgs};
pub(crate) use orgs::{LimitsArgs, OrgsCommand};
pub(crate) use policy::{ExplainArgs, GrantArgs, OverrideCommand, PolicyCommand, RiskArg, WriteArg};
pub(crate) use session::{NewArgs, Reach, SessionArgs, SessionCommand, web_url};

/// Runs coding agents in sandboxes, lets people watch and steer them, and keeps a record of what they did.
#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Parser)]
#[command(name = "proliferate", version, propagate_version = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// Where the database, made keys and sandboxes are kept [setting PROLIFERATE_DATA_DIR]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Override any other setting that is no secret; may be repeated
    #[arg(long = "set", global = true, value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) settings: Vec<(String, String)>,
    /// Let SANDBOX_PROVIDER=process run agents without any isolation
    #[arg(long, global = true)]
    pub(crate) insecure_sandbox: bool,
    /// Print one JSON value instead of text for people
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done · 1 it failed, and said why · 2 wrong usage or setting · \
    3 something it needs is missing or cannot be reached (database, Redis, port, data dir)";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run everything on this machine and print a link that logs you in
    Up(Up),
    /// Run the gateway as a service: logs are JSON where standard error is no terminal
    Serve(Listen),
    /// Sessions: make one, watch it, talk to it, end it
    Session(SessionArgs),
    /// Check this machine and say how to mend what is missing
    Doctor,
    /// Make a link that logs a member in, once, within 15 minutes
    LoginLink {
        #[command(flatten)]
        member: WhichMember,
    },
    /// Make tokens for users, services and sandboxes
    #[command(subcommand)]
    Token(TokenCommand),
    /// Organisations
    #[command(subcommand)]
    Orgs(OrgsCommand),
    /// Users and their roles
    #[command(subcommand)]
    Users(UsersCommand),
    /// API keys
    #[command(subcommand)]
    Keys(KeysCommand),
    /// The vault: credentials that agents use and never see
    #[command(subcommand)]
    Secrets(SecretsCommand),
    /// What sandboxes of an organisation may reach, and what they reached
    #[command(subcommand)]
    Egress(EgressCommand),
    /// Sandboxes by hand: try one, look into one, measure them
    #[command(subcommand)]
    Sandbox(SandboxCommand),
    /// What may be done through the gate: check, explain, compare, lock
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Which actions agents of an organisation may use
    #[command(subcommand)]
    Actions(ActionsCommand),
    /// The ledger of what was done: verify, export, look, prove
    #[command(subcommand)]
    Audit(AuditCommand),
    /// The database: bring it up to date, back it up, restore it
    #[command(subcommand)]
    Db(DbCommand),
    /// Print a completion script for a shell
    Completions { shell: Shell },
}

#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Args)]
pub(crate) struct Listen {
    /// Address and port; port 0 takes a free one [setting PROLIFERATE_LISTEN, default 127.0.0.1:8787]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
}

#[derive(Args)]
pub(crate) struct Up {
    #[command(flatten)]
    pub(crate) listen: Listen,
    /// End the agents too when this stops; their files are kept, and a prompt starts them again
    #[arg(long)]
    pub(crate) stop_agents: bool,
}

/// Which member a command acts for.
#[derive(Args)]
pub(crate) struct WhichMember {
    /// The user [default: the first owner]
    #[arg(long, value_name = "ID")]
    pub(crate) user: Option<UserId>,
    /// The organisation [default: the first one]
    #[arg(long, value_name = "ID")]
    pub(crate) org: Option<OrgId>,
}

/// Which organisation a command acts on.
#[derive(Args)]
pub(crate) struct WhichOrg {
    /// The organisation [default: the first one]
    #[arg(long, value_name = "ID")]
    pub(crate) org: Option<OrgId>,
}

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// A user's token, valid for an hour; prints only the token
    User {
        #[command(flatten)]
        member: WhichMember,
    },
    /// A service's token, valid for an hour; prints only the token
    Service {
        /// What the service is called in logs and records
        #[arg(long)]
        name: String,
        /// Bind it to one organisation
        #[arg(long, value_name = "ID")]
        org: Option<OrgId>,
    },
    /// A token of a session's present sandbox; prints only the token
    Sandbox {
        #[arg(long, value_name = "ID")]
        session: SessionId,
    },
}

#[derive(Args)]
pub(crate) struct NewUser {
    #[arg(long)]
    pub(crate) email: String,
    /// What people call them [default: the address]
    #[arg(long)]
    pub(crate) name: Option<String>,
    #[arg(long, value_parser = role)]
    pub(crate) role: Role,
    #[command(flatten)]
    pub(crate) org: WhichOrg,
}

#[derive(Subcommand)]
pub(crate) enum UsersCommand {
    /// Make a user a member of an organisation; the user is made when the address is new
    Create(NewUser),
    /// List the members of an organisation
    Ls {
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Give a member another role
    Role {
        user: UserId,
        #[arg(value_parser = role)]
        role: Role,
        #[command(flatten)]
        org: WhichOrg,
    },
    /// End a membership, and every key and ticket with it
    Rm {
        user: UserId,
        #[command(flatten)]
        org: WhichOrg,
    },
}

#[derive(Subcommand)]
pub(crate) enum KeysCommand {
    /// Make a key that acts as a member; it is shown now and never again
    Create {
        #[arg(long)]
        name: String,
        #[command(flatten)]
        member: WhichMember,
    },
    /// List keys, without the keys
    Ls {
        #[command(flatten)]
        org: WhichOrg,
    },
    /// End a key
    Revoke {
        key: ApiKeyId,
        #[command(flatten)]
        org: WhichOrg,
    },
}

/// Whose secret it is.
#[derive(Args)]
pub(crate) struct SecretOwner {
    /// The organisation [default: the first one]
    #[arg(long, value_name = "ID")]
    pub(crate) org: Option<OrgId>,
    /// Only for sessions on this repository
    #[arg(long, value_name = "ID", conflicts_with = "configuration")]
    pub(crate) repo: Option<RepoId>,
    /// Only for sessions of this configuration
    #[arg(long, value_name = "ID")]
    pub(crate) configuration: Option<ConfigurationId>,
}

#[derive(Subcommand)]
pub(crate) enum SecretsCommand {
    /// Store a value; `-` reads it from standard input, where no other process can see it
    Set {
        key: String,
        value: String,
        #[command(flatten)]
        owner: SecretOwner,
    },
    /// List names; values never come back
    Ls {
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Remove a secret
    Rm {
        key: String,
        #[command(flatten)]
        owner: SecretOwner,
    },
    /// Store every KEY=VALUE of a .env file; `-` reads standard input
    Import {
        file: PathBuf,
        #[command(flatten)]
        owner: SecretOwner,
    },
    /// Seal everything with a new key (or, when keys are settings, with the present one)
    Rotate,
}

#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Subcommand)]
pub(crate) enum EgressCommand {
    /// Show the rules
    Show {
        #[command(flatten)]
        org: WhichOrg,
    },
    /// What is reached where no rule speaks: open, allow_list or offline
    Mode {
        #[arg(value_parser = egress_mode)]
        mode: EgressMode,
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Add hosts to the allow list: example.com, *.example.com, example.com:22
    Allow {
        #[arg(required = true)]
        hosts: Vec<String>,
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Add hosts to the deny list, which wins
    Deny {
        #[arg(required = true)]
        hosts: Vec<String>,
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Take hosts off both lists
    Rm {
        #[arg(required = true)]
        hosts: Vec<String>,
        #[command(flatten)]
        org: WhichOrg,
    },
    /// List attempts to reach something, newest first
    Log {
        /// Only of this session
        #[arg(long, value_name = "ID")]
        session: Option<SessionId>,
        /// How many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        #[command(flatten)]
        org: WhichOrg,
    },
}

#[derive(Subcommand)]
pub(crate) enum SandboxCommand {
    /// Run a command in a fresh sandbox and remove it afterwards; needs no gateway
    Run {
        /// Reach nothing
        #[arg(long)]
        offline: bool,
        /// The command and its arguments; its exit code becomes ours
        #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
        command: Vec<String>,
    },
    /// Run a command in a sandbox that runs
    Exec {
        /// As `sandbox ls` shows it
        id: String,
        /// The command and its arguments; its exit code becomes ours
        #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
        command: Vec<String>,
    },
    /// List sandboxes and how they are
    Ls,
    /// End the processes of sandboxes and keep their files; a prompt starts them again
    Halt {
        /// As `sandbox ls` shows them
        #[arg(required_unless_present = "all", value_name = "ID")]
        ids: Vec<String>,
        /// End those of all sandboxes of this data directory
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
    /// List sandboxes of this host that run although their data directory is gone
    Leaked {
        /// End them
        #[arg(long)]
        end: bool,
    },
    /// End sandboxes and remove their files
    Rm {
        /// As `sandbox ls` shows them
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Measure starts, round trips, throughput and memory
    Bench {
        /// How many sandboxes to start, one after the other
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        count: u32,
    },
}

#[derive(Subcommand)]
pub(crate) enum DbCommand {
    /// Bring the schema up to date; starting the gateway does it too
    Migrate,
    /// Write a consistent copy, also beside a running gateway
    Backup {
        /// The file to write; must not exist
        file: PathBuf,
    },
    /// Put a backup in the place of the database; with SQLite the old one is kept beside it
    Restore {
        file: PathBuf,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Put in rows that a measurement needs
    Seed {
        #[arg(value_enum)]
        what: Seed,
    },
}

/// What can be put in.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Seed {
    /// What the load generator of `make bench` expects
    Bench,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn egress_mode(text: &str) -> Result<EgressMode, String> {
    text.parse::<EgressMode>().map_err(|error| error.to_string())
}

fn role(text: &str) -> Result<Role, String> {
    text.parse::<Role>().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_command_line_has_no_contradictions() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_is_explained() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} has no help");
            command.get_subcommands().for_each(|sub| walk(sub, &path));
        }
        walk(&Cli::command(), "");
    }
}
