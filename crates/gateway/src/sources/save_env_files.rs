//! `save_env_files`: a setup agent stores which environment files the project reads, and which variables each has.
//! The values are stored elsewhere.

use std::time::Duration;

use clock::Clock;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Within};
use proto::{AgentMode, ConfigurationId, JsonObject};
use sandboxd::protocol::EnvFile;
use serde::Deserialize as _;
use serde_json::{Value, json};
use store::{Effect, JsonText, Store};

use super::platform::{Implementation, PlatformTool, ToolHost, store_failure};
use super::save_service_commands::configuration_effect;
use crate::runtime::env_files;

pub(super) static TOOL: PlatformTool = PlatformTool {
    name: "save_env_files",
    aliases: &[],
    argument_aliases: &[],
    version: 2,
    description: "Save which environment files this project reads, and the names of the variables in each. Every later \
        session gets these files, with the values that the organization has stored. Only names are saved, never values. \
        It replaces what was saved before.",
    guidance: |_: AgentMode| {
        "saves which environment files the project reads. Call it with the names of the variables as soon as you know \
        them; the values come from the user."
    },
    schema,
    place: ToolHost::Gateway {
        timeout: Duration::from_secs(30),
        implement: |platform| {
            let (store, clock) = (platform.store.clone(), platform.clock.clone());
            Implementation::Within(Box::new(SaveEnvFiles { store, clock }))
        },
    },
};

struct SaveEnvFiles {
    store: Store,
    clock: Clock,
}

fn schema() -> Value {
    let path = |shortest: u32, why: &str| {
        json!({"type": "string", "minLength": shortest, "maxLength": 500, "format": "workspace-path",
            "description": why})
    };
    let key = json!({
        "type": "object",
        "properties": {
            "key": {"type": "string", "minLength": 1, "maxLength": 200, "format": "variable",
                "description": "The name of the variable"},
            "required": {"type": "boolean", "description": "Whether the project needs a value"},
        },
        "required": ["key", "required"],
        "additionalProperties": false,
    });
    let file = json!({
        "type": "object",
        "properties": {
            "workspacePath": path(0, "The directory of the repository in the workspace; . by default"),
            "path": path(1, "The file, inside the workspace path"),
            "format": {"enum": ["dotenv"]},
            "mode": {"enum": ["secret"]},
            "keys": {"type": "array", "minItems": 1, "maxItems": 50, "items": key},
        },
        "required": ["path", "format", "mode", "keys"],
        "additionalProperties": false,
    });
    json!({
        "type": "object",
        "properties": {"files": {"type": "array", "minItems": 1, "maxItems": 10, "items": file}},
        "required": ["files"],
        "additionalProperties": false,
    })
}

impl Within for SaveEnvFiles {
    fn prepare<'a>(&'a self, call: &'a CallRequest) -> BoxFuture<'a, Result<(Output, Effect), Failure>> {
        async move {
            let invalid =
                |_| Failure::Invalid("Invalid arguments: files are not of the expected form".to_owned());
            let files = Vec::<EnvFile>::deserialize(&call.target.parameters["files"]).map_err(invalid)?;
            let value = JsonText::of(&files);
            let change = configuration_effect(&self.store, call, &TOOL, (value, self.clock.now())).await?;
            let placed = self.store.configuration_repos(change.org, change.configuration).await;
            let placed = placed.map_err(|error| store_failure(&error))?;
            let directories =
                env_files::repo_directories(placed.iter().map(|placed| placed.workspace_path.as_str()));
            // A list that sandboxes refuse would break every session of the configuration.
            env_files::check("files", &files, &directories)
                .map_err(|problems| Failure::Invalid(format!("Invalid arguments: {problems}")))?;
            Ok((summary(change.configuration, &files), Effect::SaveEnvFiles(change)))
        }
        .boxed()
    }
}

fn summary(configuration: ConfigurationId, files: &[EnvFile]) -> Output {
    let path = |file: &EnvFile| match file.workspace_path.as_str() {
        "" | "." => file.path.clone(),
        directory => format!("{}/{}", directory.trim_end_matches('/'), file.path),
    };
    let paths: Vec<_> = files.iter().map(path).collect();
    let mut data = JsonObject::new();
    data.insert("configurationId".to_owned(), json!(configuration));
    data.insert("fileCount".to_owned(), json!(files.len()));
    Output {
        text: format!("Saved {} environment files: {}", files.len(), paths.join(", ")),
        data: Some(data),
    }
}

#[cfg(test)]
mod tests {
    use super::super::platform::tests::problems;
    use super::*;

    fn one(field: &str, value: &Value) -> Value {
        let mut file = json!({"path": ".env", "format": "dotenv", "mode": "secret",
            "keys": [{"key": "API_KEY", "required": true}]});
        file[field] = value.clone();
        json!({"files": [file]})
    }

    #[test]
    fn every_problem_is_named_by_field_and_limit() {
        assert_eq!(problems(&TOOL, &one("workspacePath", &json!("app"))), "");
        for (wrong, part) in [
            (json!({}), "files is required"),
            (json!({"files": []}), "files must have at least 1 entries"),
            (one("path", &json!("../.env")), "files[0].path must be a path inside the workspace"),
            (one("path", &json!("")), "files[0].path must have at least 1 characters"),
            (one("workspacePath", &json!("/etc")), "files[0].workspacePath must be a path inside"),
            (one("mode", &json!("plain")), r#"files[0].mode must be one of ["secret"]"#),
            (
                one("keys", &json!([{"key": "A=B", "required": true}])),
                "files[0].keys[0].key must be the name",
            ),
            (one("keys", &json!([{"key": "A"}])), "files[0].keys[0].required is required"),
            (one("keys", &json!(vec![json!({"key": "A", "required": true}); 51])), "at most 50 entries"),
            (one("values", &json!({"API_KEY": "canary"})), "files[0] has unknown fields: values"),
        ] {
            let said = problems(&TOOL, &wrong);
            assert!(said.contains(part) && !said.contains("canary"), "{said}");
        }
    }

    #[test]
    fn saved_environment_files_are_what_sandboxes_read() {
        let files = Vec::<EnvFile>::deserialize(&one("workspacePath", &json!("app/"))["files"]).unwrap();
        let configuration: ConfigurationId = uuid::Uuid::nil().into();
        assert_eq!(summary(configuration, &files).text, "Saved 1 environment files: app/.env");
    }
}
