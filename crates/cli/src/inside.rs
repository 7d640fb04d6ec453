//! The command line inside a sandbox, for agents. It asks the gateway, with the sandbox's own token, to apply the session's
//! environment, to run its services, and to execute actions.

mod actions;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use client::Client;
use proto::SessionId;
use proto::http::StartService;
use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use actions::ActionsCommand;

use crate::output;

/// How often and how far apart a gateway that cannot be reached is tried again. It may be restarting.
const MAX_ATTEMPTS: u32 = 10;
const RETRY_DELAY: Duration = Duration::from_secs(1);

const SANDBOX_HELP: &str = "You are in a sandbox of Proliferate. Every command prints one JSON value, except guides, which are Markdown.\n\n\
    Start long-running programs (dev servers, databases, workers) as services, not in the background of a shell: a \
    service is restarted when it fails, its output is kept, and people see it.\n\n  \
    proliferate services start --name web --command 'npm run dev' --cwd app\n  \
    proliferate services logs web\n  \
    proliferate services expose 3000\n\n\
    `expose` tells people which port the app listens on. There is no preview: nobody can open the app from outside.\n\n\
    The values of environment variables come from people. `proliferate env apply` writes their newest values into \
    the environment files of this project and keeps what else is there. Never print these files, never copy them, and never commit them.\n\n\
    Actions change or read something outside of the sandbox, such as an issue or a message. The gateway has the \
    credentials. An action whose mode is `allow` is executed at once, `require_approval` waits for a person, `deny` is refused.\n\n  \
    proliferate actions list --plain\n  \
    proliferate actions guide --integration linear\n  \
    proliferate actions run --integration linear --action create_issue --params '{\"teamId\":\"T1\",\"title\":\"A bug\"}'\n\n\
    If your shell ends before a person has decided, `proliferate actions wait ID` fetches the result later.";

const EXIT_CODES: &str = "Exit codes: 0 done · 1 it failed, and says why · 2 wrong usage";

/// Manage the environment and the services of this session, and execute actions.
#[derive(Parser)]
#[command(name = "proliferate", version, about, long_about = SANDBOX_HELP, after_help = EXIT_CODES)]
struct InsideCli {
    #[command(subcommand)]
    command: InsideCommand,
}

#[derive(Subcommand)]
enum InsideCommand {
    /// Write or remove the environment files of the project
    #[command(subcommand)]
    Env(EnvCommand),
    /// Run the services of the app
    #[command(subcommand)]
    Services(ServicesCommand),
    /// List and execute actions outside of the sandbox
    #[command(subcommand)]
    Actions(ActionsCommand),
}

#[derive(Subcommand)]
enum EnvCommand {
    /// Write the newest values into all environment files and secret files; other variables stay
    Apply,
    /// Remove the values from environment files, and all secret files; `apply` writes them again
    Scrub,
}

#[derive(Subcommand)]
enum ServicesCommand {
    /// List the services and the exposed port
    List,
    /// Start a service; it replaces one of the same name
    Start {
        /// A short name, such as web or worker
        #[arg(long)]
        name: String,
        /// The command, for a shell
        #[arg(long)]
        command: String,
        /// The directory in the workspace to start it in
        #[arg(long)]
        cwd: Option<String>,
    },
    /// Stop a service; its output stays readable
    Stop {
        /// The name of the service
        name: String,
    },
    /// Stop a service and start it again
    Restart {
        /// The name of the service
        name: String,
    },
    /// Print the newest output of a service
    Logs {
        /// The name of the service
        name: String,
    },
    /// Tell people which port the app listens on; there is no preview, so nobody can open it from outside
    Expose {
        /// The port that the app listens on
        port: u16,
    },
}

/// The session of this sandbox, and how to reach its gateway.
struct Inside {
    client: Client,
    session: SessionId,
}

/// The file that the gateway writes for every session; a sandbox from the pool was started before its session was known.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SessionFile {
    session_id: SessionId,
    token: String,
}

