//! `actions` inside a sandbox: lists what the agent can do outside, executes it, and waits for approval.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::Subcommand;
use proto::http::{ActionCatalog, Invocation, InvokeAction};
use proto::{InvocationId, InvocationStatus, JsonObject};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::{Inside, MAX_ATTEMPTS, RETRY_DELAY, retry_request};
use crate::clean::{clean, one_line, shortened};
use crate::output;

/// How often a waiting invocation is looked up.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// How long after the end of its lifetime an invocation that was approved may still run.
const EXECUTION_MARGIN: Duration = Duration::from_mins(5);
/// The lifetime of an invocation that names none.
const DEFAULT_LIFETIME: Duration = Duration::from_hours(1);
/// The length of a description in the plain list.
const MAX_DESCRIPTION_CHARS: usize = 160;

#[derive(Subcommand)]
pub(super) enum ActionsCommand {
    /// List all actions as JSON, with the schemas of their parameters; on a terminal as lines
    List {
        /// One line for each action instead of JSON
        #[arg(long)]
        plain: bool,
    },
    /// Print how to use the actions of an integration
    Guide {
        /// The integration, as `list` names it
        #[arg(long)]
        integration: String,
    },
    /// Execute an action and print its result; waits if a person has to approve it
    Run {
        /// The integration, as `list` names it
        #[arg(long)]
        integration: String,
        /// The action, as `list` names it
        #[arg(long)]
        action: String,
        /// The parameters as a JSON object; - reads them from standard input
        #[arg(long, default_value = "{}", allow_hyphen_values = true)]
        params: String,
    },
    /// Print an invocation as it is now
    Status {
        /// The id of the invocation
        id: String,
    },
    /// Wait for an invocation and print its result
    Wait {
        /// The id of the invocation
        id: String,
    },
    /// List the invocations of this session, newest first
    History,
}

impl Inside {
    /// Carries out a command. Results go to standard output, everything else to standard error.
    pub(super) async fn act(&self, command: &ActionsCommand) -> ExitCode {
        match self.try_act(command).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(problem) => {
                print_note(&format!("Error: {problem}"));
                ExitCode::FAILURE
            }
        }
    }

    async fn try_act(&self, command: &ActionsCommand) -> Result<(), String> {
        let Self { client, session } = self;
        match command {
            ActionsCommand::List { plain } => {
                let catalog = retry_request(|| client.actions(*session)).await.map_err(error_text)?;
                if *plain || std::io::stdout().is_terminal() {
                    output::line(plain_list(&catalog).trim_end());
                } else {
                    print(&json!(catalog));
                }
            }
            ActionsCommand::Guide { integration } => {
                let found =
                    retry_request(|| client.action_guide(*session, integration)).await.map_err(error_text)?;
                print_guide(&found.guide);
            }
            ActionsCommand::Run { integration, action, params } => {
                let (integration, action) = (integration.clone(), action.clone());
                let request = InvokeAction { integration, action, params: read_params(params)? };
                let invocation = self.invoke(&request).await?;
                print(&self.result_of(invocation).await?);
            }
            ActionsCommand::Status { id } => {
                print(&json!(self.look_up(id).await?));
            }
            ActionsCommand::Wait { id } => {
                let found = self.look_up(id).await?;
                print(&self.result_of(found).await?);
            }
            ActionsCommand::History => {
                print(&json!(retry_request(|| client.invocations(*session)).await.map_err(error_text)?));
            }
        }
        Ok(())
    }

    async fn look_up(&self, id: &str) -> Result<Invocation, String> {
        let id: InvocationId = id.parse().map_err(|_| format!("{id:?} is not the id of an invocation"))?;
        retry_request(|| self.client.invocation(self.session, id)).await.map_err(error_text)
    }

    /// Invokes an action, and again only if the gateway has not received the request.
    async fn invoke(&self, request: &InvokeAction) -> Result<Invocation, String> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.client.invoke_action(self.session, request).await {
                Err(client::Error::Unreachable { sent: false, .. }) if attempt < MAX_ATTEMPTS => {
                    sleep(RETRY_DELAY).await;
                }
                Err(error @ client::Error::Unreachable { sent: true, .. }) => {
                    return Err(format!(
                        "{error}; the action may have been executed: `proliferate actions history` shows it"
                    ));
                }
                done => return done.map_err(error_text),
            }
        }
    }

    /// The result of an invocation, after its approval if it needs one.
    async fn result_of(&self, found: Invocation) -> Result<Value, String> {
        if found.status == InvocationStatus::Pending {
            print_note("Waiting for approval...");
            print_note(&format!("`proliferate actions wait {}` fetches the result later", found.id));
        }
        let (id, lifetime) = (found.id, found.expires_at.map(|end| (end - found.created_at).to_std()));
        let lifetime = lifetime.and_then(Result::ok).unwrap_or(DEFAULT_LIFETIME);
        let ended = timeout(lifetime + EXECUTION_MARGIN, self.wait_for_end(found)).await;
        let ended =
            ended.map_err(|_| format!("invocation {id} has not ended although its time is over"))??;
        match ended.status {
            InvocationStatus::Completed => Ok(ended.result),
            status => Err(format!("Action {status}: {}", reason(&ended))),
        }
    }

    /// Polls until the invocation has ended.
    async fn wait_for_end(&self, mut found: Invocation) -> Result<Invocation, String> {
        while is_open(found.status) {
            sleep(POLL_INTERVAL).await;
            match self.client.invocation(self.session, found.id).await {
                Ok(now) => found = now,
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error_text(error)),
            }
        }
        Ok(found)
    }
}

