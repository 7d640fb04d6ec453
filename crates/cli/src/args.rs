//! The command line: every command, its options and its help.

mod actions;
mod approvals;
mod audit;
mod automations;
mod connectors;
mod databases;
mod gateway;
mod integrations;
mod login;
mod notifications;
mod orgs;
mod policy;
mod preferences;
mod questions;
mod session;
mod usage;
mod workspaces;

use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};
use clap_complete::{ArgValueCandidates, Shell};
use proto::http::{KeyScope, SecretPurpose};
use proto::{EgressMode, Role, UnknownWord};

use crate::complete;

pub(crate) use actions::{ActionsCommand, ModesCommand};
pub(crate) use approvals::{ApprovalsArgs, ApprovalsCommand};
pub(crate) use audit::{AuditCommand, ProveArgs, VerifyArgs};
pub(crate) use automations::{
    AutomationSettings, AutomationsArgs, AutomationsCommand, RunsArgs, RunsCommand,
};
pub(crate) use connectors::{AddConnector, ConnectorsCommand, OneConnector, Place};
pub(crate) use databases::{DatabasesCommand, OneDatabase, SettingsArgs, TargetArgs};
pub(crate) use gateway::{GatewayArgs, web_url};
pub(crate) use integrations::{IntegrationsArgs, IntegrationsCommand};
pub(crate) use login::{ApproveArgs, ContextCommand, LOCAL, LoginArgs};
pub(crate) use notifications::{NotificationsArgs, NotificationsCommand};
pub(crate) use orgs::{LimitsArgs, OrgsCommand};
pub(crate) use policy::{
    ExplainArgs, GrantArgs, GrantsCommand, OverrideCommand, PolicyCommand, RiskArg, WriteArg,
};
pub(crate) use preferences::{PreferencesArgs, PreferencesCommand, WhichActions};
pub(crate) use questions::{InboxArgs, QuestionsArgs, QuestionsCommand};
pub(crate) use session::{DiffArgs, ExecArgs, LogsArgs, NewArgs, SessionArgs, SessionCommand};
pub(crate) use usage::UsageArgs;
pub(crate) use workspaces::{ConfigurationsArgs, ConfigurationsCommand, ReposArgs, ReposCommand};

