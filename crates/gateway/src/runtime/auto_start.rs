//! The commands that start an app's services: run once as a test, or started as services that keep running.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Outside, Permit};
use parking_lot::Mutex;
use proto::socket::{AutoStartCommand, AutoStartEntry, AutoStartMode};
use sandboxd::protocol::{Exec, ExitReason, Place, Restart, ServiceSpec};
use sandboxd::{ClientError, Sandboxd};
use serde_json::Value;
use store::{PlacedRepo, SessionRecord, StoreError};

use super::services::service_name;
use super::{Runtime, env_files};

/// How long a test run of a command may take. A service does not exit by itself, so the exit code 124 (timed out)
/// means that it was still running.
const TRIAL_MS: u64 = 10_000;
const TIMED_OUT: i32 = 124;
/// The maximum size of a command's reported output.
const MAX_OUTPUT_BYTES: usize = 16 * 1024;
const TRUNCATION_MARKER: &str = "\n[output cut off]";
const MAX_COMMANDS: usize = 10;
const MAX_NAME: usize = 100;
const MAX_COMMAND: usize = 1000;
const MAX_PATH: usize = 500;
pub(crate) const REPEATED: &str =
    "must differ from the names before it in letters or digits: a service replaces another of its name";

/// The reason why a list of commands is not run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandsError {
    #[error(
        "at most 10 commands, each with a name of 1 to 100, a command of 1 to 1000 and paths of at most 500 characters"
    )]
    Limits,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The commands to run for a session: those in the request, or else those of its configuration, or else those of its
/// repositories.
pub(crate) async fn commands(
    runtime: &Runtime,
    record: &SessionRecord,
    sent: Vec<AutoStartCommand>,
) -> Result<Vec<AutoStartCommand>, CommandsError> {
    if !sent.is_empty() {
        let fine = sent.len() <= MAX_COMMANDS && sent.iter().all(within_limits);
        return if fine { Ok(sent) } else { Err(CommandsError::Limits) };
    }
    if let Some(id) = record.configuration_id
        && let Some(found) = runtime.store.configuration(record.org_id, id).await?
    {
        let own = parse(found.service_commands);
        if !own.is_empty() {
            return Ok(distinct(own));
        }
    }
    let repos = runtime.store.session_repos(record.id).await?;
    Ok(distinct(repos.into_iter().flat_map(of_repo).take(MAX_COMMANDS).collect()))
}

/// Renames the commands whose service would replace an earlier one, for example because two repositories have one of the
/// same name: after their directory, or else with a number.
fn distinct(commands: Vec<AutoStartCommand>) -> Vec<AutoStartCommand> {
    let mut taken = HashSet::new();
    let rename = |command: AutoStartCommand| {
        let name = command.name.clone();
        let in_directory = command.workspace_path.as_ref().map(|directory| format!("{name}-{directory}"));
        let numbered = (2..).map(|number| format!("{number}-{name}"));
        let mut names = std::iter::once(name.clone()).chain(in_directory).chain(numbered);
        let free = names.find(|name| taken.insert(service_name(name)));
        AutoStartCommand { name: free.unwrap_or_default(), ..command }
    };
    commands.into_iter().map(rename).collect()
}

/// The position of the first name in a list whose service would replace an earlier one of the list.
pub(crate) fn repeated_name<'a>(names: impl IntoIterator<Item = &'a str>) -> Option<usize> {
    let mut taken = HashSet::new();
    names.into_iter().position(|name| !taken.insert(service_name(name)))
}

fn of_repo(placed: PlacedRepo) -> Vec<AutoStartCommand> {
    let path = placed.workspace_path;
    let commands = parse(placed.repo.service_commands).into_iter();
    commands.map(|command| AutoStartCommand { workspace_path: Some(path.clone()), ..command }).collect()
}

/// Parses a stored list. An invalid list counts as empty, because no check ever accepted it.
pub(crate) fn parse(stored: Option<Value>) -> Vec<AutoStartCommand> {
    let commands: Vec<AutoStartCommand> =
        stored.and_then(|stored| serde_json::from_value(stored).ok()).unwrap_or_default();
    commands.into_iter().filter(within_limits).take(MAX_COMMANDS).collect()
}

