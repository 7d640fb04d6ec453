//! Actions: their list, and invocations that are denied, wait for approval, or are executed.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::App;
use super::database::Row;
use super::router::{Reply, error, reply};
use crate::clock::{iso, now_ns, unix_ms};

/// How long an invocation waits for approval, in milliseconds.
const APPROVAL_MS: u64 = 300_000;

#[derive(Deserialize)]
struct Invoke {
    integration: String,
    action: String,
    params: Value,
}

/// How an action is treated: its risk, the mode for this risk, and its initial status.
struct ActionRule {
    risk: &'static str,
    mode: &'static str,
    state: &'static str,
}

impl ActionRule {
    fn find(action: &str) -> Option<Self> {
        let (risk, mode, state) = match action {
            "read_thing" => ("read", "allow", "executing"),
            "write_thing" => ("write", "require_approval", "pending"),
            "danger_thing" => ("danger", "deny", "denied"),
            _ => return None,
        };
        Some(Self { risk, mode, state })
    }
}

impl App {
    pub async fn invoke(&self, session_id: &str, token: &str, body: &[u8]) -> Reply {
        if !self.keys.sandbox(token, session_id) {
            return error(403, "Only sandbox agents can invoke actions");
        }
        let Some(session) = self.session(session_id) else {
            return error(404, "Session not found");
        };
        let Ok(invoke) = serde_json::from_slice::<Invoke>(body) else {
            return error(400, "Invalid body");
        };
        let Invoke { integration, action, params } = invoke;
        if integration != self.integration {
            return error(400, &format!("Unknown integration: {integration}"));
        }
        let Some(ActionRule { risk, mode, state }) = ActionRule::find(&action) else {
            return error(400, &format!("Unknown action: {integration}/{action}"));
        };
        let (id, started_at, now) = (uuid::Uuid::new_v4().to_string(), now_ns(), unix_ms());
        let row = Row::Invocation {
            id: id.clone(),
            session: session_id.to_owned(),
            action: action.clone(),
            params: params.to_string(),
            status: state,
        };
        if !self.database.put(row).await {
            return error(500, "Internal server error");
        }
        let mut invocation = json!({"id": id, "sessionId": session_id, "organizationId": session.org,
            "integrationId": null, "integration": integration, "action": action, "riskLevel": risk,
            "mode": mode, "modeSource": "inferred_default", "params": params, "status": state,
            "result": null, "error": null, "deniedReason": null, "durationMs": null, "approvedBy": null,
            "approvedAt": null, "completedAt": null, "expiresAt": null, "createdAt": iso(now)});
        match mode {
            "deny" => {
                invocation["deniedReason"] = "policy".into();
                let why = "Action denied: danger-level actions are not allowed";
                reply(403, &json!({"invocation": invocation, "error": why}))
            }
            "require_approval" => {
                invocation["expiresAt"] = iso(now + APPROVAL_MS).into();
                reply(202, &json!({"invocation": invocation, "message": "Action requires approval"}))
            }
            _ => self.execute(id, invocation, started_at).await,
        }
    }

    async fn execute(&self, id: String, mut invocation: Value, started_at: u64) -> Reply {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
            "params": {"name": invocation["action"], "arguments": invocation["params"]}});
        let answer = self.call_agent("/mcp", call).await.unwrap_or_default();
        let text = answer["result"]["content"][0]["text"].as_str();
        let Some(result) = text.and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
            return error(502, "Action execution failed");
        };
        if !self.database.put(Row::InvocationResult { id, result: result.to_string() }).await {
            return error(500, "Internal server error");
        }
        invocation["status"] = "completed".into();
        invocation["result"] = result.clone();
        invocation["durationMs"] = ((now_ns() - started_at) / 1_000_000).into();
        invocation["completedAt"] = iso(unix_ms()).into();
        reply(200, &json!({"invocation": invocation, "result": result}))
    }
}

/// The list of actions, which is constant.
pub fn catalogue(integration: &str) -> Bytes {
    let actions = ["read_thing", "write_thing", "danger_thing"].map(|name| {
        json!({"name": name, "description": format!("{name} of the fake server"),
            "riskLevel": ActionRule::find(name).map(|rule| rule.risk),
            "params": {"type": "object", "properties": {"q": {"type": "string"}}}})
    });
    let integration = json!({"integrationId": null, "integration": integration, "displayName": "Fake MCP",
        "actions": actions});
    Bytes::from(json!({"integrations": [integration]}).to_string())
}