/// Runs coding agents in sandboxes, lets people watch and steer them, and keeps a record of what they did.
#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Parser)]
#[command(name = "proliferate", version, propagate_version = true, after_help = EXIT_CODES)]
pub(crate) struct Cli {
    /// The data directory: database, generated keys and sandboxes [setting PROLIFERATE_DATA_DIR]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) data_dir: Option<PathBuf>,
    /// Override any other setting that is not a secret; may be repeated
    #[arg(long = "set", global = true, value_name = "NAME=VALUE", value_parser = setting)]
    pub(crate) settings: Vec<(String, String)>,
    /// Allow SANDBOX_PROVIDER=process to run agents without any isolation
    #[arg(long, global = true)]
    pub(crate) insecure_sandbox: bool,
    /// Print one JSON value instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 success · 1 failure, with the reason on standard error · 2 wrong usage or setting · \
    3 a requirement is missing or unreachable (database, port, data dir)";

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run everything on this machine and print a link that logs you in
    Up(Up),
    /// Run the gateway as a service; logs are JSON unless standard error is a terminal
    Serve(Listen),
    /// Create, watch, prompt, stop and delete sessions
    Session(SessionArgs),
    /// Manage the repositories that sessions work on
    Repos(ReposArgs),
    /// Manage the configurations that sessions start from
    Configurations(ConfigurationsArgs),
    /// Connect vendors such as Linear and Slack, whose actions agents can use
    Integrations(IntegrationsArgs),
    /// Set the webhook that is called when something waits for a person
    Notifications(NotificationsArgs),
    /// Disable actions in the sessions that you create
    Preferences(PreferencesArgs),
    /// Manage automations: agents started by hand, by a webhook or on a schedule
    Automations(AutomationsArgs),
    /// List, cancel, repeat, assign and resolve runs of automations
    Runs(RunsArgs),
    /// Manage connectors: remote MCP servers whose tools agents can use
    #[command(subcommand)]
    Connectors(ConnectorsCommand),
    /// Manage the databases that agents may query, and the queries offered as actions
    #[command(subcommand)]
    Databases(DatabasesCommand),
    /// Show requests, tokens and cost of models, by day, model or session
    Usage(UsageArgs),
    /// Log in to a gateway, on this machine or another, and use it for later commands
    ///
    /// Asks for an API key. If you enter none, it shows a code, which a logged-in person approves on the gateway's page
    /// `/device` or with `proliferate approve-login`. The address and the key are saved in a file that only you can read.
    Login(LoginArgs),
    /// Remove a saved login, and revoke its key if `login` created it
    Logout {
        /// The name of the login [default: the one in use]
        #[arg(value_name = "NAME", add = ArgValueCandidates::new(complete::contexts))]
        name: Option<String>,
    },
    /// Approve the login of a device that shows a code
    ApproveLogin(ApproveArgs),
    /// List saved logins, and choose the one to use
    #[command(subcommand)]
    Context(ContextCommand),
    /// List what waits for a human: approvals, questions and runs of automations
    Inbox(InboxArgs),
    /// List, approve and deny the actions of agents that wait for approval
    Approvals(ApprovalsArgs),
    /// List and answer the questions that agents ask
    Questions(QuestionsArgs),
    /// Check everything that `serve` needs and say how to fix what is missing; changes nothing
    Doctor,
    /// Create a single-use link that logs a member in to the web UI; valid for 15 minutes
    LoginLink {
        #[command(flatten)]
        member: WhichMember,
    },
    /// Create tokens for users, services and sandboxes
    #[command(subcommand)]
    Token(TokenCommand),
    /// Create and list organizations, and set their limits
    #[command(subcommand)]
    Orgs(OrgsCommand),
    /// Manage users and their roles
    #[command(subcommand)]
    Users(UsersCommand),
    /// Create, list and revoke API keys
    #[command(subcommand)]
    Keys(KeysCommand),
    /// Manage the vault: credentials that agents use and never see
    #[command(subcommand)]
    Secrets(SecretsCommand),
    /// Manage which hosts sandboxes may reach, and list connection attempts
    #[command(subcommand)]
    Egress(EgressCommand),
    /// Run, inspect and measure sandboxes by hand
    #[command(subcommand)]
    Sandbox(SandboxCommand),
    /// Check, explain and compare policies; engage the safety lock; manage break-glass grants
    #[command(subcommand)]
    Policy(PolicyCommand),
    /// Manage which actions agents of an organization may use
    #[command(subcommand)]
    Actions(ActionsCommand),
    /// Verify, export and show the audit ledger; prove that an event is in it
    #[command(subcommand)]
    Audit(AuditCommand),
    /// Migrate, back up and restore the database
    #[command(subcommand)]
    Db(DbCommand),
    /// Print a completion script for a shell
    ///
    /// It completes commands, options, and names from the database of this machine. In ~/.bashrc:
    /// source <(proliferate completions bash)
    Completions {
        /// The shell
        shell: Shell,
    },
}

#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Args)]
pub(crate) struct Listen {
    /// Address and port; with port 0 the kernel chooses a free one [setting PROLIFERATE_LISTEN, default 127.0.0.1:8787]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<String>,
}

#[derive(Args)]
pub(crate) struct Up {
    #[command(flatten)]
    pub(crate) listen: Listen,
    /// Stop the agents when the gateway stops; their files are kept, and a prompt starts them again
    #[arg(long)]
    pub(crate) stop_agents: bool,
}

/// The member that a command acts for.
#[derive(Args)]
pub(crate) struct WhichMember {
    /// The user, by e-mail address, name or id [default: the first owner]
    #[arg(long, value_name = "USER", add = ArgValueCandidates::new(complete::users))]
    pub(crate) user: Option<String>,
    /// The organization, by name or id [default: the first one]
    #[arg(long, value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
    pub(crate) org: Option<String>,
}