const fn is_open(status: InvocationStatus) -> bool {
    matches!(status, InvocationStatus::Pending | InvocationStatus::Approved | InvocationStatus::Executing)
}

/// Why an invocation has no result.
fn reason(found: &Invocation) -> String {
    match (found.status, found.error.clone().or_else(|| found.denial_text())) {
        (_, Some(text)) => text,
        (InvocationStatus::Expired, None) => "nobody approved it in time".to_owned(),
        (InvocationStatus::Unknown, None) => {
            "the gateway stopped meanwhile; it may have taken effect".to_owned()
        }
        (_, None) => "no reason is known".to_owned(),
    }
}

/// The parameters of an action; `-` stands for standard input.
fn read_params(text: &str) -> Result<JsonObject, String> {
    let mut read = String::new();
    let text = if text == "-" {
        let done = std::io::stdin().read_to_string(&mut read);
        done.map_err(|error| format!("standard input cannot be read: {error}"))?;
        &read
    } else {
        text
    };
    serde_json::from_str(text).map_err(|error| format!("--params is not a JSON object: {error}"))
}

/// The gateway's own words; other errors as they are.
#[expect(clippy::needless_pass_by_value, reason = "it is the argument of map_err")]
fn error_text(error: client::Error) -> String {
    match error.reason() {
        "" => error.to_string(),
        reason => reason.to_owned(),
    }
}

/// One line for each action.
fn plain_list(catalog: &ActionCatalog) -> String {
    let mut text = String::new();
    for source in &catalog.integrations {
        let name = source.display_name.as_deref().filter(|name| *name != source.integration);
        let name = name.map(|name| format!(" ({})", one_line(name))).unwrap_or_default();
        let _ = writeln!(text, "{}{name}", one_line(&source.integration));
        for action in &source.actions {
            let about = one_line(&shortened(&action.description, MAX_DESCRIPTION_CHARS));
            let (risk, mode) = (action.risk_level, action.mode);
            let _ = writeln!(text, "  {} [{risk}, {mode}] {about}", one_line(&action.name));
        }
    }
    if text.is_empty() { "no actions".to_owned() } else { text }
}

/// Prints a guide as it is. Its text comes from a connector, so a terminal gets no control characters.
fn print_guide(guide: &str) {
    let mut out = std::io::stdout();
    let _ = if out.is_terminal() {
        out.write_all(clean(guide).as_bytes())
    } else {
        out.write_all(guide.as_bytes())
    };
    let _ = out.flush();
}

fn print(value: &Value) {
    output::json_line(value);
}

fn print_note(text: &str) {
    let _ = writeln!(std::io::stderr(), "{}", clean(text));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_an_object() {
        assert_eq!(read_params(r#"{"a":1}"#).unwrap()["a"], 1);
        for wrong in ["", "{", "[1]", "7", "null", r#"{"a":1} x"#] {
            assert!(read_params(wrong).unwrap_err().starts_with("--params is not a JSON object"), "{wrong}");
        }
    }

    #[test]
    fn a_plain_list_has_one_line_for_each_action() {
        let catalog = json!({"integrations": [{"integrationId": null, "integration": "tools", "displayName": "T\u{1b}[2J",
            "actions": [{"name": "send", "description": "One\nline\u{202e}", "riskLevel": "write", "params": {},
                "mode": "require_approval", "modeSource": "inferred_default"}]}]});
        let text = plain_list(&serde_json::from_value(catalog).unwrap());
        assert_eq!(text, "tools (T\\u{1b}[2J)\n  send [write, require_approval] One line\\u{202e}\n");
    }
}
