//! Tool calls from the sandbox: one durable row each; a repeated id is answered from memory.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::database::Row;
use super::router::{Reply, error};
use super::{App, LOCK};

#[derive(Deserialize)]
struct Call {
    tool_call_id: String,
    args: Value,
}

impl App {
    pub async fn call_tool(&self, session_id: &str, tool: &str, token: &str, body: &[u8]) -> Reply {
        if !self.keys.sandbox(token, session_id) {
            return error(403, "Tool routes require sandbox authentication");
        }
        let Some(session) = self.session(session_id) else {
            return error(404, "Session not found");
        };
        if tool != "save_service_commands" {
            return error(404, &format!("Unknown tool: {tool}"));
        }
        let Ok(call) = serde_json::from_slice::<Call>(body) else {
            return error(400, "Missing or invalid tool_call_id");
        };
        let key = format!("{tool} {}", call.tool_call_id);
        if let Some(answer) = session.answers.lock().expect(LOCK).get(&key) {
            return (200, answer.clone());
        }
        let result = Bytes::from(save_service_commands(&call.args, &session.config).to_string());
        let row = Row::Tool {
            session: session_id.to_owned(),
            tool: tool.to_owned(),
            call: call.tool_call_id,
            result: result.clone(),
        };
        if !self.database.put(row).await {
            return error(500, "Internal server error");
        }
        session.answers.lock().expect(LOCK).insert(key, result.clone());
        (200, result)
    }
}

fn save_service_commands(args: &Value, config: &str) -> Value {
    let names: Option<Vec<&str>> = args["commands"].as_array().and_then(|commands| {
        commands.iter().map(|entry| entry["command"].as_str().and(entry["name"].as_str())).collect()
    });
    let Some(names) = names else {
        return json!({"success": false, "result": "Invalid arguments: Required"});
    };
    let result = format!(
        "Service commands saved for configuration: {}. These will auto-run in future sessions with this configuration.",
        names.join(", ")
    );
    json!({"success": true, "result": result, "data": {"configurationId": config, "commandCount": names.len()}})
}
