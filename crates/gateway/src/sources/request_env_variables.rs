//! `request_env_variables`: the agent asks people for values of environment variables. It runs inside the sandbox and
//! returns at once; clients see the call in the stream and show a form.

use serde_json::{Value, json};

use proto::AgentMode;

use super::platform::{PlatformTool, ToolHost};

pub(super) static TOOL: PlatformTool = PlatformTool {
    name: "request_env_variables",
    aliases: &[],
    argument_aliases: &[],
    version: 2,
    description: "Ask the user for the values of environment variables that the project needs. The user gets a form. \
        The values never appear in the conversation: they arrive in /tmp/.proliferate_env.json. Returns at once, before \
        the user has answered. Never use it for keys of connected integrations.",
    guidance: |mode| match mode {
        AgentMode::Setup => {
            "asks the user for the values of environment variables. Find out early what the project needs, and ask for \
            everything at once. Say in the description what a value is for and where to get it."
        }
        AgentMode::Coding | AgentMode::Automation | AgentMode::Scratch => {
            "asks the user for the values of environment variables that the work needs and that are not set yet."
        }
    },
    schema,
    place: ToolHost::Sandbox { execute: MODULE_SOURCE },
};

/// The module checks the arguments, because no gateway does it: the call is not sent anywhere.
const MODULE_SOURCE: &str = r#"({ keys }) => {
  const names = (required) =>
    keys.filter((entry) => (entry.required !== false) === required).map((entry) => entry.key).join(", ");
  return [
    "The user was asked for: " + keys.map((entry) => entry.key).join(", ") + ".",
    "Required: " + (names(true) || "none") + ". Optional: " + (names(false) || "none") + ".",
    "The values arrive in /tmp/.proliferate_env.json once the user has submitted them.",
    "Never print that file. Take one value at a time, for example with jq -r .NAME.",
  ].join("\n");
}"#;

fn schema() -> Value {
    let text = |longest: u32, why: &str| json!({"type": "string", "maxLength": longest, "description": why});
    let suggestion = json!({
        "type": "object",
        "properties": {
            "label": text(200, "The name of the suggestion"),
            "value": text(4000, "A value that the user can choose; never a secret"),
            "instructions": text(2000, "How to get a value"),
        },
        "required": ["label"],
        "additionalProperties": false,
    });
    let key = json!({"type": "string", "minLength": 1, "maxLength": 200, "pattern": "^[A-Za-z_][A-Za-z0-9_]*$",
        "description": "The name of the environment variable"});
    json!({
        "type": "object",
        "properties": {
            "keys": {
                "type": "array",
                "minItems": 1,
                "maxItems": 50,
                "items": {
                    "type": "object",
                    "properties": {
                        "key": key,
                        "description": text(1000, "What the value is for"),
                        "type": {"enum": ["env", "secret"],
                            "description": "secret: the gateway also keeps the value, encrypted"},
                        "required": {"type": "boolean", "description": "Whether the work needs the value; true by default"},
                        "suggestions": {"type": "array", "maxItems": 10, "items": suggestion},
                    },
                    "required": ["key"],
                    "additionalProperties": false,
                },
            },
        },
        "required": ["keys"],
        "additionalProperties": false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the module of a tool in the sandbox checks.
    const CHECKED_KEYWORDS: [&str; 12] = [
        "additionalProperties",
        "description",
        "enum",
        "items",
        "maxItems",
        "maxLength",
        "minItems",
        "minLength",
        "pattern",
        "properties",
        "required",
        "type",
    ];

    fn check(schema: &Value) {
        let fields = schema.as_object().unwrap();
        for (keyword, value) in fields {
            assert!(CHECKED_KEYWORDS.contains(&keyword.as_str()), "{keyword}");
            match keyword.as_str() {
                "properties" => value.as_object().unwrap().values().for_each(check),
                "items" => check(value),
                _ => {}
            }
        }
        if fields.get("type") == Some(&json!("object")) {
            assert!(fields["required"].is_array() && fields["additionalProperties"] == false, "{schema}");
        }
    }

    #[test]
    fn the_module_checks_every_keyword_of_the_schema() {
        check(&super::super::arguments::schema_for_models(&schema()));
    }
}
