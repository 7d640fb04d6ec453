//! `save_service_commands`: a setup agent stores the commands that start the services of its
//! configuration.

use std::time::Duration;

use clock::Clock;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Within};
use proto::{ConfigurationId, JsonObject, SessionType};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{Effect, JsonText, Store, StoreError};

use super::platform::{Implementation, PlatformTool, session_of};
use super::problems::few;

const NAME: &str = "save_service_commands";
const MOST: usize = 10;

pub(super) const TOOL: PlatformTool = PlatformTool {
    name: NAME,
    description: "Save the commands that start the services of this project (dev servers, databases, workers), so \
        that every later session starts them by itself. Call it once the commands are known to work. It replaces \
        what was saved before.",
    schema,
    only_setup: true,
    timeout: Duration::from_secs(30),
    check,
    implement: |platform| {
        let (store, clock) = (platform.store.clone(), platform.clock.clone());
        Implementation::Within(Box::new(SaveServiceCommands { store, clock }))
    },
};

struct SaveServiceCommands {
    store: Store,
    clock: Clock,
}

/// One command as it is stored.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Service {
    name: String,
    command: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    workspace_path: Option<String>,
}

#[derive(Deserialize)]
struct Arguments {
    commands: Vec<Service>,
}

fn schema() -> Value {
    let text = |longest: u32, why: &str| json!({"type": "string", "maxLength": longest, "description": why});
    json!({
        "type": "object",
        "properties": {
            "commands": {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST,
                "items": {
                    "type": "object",
                    "properties": {
                        "name": text(100, "A short name, such as web or worker"),
                        "command": text(1000, "The command, as one would type it into a shell"),
                        "cwd": text(500, "The folder to start it in, inside the workspace path"),
                        "workspacePath": text(500, "The folder of the repository in the workspace"),
                    },
                    "required": ["name", "command"],
                },
            },
        },
        "required": ["commands"],
    })
}

fn check(parameters: &Value) -> Result<(), String> {
    let Some(commands) = parameters.get("commands").and_then(Value::as_array) else {
        return Err("Invalid arguments: commands must be a list".to_owned());
    };
    // Check the length before the entries, because a list may be as long as a request body allows.
    if !(1..=MOST).contains(&commands.len()) {
        return Err(format!("Invalid arguments: commands must have 1 to {MOST} entries"));
    }
    let problems = commands.iter().enumerate().flat_map(|(index, command)| {
        problems(command).into_iter().map(move |problem| format!("commands[{index}].{problem}"))
    });
    match few(problems, |problem| problem) {
        None => Ok(()),
        Some(problems) => Err(format!("Invalid arguments: {problems}")),
    }
}

fn problems(command: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for (field, least, most) in
        [("name", 1, 100), ("command", 1, 1000), ("cwd", 0, 500), ("workspacePath", 0, 500)]
    {
        // A command may have several lines. PostgreSQL cannot store NUL, and names are shown in
        // terminals, so other control characters are refused.
        let lines = field == "command";
        let odd = |c: char| c.is_control() && !(lines && matches!(c, '\n' | '\r' | '\t'));
        let fits = match command.get(field) {
            None => least == 0,
            Some(value) => value
                .as_str()
                .is_some_and(|text| (least..=most).contains(&text.chars().count()) && !text.contains(odd)),
        };
        if !fits {
            problems.push(format!(
                "{field} must be a text of {least} to {most} characters without control characters"
            ));
        }
    }
    for field in ["cwd", "workspacePath"] {
        let path = command.get(field).and_then(Value::as_str).unwrap_or_default();
        if path.starts_with('/') || path.contains('\\') || path.split('/').any(|part| part == "..") {
            problems.push(format!("{field} must be a path inside the workspace"));
        }
    }
    problems
}

impl Within for SaveServiceCommands {
    fn prepare<'a>(&'a self, call: &'a CallRequest) -> BoxFuture<'a, Result<(Output, Effect), Failure>> {
        async move {
            let session = session_of(&self.store, call).await?;
            if session.session_type != SessionType::Setup {
                return Err(Failure::Refused(format!("{NAME} is only available in setup sessions.")));
            }
            let Some(configuration) = session.configuration_id else {
                let none = "This session has no configuration to save commands to.";
                return Err(Failure::Refused(none.to_owned()));
            };
            let invalid =
                |_| Failure::Invalid("Invalid arguments: commands are not of the expected form".to_owned());
            let Arguments { commands } = Arguments::deserialize(&call.target.parameters).map_err(invalid)?;
            let effect = Effect::SaveServiceCommands {
                org: call.caller.org,
                configuration,
                commands: JsonText::of(&commands),
                by: session.created_by.map_or_else(|| "agent".to_owned(), |user| user.to_string()),
                at: self.clock.now(),
            };
            Ok((told(configuration, &commands), effect))
        }
        .boxed()
    }
}

fn told(configuration: ConfigurationId, commands: &[Service]) -> Output {
    let names: Vec<_> = commands.iter().map(|command| command.name.as_str()).collect();
    let mut data = JsonObject::new();
    data.insert("configurationId".to_owned(), json!(configuration));
    data.insert("commandCount".to_owned(), json!(commands.len()));
    let text = format!("Saved {} service commands: {}", names.len(), names.join(", "));
    Output { text, data: Some(data) }
}

/// The failure for a store error. The database's own message goes to the log only.
pub(super) fn store_failure(error: &StoreError) -> Failure {
    if let StoreError::Missing(what) = error {
        return Failure::Refused(format!("{what} does not exist"));
    }
    tracing::error!(%error, "a tool could not write");
    Failure::Down("the gateway's database is not available".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(field: &str, value: &str) -> Value {
        let mut command = json!({"name": "web", "command": "npm run dev"});
        command[field] = json!(value);
        json!({"commands": [command]})
    }

    #[test]
    fn every_problem_is_named_by_field_and_limit() {
        assert_eq!(check(&one("cwd", "app")), Ok(()));
        assert_eq!(check(&one("command", "cd app\n\tnpm start")), Ok(()));
        for (wrong, says) in [
            (json!({}), "commands must be a list"),
            (json!({"commands": []}), "1 to 10 entries"),
            (json!({"commands": [{"command": "x"}]}), "commands[0].name must be a text of 1 to 100"),
            (json!({"commands": [{"name": "a", "command": 7}]}), "commands[0].command"),
            (one("command", &"x".repeat(1001)), "1 to 1000"),
            (one("cwd", "../up"), "inside the workspace"),
            (one("workspacePath", "/etc"), "inside the workspace"),
            (one("name", "w\0"), "commands[0].name"),
            (one("name", "\u{1b}[2J"), "commands[0].name"),
            (one("command", "x\0"), "commands[0].command"),
            (one("cwd", "a\nb"), "commands[0].cwd"),
        ] {
            let said = check(&wrong).unwrap_err();
            assert!(said.starts_with("Invalid arguments: ") && said.contains(says), "{said}");
        }
    }

    #[test]
    fn what_is_said_is_short_however_much_is_wrong() {
        for (count, says) in [(8000, "1 to 10 entries"), (10, "and 15 more")] {
            let said = check(&json!({"commands": vec![json!({}); count]})).unwrap_err();
            assert!(said.len() < 1000 && said.contains(says), "{said}");
        }
    }
}
