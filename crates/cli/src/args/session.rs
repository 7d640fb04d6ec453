//! `session …`: the commands that speak to a gateway as any client does.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use proto::SessionStatus;

use super::gateway::GatewayArgs;
use super::words;
use crate::complete;

/// Sessions, and the gateway that serves them.
#[derive(Args)]
pub(crate) struct SessionArgs {
    #[command(flatten)]
    pub(crate) gateway: GatewayArgs,
    #[command(subcommand)]
    pub(crate) command: SessionCommand,
}

#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// Create a session and print its id; with --prompt the agent starts at once
    New(NewArgs),
    /// Attach to a session: stream its messages, and send each line that you type as a prompt
    ///
    /// Ctrl-C cancels the running turn, a second one detaches; Ctrl-D detaches. From a pipe, each line is
    /// sent when the turn before it has ended, and the command ends with the last turn: exit code 0 if all turns
    /// succeeded, else 1. With --json every message of the stream is one line.
    Attach {
        /// The session, by id, the beginning of its id, or title
        #[arg(value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
        id: String,
        /// Show tool arguments and results in full
        #[arg(long)]
        full: bool,
    },
    /// Send a prompt
    Prompt {
        /// The session, by id, the beginning of its id, or title
        #[arg(value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
        id: String,
        /// The prompt; `-` reads it from standard input
        text: String,
        /// Stream the answer until the turn ends: exit code 0 if it succeeded, else 1
        #[arg(long)]
        wait: bool,
        /// Show tool arguments and results in full
        #[arg(long)]
        full: bool,
    },
    /// Cancel the running turn
    Cancel {
        /// The session, by id, the beginning of its id, or title
        #[arg(value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
        id: String,
    },
    /// Change the model of a session, from its next prompt on
    Model {
        /// The session, by id, the beginning of its id, or title
        #[arg(value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
        id: String,
        /// The model, such as claude-opus-4.6, or a model that the gateway's chat endpoint offers
        model: String,
    },
    /// List sessions: live ones first, then the most recently used
    Ls {
        /// Show only sessions with this status
        #[arg(long, value_parser = words(SessionStatus::ALL, SessionStatus::as_str))]
        status: Option<SessionStatus>,
        /// Show at most this many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
    },
    /// Print the conversation so far, without starting the agent
    Show {
        /// The session, by id, the beginning of its id, or title
        #[arg(value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
        id: String,
        /// Show tool arguments and results in full
        #[arg(long)]
        full: bool,
    },
    /// Show the changes in the repositories of the workspace, including new files
    Diff(DiffArgs),
    /// Run a command in the sandbox of a session; its output and exit code are passed on
    Exec(ExecArgs),
    /// Copy files and directories between this machine and the sandbox of a session
    ///
    /// One of FROM and TO is SESSION:PATH, where PATH is relative to the workspace, or to the home directory if it starts with ~/.
    /// Symlinks are not copied.
    Cp {
        /// The source: PATH, or SESSION:PATH
        from: String,
        /// The destination: PATH, or SESSION:PATH
        to: String,
    },
    /// List the services in the sandbox of a session; wakes the sandbox if it is asleep
    Services {
        /// The session, by id, the beginning of its id, or title
        #[arg(value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
        id: String,
    },
    /// Print the log of the agent, or of a service in the sandbox
    Logs(LogsArgs),
    /// Save the files of sessions and stop their sandboxes; a later prompt continues from there
    ///
    /// A session whose files cannot be saved keeps running, and the command prints why.
    Stop {
        /// Stop the sessions even if unsaved files are lost
        #[arg(long)]
        discard: bool,
        /// Sessions, by id, the beginning of an id, or title
        #[arg(required = true, value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
        ids: Vec<String>,
    },
    /// Save what a setup session prepared: later sessions of its configuration start from it
    FinishSetup {
        /// The session, by id, the beginning of its id, or title
        #[arg(value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
        id: String,
        /// Give the configuration a new name
        #[arg(long)]
        name: Option<String>,
        /// Stop the session afterwards
        #[arg(long)]
        stop: bool,
    },
    /// Delete sessions with their sandboxes and conversations
    Rm {
        /// Sessions, by id, the beginning of an id, or title
        #[arg(required = true, value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
        ids: Vec<String>,
    },
}

#[derive(Args)]
pub(crate) struct DiffArgs {
    /// The session, by id, the beginning of its id, or title
    #[arg(value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
    pub(crate) id: String,
    /// Compare with this commit, branch or tag [default: the last commit]
    #[arg(long, value_name = "REF")]
    pub(crate) base: Option<String>,
}

#[derive(Args)]
pub(crate) struct ExecArgs {
    /// The session, by id, the beginning of its id, or title
    #[arg(value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
    pub(crate) id: String,
    /// The working directory: relative to the workspace, or to the home directory if it starts with ~/ [default: the workspace]
    #[arg(long, value_name = "PATH")]
    pub(crate) cwd: Option<String>,
    /// Pass standard input to the command until end of file
    #[arg(long)]
    pub(crate) stdin: bool,
    /// Kill the command after this many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) timeout: u64,
    /// The command and its arguments
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<String>,
}

#[derive(Args)]
pub(crate) struct LogsArgs {
    /// The session, by id, the beginning of its id, or title
    #[arg(value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
    pub(crate) id: String,
    /// The service [default: the agent]
    pub(crate) service: Option<String>,
    /// Follow new output until the service ends
    #[arg(long, short)]
    pub(crate) follow: bool,
}

#[derive(Args)]
pub(crate) struct NewArgs {
    /// The first prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// The configuration to start from, by name or id [default: an empty workspace]
    #[arg(long, value_name = "CONFIGURATION", add = ArgValueCandidates::new(complete::configurations))]
    pub(crate) configuration: Option<String>,
    /// The repository to work on, by URL, local path, name or id; an unknown URL or path is added, which needs an admin
    #[arg(long, value_name = "URL|PATH", conflicts_with = "configuration", add = ArgValueCandidates::new(complete::repos))]
    pub(crate) repo: Option<String>,
    /// Check out this branch before the agent starts
    #[arg(long, value_name = "BRANCH")]
    pub(crate) branch: Option<String>,
    /// The title of the session
    #[arg(long)]
    pub(crate) title: Option<String>,
    /// The model of the agent, such as claude-opus-4.6, or a model that the gateway's chat endpoint offers
    #[arg(long)]
    pub(crate) model: Option<String>,
    /// Pass this variable of your environment to this session only; may be repeated
    #[arg(long, value_name = "KEY")]
    pub(crate) env: Vec<String>,
    /// Send the variables of this .env file to the session only; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) env_file: Option<PathBuf>,
    /// Attach to the new session, as `session attach` does
    #[arg(long)]
    pub(crate) attach: bool,
}