/// Runs the command line of sandboxes, if this process is in one.
pub(crate) fn run() -> Option<ExitCode> {
    let gateway = variable("PROLIFERATE_GATEWAY_URL")?;
    let (session, token) = identity()?;
    let cli = InsideCli::parse();
    let done = async {
        let url = gateway.parse().map_err(|_| "PROLIFERATE_GATEWAY_URL is not a URL".to_owned())?;
        let client = Client::new(url, &token).map_err(|error| error.to_string())?;
        let inside = Inside { client, session };
        match &cli.command {
            InsideCommand::Actions(command) => Ok(inside.act(command).await),
            InsideCommand::Env(command) => inside.change_env(command).await.map(|value| print_json(&value)),
            InsideCommand::Services(command) => inside.steer(command).await.map(|value| print_json(&value)),
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let done = runtime.map_err(|error| error.to_string()).and_then(|runtime| runtime.block_on(done));
    Some(done.unwrap_or_else(|problem| {
        output::line(&json!({ "error": problem }).to_string());
        ExitCode::FAILURE
    }))
}

fn print_json(value: &Value) -> ExitCode {
    output::line(&value.to_string());
    ExitCode::SUCCESS
}

/// The session and the token of this sandbox: from the file that the gateway keeps current, or else the environment.
fn identity() -> Option<(SessionId, SecretString)> {
    let default = || Some(Path::new(&variable("HOME")?).join(".proliferate/agent/session.json"));
    let file = variable("PROLIFERATE_SESSION_FILE").map(PathBuf::from).or_else(default);
    let read = file.and_then(|file| std::fs::read(file).ok());
    if let Some(SessionFile { session_id, token }) =
        read.and_then(|bytes| serde_json::from_slice(&bytes).ok())
    {
        return Some((session_id, token.into()));
    }
    let session = variable("PROLIFERATE_SESSION_ID")?.parse().ok()?;
    Some((session, variable("SANDBOX_MCP_AUTH_TOKEN")?.into()))
}

#[expect(clippy::disallowed_methods, reason = "a sandbox has no settings; the gateway sets these variables")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Asks the gateway, and again if it cannot be reached. The request must have no effect if it is repeated.
async fn retry_request<T, F>(ask: impl Fn() -> F) -> Result<T, client::Error>
where
    F: Future<Output = Result<T, client::Error>>,
{
    let mut attempt = 0;
    loop {
        attempt += 1;
        match ask().await {
            Err(client::Error::Unreachable { .. }) if attempt < MAX_ATTEMPTS => sleep(RETRY_DELAY).await,
            done => return done,
        }
    }
}

impl Inside {
    async fn change_env(&self, command: &EnvCommand) -> Result<Value, String> {
        let Self { client, session } = self;
        let done = match command {
            EnvCommand::Apply => retry_request(|| client.env_apply(*session)).await,
            EnvCommand::Scrub => retry_request(|| client.env_scrub(*session)).await,
        };
        done.map(|reply| json!(reply)).map_err(|error| error.to_string())
    }

    async fn steer(&self, command: &ServicesCommand) -> Result<Value, String> {
        retry_request(|| self.ask_service(command)).await.map_err(|error| error.to_string())
    }

    async fn ask_service(&self, command: &ServicesCommand) -> Result<Value, client::Error> {
        let Self { client, session } = self;
        match command {
            ServicesCommand::List => client.services(*session).await.map(|list| json!(list)),
            ServicesCommand::Start { name, command, cwd } => {
                let (name, command, cwd) = (name.clone(), command.clone(), cwd.clone());
                let service = StartService { name, command, cwd };
                client.start_service(*session, &service).await.map(|entry| json!({ "service": entry }))
            }
            ServicesCommand::Stop { name } => {
                client.stop_service(*session, name).await.map(|()| json!({ "success": true }))
            }
            ServicesCommand::Restart { name } => {
                client.restart_service(*session, name).await.map(|entry| json!({ "service": entry }))
            }
            ServicesCommand::Logs { name } => client.service_log(*session, name).await.map(|log| json!(log)),
            ServicesCommand::Expose { port } => {
                let done = client.expose_port(*session, *port).await;
                done.map(|()| json!({ "exposedPort": port, "preview": null }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use agent::instructions::Part;
    use clap::CommandFactory as _;

    use super::*;

    /// The words of a command, with quotes as a shell reads them.
    fn words(command: &str) -> Vec<String> {
        let quoted = command.split('\'').enumerate();
        quoted
            .flat_map(|(index, part)| match index % 2 {
                0 => part.split_whitespace().map(str::to_owned).collect(),
                _ => vec![part.to_owned()],
            })
            .collect()
    }

    #[test]
    fn the_instructions_describe_every_command_and_no_other() {
        let told = Part::CommandLine.text();
        for command in told.split('`').skip(1).step_by(2).filter(|text| text.contains("proliferate ")) {
            let parsed = InsideCli::try_parse_from(words(command));
            let is_help = |error: &clap::Error| error.kind() == clap::error::ErrorKind::DisplayHelp;
            assert!(parsed.as_ref().err().is_none_or(is_help), "{command}");
        }
        for group in InsideCli::command().get_subcommands() {
            for command in group.get_subcommands() {
                assert!(told.contains(command.get_name()), "{} {}", group.get_name(), command.get_name());
            }
        }
    }

    #[test]
    fn values_that_start_with_dashes_are_kept() {
        let given = ["actions", "run", "--integration=linear", "--action=--list", "--params=--x"];
        for words in [given.to_vec(), [&given[..4], &["--params", "--x"]].concat()] {
            let parsed = InsideCli::try_parse_from(["proliferate"].into_iter().chain(words)).ok().unwrap();
            let InsideCommand::Actions(ActionsCommand::Run { action, params, .. }) = parsed.command else {
                panic!("another command")
            };
            assert_eq!((action.as_str(), params.as_str()), ("--list", "--x"));
        }
    }
}
