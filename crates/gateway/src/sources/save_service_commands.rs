//! `save_service_commands`: a setup agent says how the services of its configuration are started.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use proto::{ConfigurationId, JsonObject, SessionType};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{Effect, JsonText, StoreError};

use super::platform::{PlatformTool, session_of};
use super::{Failure, Output, Within, Work};
use crate::app::AppState;
use crate::gate::Call;

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
    work: || Work::Within(&Save),
};

struct Save;

/// One command, as it is kept.
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
    let mut problems = Vec::new();
    if !(1..=MOST).contains(&commands.len()) {
        problems.push(format!("commands must have 1 to {MOST} entries"));
    }
    for (index, command) in commands.iter().enumerate() {
        for (field, least, most, required) in [
            ("name", 1, 100, true),
            ("command", 1, 1000, true),
            ("cwd", 0, 500, false),
            ("workspacePath", 0, 500, false),
        ] {
            let fits = match command.get(field) {
                None => !required,
                Some(value) => {
                    value.as_str().is_some_and(|text| (least..=most).contains(&text.chars().count()))
                }
            };
            if !fits {
                problems.push(format!(
                    "commands[{index}].{field} must be a text of {least} to {most} characters"
                ));
            }
        }
        for field in ["cwd", "workspacePath"] {
            let path = command.get(field).and_then(Value::as_str).unwrap_or_default();
            if path.starts_with('/')
                || path.split('/').any(|part| part == "..")
                || path.contains(['\0', '\\'])
            {
                problems.push(format!("commands[{index}].{field} must be a path inside the workspace"));
            }
        }
    }
    // Bounded: a model reads it, and a ledger keeps its beginning.
    if problems.is_empty() { Ok(()) } else { Err(format!("Invalid arguments: {}", problems.join(", "))) }
}

impl Within for Save {
    fn prepare<'a>(
        &'a self,
        app: &'a AppState,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<(Output, Effect), Failure>> {
        async move {
            let session = session_of(app, call).await?;
            if session.session_type != SessionType::Setup {
                return Err(Failure::Refused(format!("{NAME} is only available in setup sessions.")));
            }
            let Some(configuration) = session.configuration_id else {
                let none = "This session has no configuration to save commands to.";
                return Err(Failure::Refused(none.to_owned()));
            };
            let invalid =
                |_| Failure::Invalid("Invalid arguments: commands are not of the expected form".to_owned());
            let Arguments { commands } = Arguments::deserialize(&call.parameters).map_err(invalid)?;
            let effect = Effect::SaveServiceCommands {
                org: call.org,
                configuration,
                commands: JsonText::of(&commands),
                by: session.created_by.map_or_else(|| "agent".to_owned(), |user| user.to_string()),
                at: app.clock.now(),
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

/// The database's own words are for logs.
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

    #[test]
    fn every_problem_is_named_by_field_and_limit() {
        let right = json!({"commands": [{"name": "web", "command": "npm run dev", "cwd": "app"}]});
        assert_eq!(check(&right), Ok(()));
        for (wrong, says) in [
            (json!({}), "commands must be a list"),
            (json!({"commands": []}), "1 to 10 entries"),
            (json!({"commands": [{"command": "x"}]}), "commands[0].name must be a text of 1 to 100"),
            (json!({"commands": [{"name": "a", "command": 7}]}), "commands[0].command"),
            (json!({"commands": [{"name": "a", "command": "x".repeat(1001)}]}), "1 to 1000"),
            (json!({"commands": [{"name": "a", "command": "x", "cwd": "../up"}]}), "inside the workspace"),
            (
                json!({"commands": [{"name": "a", "command": "x", "workspacePath": "/etc"}]}),
                "inside the workspace",
            ),
        ] {
            let said = check(&wrong).unwrap_err();
            assert!(said.starts_with("Invalid arguments: ") && said.contains(says), "{said}");
        }
    }
}