/// The organization that a command acts on.
#[derive(Args)]
pub(crate) struct WhichOrg {
    /// The organization, by name or id [default: the first one]
    #[arg(long, value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
    pub(crate) org: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum TokenCommand {
    /// Print a user's token, valid for an hour
    User {
        #[command(flatten)]
        member: WhichMember,
    },
    /// Print a service's token, valid for an hour
    Service {
        /// The name of the service in logs and records
        #[arg(long)]
        name: String,
        /// Bind the token to one organization, by name or id
        #[arg(long, value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
        org: Option<String>,
    },
    /// Print a token of a session's current sandbox
    Sandbox {
        /// The session, by id, the beginning of its id, or title
        #[arg(long, value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
        session: String,
    },
}

#[derive(Args)]
pub(crate) struct NewUser {
    /// The e-mail address, which identifies the user
    #[arg(long)]
    pub(crate) email: String,
    /// The name of the user [default: the address]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// The role of the user
    #[arg(long, value_parser = words(Role::ALL, Role::as_str))]
    pub(crate) role: Role,
    #[command(flatten)]
    pub(crate) org: WhichOrg,
}

#[derive(Subcommand)]
pub(crate) enum UsersCommand {
    /// Add a member to an organization; the user is created if the address is new
    Create(NewUser),
    /// List the members of an organization
    Ls {
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Change the role of a member
    Role {
        /// The member, by e-mail address, name or id
        #[arg(add = ArgValueCandidates::new(complete::users))]
        user: String,
        /// The new role
        #[arg(value_parser = words(Role::ALL, Role::as_str))]
        role: Role,
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Remove a member and revoke their keys and login tickets
    Rm {
        /// The member, by e-mail address, name or id
        #[arg(add = ArgValueCandidates::new(complete::users))]
        user: String,
        #[command(flatten)]
        org: WhichOrg,
    },
}

#[derive(Subcommand)]
pub(crate) enum KeysCommand {
    /// Create a key that acts as a member; it is shown only once
    Create {
        /// The display name of the key
        #[arg(long)]
        name: String,
        /// What the key may do: `full` (everything that the member may do) or `mcp` (only list and call actions, for MCP clients)
        #[arg(long, default_value = "full", value_parser = words(KeyScope::ALL, KeyScope::as_str))]
        scope: KeyScope,
        #[command(flatten)]
        member: WhichMember,
    },
    /// List keys, without their secrets
    Ls {
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Revoke a key
    Revoke {
        /// The key, by name or id
        #[arg(add = ArgValueCandidates::new(complete::keys))]
        key: String,
        #[command(flatten)]
        org: WhichOrg,
    },
}

/// The owner of a secret.
#[derive(Args)]
pub(crate) struct SecretOwner {
    /// The organization, by name or id [default: the first one]
    #[arg(long, value_name = "ORG", add = ArgValueCandidates::new(complete::orgs))]
    pub(crate) org: Option<String>,
    /// Restrict the secret to sessions on this repository, by name, URL or id
    #[arg(long, value_name = "REPO", conflicts_with = "configuration", add = ArgValueCandidates::new(complete::repos))]
    pub(crate) repo: Option<String>,
    /// Restrict the secret to sessions of this configuration, by name or id
    #[arg(long, value_name = "CONFIGURATION", add = ArgValueCandidates::new(complete::configurations))]
    pub(crate) configuration: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum SecretsCommand {
    /// Store a value; `-` reads it from standard input, where no other process can see it
    Set {
        /// The name of the secret: letters, digits and underscores
        key: String,
        /// The value, or `-`
        value: String,
        /// The purpose: a credential that only the gateway uses, or a variable for sandboxes; cannot be changed later
        #[arg(long, default_value = "platform", value_parser = words(&[SecretPurpose::Platform, SecretPurpose::Env], SecretPurpose::as_str))]
        purpose: SecretPurpose,
        #[command(flatten)]
        owner: SecretOwner,
    },
    /// List names; values are never shown
    Ls {
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Remove a secret
    Rm {
        /// The name of the secret
        key: String,
        #[command(flatten)]
        owner: SecretOwner,
    },
    /// Store every KEY=VALUE of a .env file as variables for sandboxes; `-` reads standard input
    Import {
        /// The file, or `-`
        file: PathBuf,
        #[command(flatten)]
        owner: SecretOwner,
    },
    /// Re-encrypt all values with a new key, or with the current key if keys come from settings
    Rotate,
}

#[derive(Subcommand)]
pub(crate) enum EgressCommand {
    /// Show the rules
    Show {
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Set the default for hosts that no rule names
    Mode {
        /// Allow all public hosts, only hosts on the allow list, or none
        #[arg(value_parser = words(EgressMode::ALL, EgressMode::as_str))]
        mode: EgressMode,
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Add hosts to the allow list: example.com, *.example.com, example.com:22
    Allow {
        /// Hosts, each with a port if it is not 80 or 443
        #[arg(required = true, value_name = "HOST")]
        hosts: Vec<String>,
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Add hosts to the deny list, which overrides the allow list
    Deny {
        /// Hosts, with a port to deny only that port
        #[arg(required = true, value_name = "HOST")]
        hosts: Vec<String>,
        #[command(flatten)]
        org: WhichOrg,
    },
    /// Remove hosts from both lists
    Rm {
        /// Hosts, as `egress show` prints them
        #[arg(required = true, value_name = "HOST")]
        hosts: Vec<String>,
        #[command(flatten)]
        org: WhichOrg,
    },
    /// List connection attempts, newest first
    Log {
        /// Show only attempts of this session, by id, the beginning of its id, or title
        #[arg(long, value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
        session: Option<String>,
        /// Show at most this many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        #[command(flatten)]
        org: WhichOrg,
    },
}

#[derive(Subcommand)]
pub(crate) enum SandboxCommand {
    /// Run a command in a new sandbox and remove it afterwards; needs no gateway
    Run {
        /// Run without network access
        #[arg(long)]
        offline: bool,
        /// The command and its arguments; its exit code is passed on
        #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
        command: Vec<String>,
    },
    /// Run a command in a running sandbox
    Exec {
        /// The sandbox, by name or name prefix, as `sandbox ls` shows it
        id: String,
        /// The command and its arguments; its exit code is passed on
        #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
        command: Vec<String>,
    },
    /// List sandboxes and their states
    Ls,
    /// Stop the processes of sandboxes and keep their files; a prompt starts them again
    Halt {
        /// Sandboxes, by their names in `sandbox ls`
        #[arg(required_unless_present = "all", value_name = "ID")]
        ids: Vec<String>,
        /// Stop all sandboxes of this data directory
        #[arg(long, conflicts_with = "ids")]
        all: bool,
    },
    /// List sandboxes of this host that run although their data directory is gone
    Leaked {
        /// Kill the processes of the listed sandboxes
        #[arg(long)]
        end: bool,
    },
    /// Stop sandboxes and remove their files
    Rm {
        /// Sandboxes, by name or name prefix, as `sandbox ls` shows them
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Measure startup time, round-trip time, throughput and memory
    Bench {
        /// How many sandboxes to start, one after the other
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
        count: u32,
    },
}

#[derive(Subcommand)]
pub(crate) enum DbCommand {
    /// Migrate the schema; starting the gateway does this too
    Migrate,
    /// Back up the database to a file; the copy is consistent even while a gateway runs
    Backup {
        /// The file to write; must not exist
        file: PathBuf,
    },
    /// Replace the database with a backup; with SQLite the old file is kept
    Restore {
        /// A file that `db backup` wrote
        file: PathBuf,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Insert rows for a benchmark
    Seed {
        /// The set of rows to insert
        #[arg(value_enum)]
        what: Seed,
    },
}

/// A set of rows that can be inserted.
#[derive(Clone, Copy, clap::ValueEnum)]
pub(crate) enum Seed {
    /// The rows that the load generator of `make bench` expects
    Bench,
}

fn setting(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("must be NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Parses one of a fixed set of values, which the help lists.
pub(crate) fn words<T>(all: &[T], word: fn(T) -> &'static str) -> impl TypedValueParser<Value = T>
where
    T: Copy + FromStr<Err = UnknownWord> + Send + Sync + 'static,
{
    PossibleValuesParser::new(all.iter().map(|one| word(*one))).try_map(|word| word.parse())
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
    fn words_of_a_vocabulary_are_in_the_help_and_in_the_error() {
        let wrong = Cli::try_parse_from(["proliferate", "users", "role", "ada", "boss"]).err().unwrap();
        assert!(wrong.to_string().contains("[possible values: member, admin, owner]"), "{wrong}");
    }

    #[test]
    fn every_command_and_option_is_explained() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            assert!(command.get_about().is_some(), "{path} has no help");
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{path} {} has no help", argument.get_id());
            }
            command.get_subcommands().for_each(|sub| walk(sub, &path));
        }
        walk(&Cli::command(), "");
    }
}
