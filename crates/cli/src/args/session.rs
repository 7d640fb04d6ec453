//! `session …`: the commands that speak to a gateway as any client does.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use clap_complete::ArgValueCandidates;
use proto::{ModelId, SessionStatus};
use url::Url;

use super::words;
use crate::complete;

/// Sessions, and the gateway that serves them.
#[derive(Args)]
pub(crate) struct SessionArgs {
    #[command(flatten)]
    pub(crate) reach: Reach,
    #[command(subcommand)]
    pub(crate) command: SessionCommand,
}

/// The gateway that a command talks to, and the credential.
#[expect(clippy::doc_markdown, reason = "help is read in a terminal, where backticks are noise")]
#[derive(Args)]
pub(crate) struct Reach {
    /// The gateway [setting PROLIFERATE_URL, default: the listen address of these settings]
    #[arg(long, global = true, value_name = "URL", value_parser = web_url)]
    pub(crate) url: Option<Url>,
    /// A token or API key [setting PROLIFERATE_TOKEN, default: a token of the first owner, from a readable data directory]
    #[arg(long, global = true, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
}

#[derive(Subcommand)]
pub(crate) enum SessionCommand {
    /// Create a session and print its id; with --prompt the agent starts at once
    New(NewArgs),
    /// Watch a session and talk to it: each line you type is a prompt
    ///
    /// Ctrl-C cancels the running turn, a second one detaches; Ctrl-D detaches. Piped input is sent
    /// line by line, each after the turn before it, and the command ends with the last turn: exit code 0 if all turns
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
    /// Delete sessions with their sandboxes and conversations
    Rm {
        /// Sessions, by id, the beginning of an id, or title
        #[arg(required = true, value_name = "SESSION", add = ArgValueCandidates::new(complete::sessions))]
        ids: Vec<String>,
    },
}

#[derive(Args)]
pub(crate) struct NewArgs {
    /// The first prompt
    #[arg(long, value_name = "TEXT")]
    pub(crate) prompt: Option<String>,
    /// The configuration to start from, by name or id [default: an empty workspace]
    #[arg(long, value_name = "CONFIGURATION", add = ArgValueCandidates::new(complete::configurations))]
    pub(crate) configuration: Option<String>,
    /// The title of the session
    #[arg(long)]
    pub(crate) title: Option<String>,
    /// The model of the agent
    #[arg(long, value_parser = models())]
    pub(crate) model: Option<ModelId>,
    /// Attach to the new session, as `session attach` does
    #[arg(long)]
    pub(crate) attach: bool,
}

/// The address of a gateway.
pub(crate) fn web_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if matches!(url.scheme(), "http" | "https") && url.has_host() {
        return Ok(url);
    }
    Err("must begin with http:// or https:// and name a host".to_owned())
}

fn models() -> impl TypedValueParser<Value = ModelId> {
    let known = PossibleValuesParser::new(proto::MODELS.iter().map(|model| model.id));
    known.try_map(|text| ModelId::parse(&text))
}