/// Checks a list that somebody wants to store or test. Every violation names its field and limit.
pub(crate) fn check(commands: &[AutoStartCommand]) -> Result<(), String> {
    if commands.len() > MAX_COMMANDS {
        return Err(format!("serviceCommands has at most {MAX_COMMANDS} entries"));
    }
    let mut problems: Vec<_> =
        commands.iter().enumerate().flat_map(|(index, command)| problems(index, command)).collect();
    if let Some(index) = repeated_name(commands.iter().map(|command| command.name.as_str())) {
        problems.push(format!("serviceCommands[{index}].name {REPEATED}"));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

fn problems(index: usize, command: &AutoStartCommand) -> Vec<String> {
    let at = |field: &str, rule: &str| format!("serviceCommands[{index}].{field} must be {rule}");
    let odd = |c: char| c.is_control() && !matches!(c, '\n' | '\r' | '\t');
    let mut found = Vec::new();
    if !proto::text::is_line(&command.name, MAX_NAME) {
        found.push(at("name", "one line of 1 to 100 characters"));
    }
    if !(1..=MAX_COMMAND).contains(&command.command.chars().count()) || command.command.contains(odd) {
        found.push(at("command", "a text of 1 to 1000 characters without control characters"));
    }
    for (field, path) in [("cwd", &command.cwd), ("workspacePath", &command.workspace_path)] {
        let path = path.as_deref().filter(|path| !matches!(*path, "" | "."));
        if path.is_some_and(|path| env_files::workspace_file(path).is_none()) {
            found.push(at(field, "a path inside the workspace, of at most 500 characters"));
        }
    }
    found
}

fn within_limits(command: &AutoStartCommand) -> bool {
    let path = |path: &Option<String>| path.as_ref().is_none_or(|path| path.len() <= MAX_PATH);
    (1..=MAX_NAME).contains(&command.name.chars().count())
        && (1..=MAX_COMMAND).contains(&command.command.chars().count())
        && path(&command.cwd)
        && path(&command.workspace_path)
}

/// Runs the commands one after the other and reports each result. A failure does not stop the next command.
pub(crate) async fn run(
    _: &Permit,
    supervisor: &Sandboxd,
    commands: Vec<AutoStartCommand>,
    mode: AutoStartMode,
) -> Vec<AutoStartEntry> {
    let mut entries = Vec::with_capacity(commands.len());
    for command in commands {
        let ran = match mode {
            AutoStartMode::Test => run_and_report(supervisor, &command).await,
            AutoStartMode::Start => start_and_report(supervisor, &command).await,
        };
        let (output, exit_code) = ran.unwrap_or_else(|error| (error.to_string(), Some(1)));
        entries.push(AutoStartEntry {
            name: command.name,
            workspace_path: command.workspace_path,
            cwd: command.cwd,
            output,
            exit_code,
            log_file: None,
        });
    }
    entries
}

/// The effect of the tool `start_services`.
pub(crate) struct StartServices {
    supervisor: Sandboxd,
    commands: Vec<AutoStartCommand>,
    mode: AutoStartMode,
    entries: Entries,
}

/// The report of a run, once it is over.
pub(crate) type Entries = Arc<Mutex<Option<Vec<AutoStartEntry>>>>;

impl StartServices {
    pub(crate) fn new(
        supervisor: Sandboxd,
        commands: Vec<AutoStartCommand>,
        mode: AutoStartMode,
    ) -> (Self, Entries) {
        let entries = Entries::default();
        (Self { supervisor, commands, mode, entries: entries.clone() }, entries)
    }
}

impl Outside for StartServices {
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        _: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        async move {
            let entries = run(permit, &self.supervisor, self.commands.clone(), self.mode).await;
            let failed =
                entries.iter().filter(|entry| !matches!(entry.exit_code, None | Some(0 | TIMED_OUT)));
            let text = format!("{} commands were run, {} of them failed", entries.len(), failed.count());
            *self.entries.lock() = Some(entries);
            Ok(Output { text, data: None })
        }
        .boxed()
    }
}

/// The report if no command could be run.
pub(crate) fn failed(reason: &str) -> Vec<AutoStartEntry> {
    vec![AutoStartEntry {
        name: "Error".to_owned(),
        workspace_path: None,
        cwd: None,
        output: reason.to_owned(),
        exit_code: Some(1),
        log_file: None,
    }]
}

type CommandResult = Result<(String, Option<i32>), ClientError>;

async fn run_and_report(supervisor: &Sandboxd, command: &AutoStartCommand) -> CommandResult {
    let exec = Exec {
        argv: ["sh", "-c", &command.command].map(str::to_owned).to_vec(),
        cwd: Some(place(command)),
        timeout_ms: Some(TRIAL_MS),
        merge: true,
        ..Exec::default()
    };
    let ran = supervisor.run(exec, "", MAX_OUTPUT_BYTES).await?;
    let mut output = String::from_utf8_lossy(&ran.stdout).into_owned();
    if ran.done.truncated {
        output.push_str(TRUNCATION_MARKER);
    }
    let code = match ran.done.ended {
        ExitReason::Exit(code) => code,
        ExitReason::Signal(signal) => 128_i32.saturating_add(signal),
        ExitReason::TimedOut => TIMED_OUT,
    };
    Ok((output, Some(code)))
}

async fn start_and_report(supervisor: &Sandboxd, command: &AutoStartCommand) -> CommandResult {
    let info = supervisor.service_start(service(command)).await?;
    Ok((format!("runs as the service {}", info.name), None))
}

/// The service that a command starts.
pub(super) fn service(command: &AutoStartCommand) -> ServiceSpec {
    ServiceSpec {
        name: service_name(&command.name),
        command: command.command.clone(),
        cwd: Some(place(command)),
        env: std::collections::BTreeMap::new(),
        restart: Restart::OnFailure,
    }
}

/// The working directory of a command. The supervisor rejects paths outside the workspace.
fn place(command: &AutoStartCommand) -> Place {
    let parts = [&command.workspace_path, &command.cwd];
    let parts: Vec<&str> = parts.into_iter().flatten().map(|part| part.trim_matches('/')).collect();
    Place::workspace(
        parts.into_iter().filter(|part| !matches!(*part, "" | ".")).collect::<Vec<_>>().join("/"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn command(name: &str, workspace_path: Option<&str>, cwd: Option<&str>) -> AutoStartCommand {
        AutoStartCommand {
            name: name.to_owned(),
            command: "true".to_owned(),
            cwd: cwd.map(str::to_owned),
            workspace_path: workspace_path.map(str::to_owned),
        }
    }

    #[test]
    fn a_command_runs_where_its_paths_lead() {
        for (workspace, cwd, wanted) in [
            (None, None, ""),
            (Some("."), None, ""),
            (Some("app"), Some("web/"), "app/web"),
            (Some("/app"), Some("."), "app"),
            (None, Some(".."), ".."),
        ] {
            assert_eq!(place(&command("x", workspace, cwd)).path, wanted);
        }
    }

    #[test]
    fn each_violation_names_its_field() {
        assert_eq!(check(&[command("web", Some("app"), Some("."))]), Ok(()));
        for (wrong, field) in [
            (command("", None, None), "serviceCommands[0].name"),
            (command("x", Some("/etc"), None), "serviceCommands[0].workspacePath"),
            (command("x", None, Some("../up")), "serviceCommands[0].cwd"),
            (
                AutoStartCommand { command: "\0".to_owned(), ..command("x", None, None) },
                "serviceCommands[0].command",
            ),
        ] {
            let said = check(&[wrong]).unwrap_err();
            assert!(said.starts_with(field), "{said}");
        }
        let said =
            check(&[command("the web", None, None), command("the/web", Some("app"), None)]).unwrap_err();
        assert!(said.starts_with("serviceCommands[1].name must differ"), "{said}");
        let said = check(&[command("", None, Some("../up")), command("x", Some("/etc"), None)]).unwrap_err();
        for field in ["serviceCommands[0].name", "serviceCommands[0].cwd", "serviceCommands[1].workspacePath"]
        {
            assert!(said.contains(field), "{said}");
        }
        assert!(check(&vec![command("x", None, None); 11]).unwrap_err().contains("at most 10"));
    }

    #[test]
    fn services_of_the_same_name_are_renamed_after_their_directory() {
        let long = "x".repeat(70);
        for (given, expected) in [
            (vec![("web", Some(".")), ("web", Some("lib")), ("db", None)], vec!["web", "web-lib", "db"]),
            (vec![("web", None), ("web", None), ("web", None)], vec!["web", "2-web", "3-web"]),
            (vec![("web-lib", None), ("web", None), ("web", Some("lib"))], vec!["web-lib", "web", "2-web"]),
            (vec![(&long, None), (&long, Some("lib"))], vec![&long, &format!("2-{long}")]),
        ] {
            let given = given.into_iter().map(|(name, directory)| command(name, directory, None)).collect();
            let names: Vec<_> = distinct(given).into_iter().map(|command| command.name).collect();
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn a_list_that_was_stored_wrongly_has_no_command() {
        assert_eq!(parse(Some(json!({"name": "x"}))), []);
        assert_eq!(parse(Some(json!([{"name": "", "command": "x"}]))), []);
        assert_eq!(parse(Some(json!([{"name": "web", "command": "x"}]))).len(), 1);
    }
}
