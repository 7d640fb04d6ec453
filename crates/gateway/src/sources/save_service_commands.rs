//! `save_service_commands`: a setup agent stores the commands that start the services of its
//! configuration.

use std::time::Duration;

use chrono::{DateTime, Utc};
use clock::Clock;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Within};
use proto::{AgentMode, ConfigurationId, JsonObject};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{ConfigurationEffect, Effect, JsonText, Store};

use super::platform::{Implementation, PlatformTool, ToolHost, session_with};
use crate::runtime::auto_start;

pub(super) static TOOL: PlatformTool = PlatformTool {
    name: "save_service_commands",
    aliases: &[],
    argument_aliases: &[],
    version: 2,
    description: "Save the commands that start the services of this project (dev servers, databases, workers), so \
        that every later session starts them by itself. Call it once the commands are known to work. It replaces \
        what was saved before.",
    guidance: |_: AgentMode| {
        "saves the commands that start the project's services. Call it once, after each command has been seen to work; \
        later sessions start them by themselves."
    },
    schema,
    place: ToolHost::Gateway {
        timeout: Duration::from_secs(30),
        implement: |platform| {
            let (store, clock) = (platform.store.clone(), platform.clock.clone());
            Implementation::Within(Box::new(SaveServiceCommands { store, clock }))
        },
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
    let text = |shortest: u32, longest: u32, format: &str, why: &str| json!({"type": "string", "minLength": shortest, "maxLength": longest, "format": format, "description": why});
    let command = json!({
        "type": "object",
        "properties": {
            "name": text(1, 100, "line", "A short name, such as web or worker"),
            "command": text(1, 1000, "lines", "The command, as one would type it into a shell"),
            "cwd": text(0, 500, "workspace-path", "The directory to start it in, inside the workspace path"),
            "workspacePath": text(0, 500, "workspace-path", "The directory of the repository in the workspace"),
        },
        "required": ["name", "command"],
        "additionalProperties": false,
    });
    json!({
        "type": "object",
        "properties": {"commands": {"type": "array", "minItems": 1, "maxItems": 10, "items": command}},
        "required": ["commands"],
        "additionalProperties": false,
    })
}

impl Within for SaveServiceCommands {
    fn prepare<'a>(&'a self, call: &'a CallRequest) -> BoxFuture<'a, Result<(Output, Effect), Failure>> {
        async move {
            let invalid =
                |_| Failure::Invalid("Invalid arguments: commands are not of the expected form".to_owned());
            let Arguments { commands } = Arguments::deserialize(&call.target.parameters).map_err(invalid)?;
            let names = commands.iter().map(|service| service.name.as_str());
            if let Some(index) = auto_start::repeated_name(names) {
                let repeated = auto_start::REPEATED;
                return Err(Failure::Invalid(format!(
                    "Invalid arguments: commands[{index}].name {repeated}"
                )));
            }
            let value = JsonText::of(&commands);
            let change = configuration_effect(&self.store, call, &TOOL, (value, self.clock.now())).await?;
            Ok((summary(change.configuration, &commands), Effect::SaveServiceCommands(change)))
        }
        .boxed()
    }
}

/// The change that a setup agent makes to its session's configuration.
pub(super) async fn configuration_effect(
    store: &Store,
    call: &CallRequest,
    tool: &PlatformTool,
    (value, at): (JsonText, DateTime<Utc>),
) -> Result<ConfigurationEffect, Failure> {
    let session = session_with(store, call, tool).await?;
    let none = || Failure::Refused("This session has no configuration to save to.".to_owned());
    Ok(ConfigurationEffect {
        org: call.caller.org,
        configuration: session.configuration_id.ok_or_else(none)?,
        value,
        by: session.created_by.map_or_else(|| "agent".to_owned(), |user| user.to_string()),
        at,
    })
}

fn summary(configuration: ConfigurationId, commands: &[Service]) -> Output {
    let names: Vec<_> = commands.iter().map(|command| command.name.as_str()).collect();
    let mut data = JsonObject::new();
    data.insert("configurationId".to_owned(), json!(configuration));
    data.insert("commandCount".to_owned(), json!(commands.len()));
    let text = format!("Saved {} service commands: {}", names.len(), names.join(", "));
    Output { text, data: Some(data) }
}

#[cfg(test)]
mod tests {
    use super::super::platform::tests::problems;
    use super::*;

    fn one(field: &str, value: &str) -> Value {
        let mut command = json!({"name": "web", "command": "npm run dev"});
        command[field] = json!(value);
        json!({"commands": [command]})
    }

    #[test]
    fn every_problem_is_named_by_field_and_limit() {
        assert_eq!(problems(&TOOL, &one("cwd", "app")), "");
        assert_eq!(problems(&TOOL, &one("command", "cd app\n\tnpm start")), "");
        for (wrong, part) in [
            (json!({}), "commands is required"),
            (json!({"commands": 7}), "commands must be a list"),
            (json!({"commands": []}), "commands must have at least 1 entries"),
            (json!({"commands": [{"command": "x"}]}), "commands[0].name is required"),
            (json!({"commands": [{"name": "a", "command": 7}]}), "commands[0].command must be a text"),
            (one("command", &"x".repeat(1001)), "commands[0].command must have at most 1000 characters"),
            (one("cwd", "../up"), "commands[0].cwd must be a path inside the workspace"),
            (one("workspacePath", "/etc"), "commands[0].workspacePath must be a path inside the workspace"),
            (one("name", "w\0"), "commands[0].name"),
            (one("name", "\u{1b}[2J"), "commands[0].name"),
            (one("command", "x\0"), "commands[0].command"),
            (one("cwd", "a\nb"), "commands[0].cwd"),
        ] {
            let said = problems(&TOOL, &wrong);
            assert!(said.starts_with("Invalid arguments: ") && said.contains(part), "{said}");
        }
    }

    #[test]
    fn all_violations_of_a_call_are_named() {
        let said = problems(&TOOL, &json!({"commands": vec![json!({}); 10]}));
        assert_eq!(said.matches("is required").count(), 20, "{said}");
    }
}
