//! The fake MCP server: three tools, one per risk level, and a constant result.

use serde_json::{Value, json};

/// `None` for a notification, which has no answer.
pub fn answer(request: &Value) -> Option<Value> {
    let id = request.get("id")?;
    let result = match request["method"].as_str().unwrap_or("") {
        "initialize" => json!({
            "protocolVersion": request["params"]["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "fake-mcp", "version": "1"}}),
        "tools/list" => json!({"tools": [
            tool("read_thing", json!({"readOnlyHint": true})),
            tool("write_thing", Value::Null),
            tool("danger_thing", json!({"destructiveHint": true}))]}),
        "tools/call" => json!({"content": [{"type": "text", "text": "{\"ok\":true,\"items\":[1,2,3]}"}]}),
        _ => json!({}),
    };
    Some(json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

fn tool(name: &str, annotations: Value) -> Value {
    let mut tool = json!({"name": name, "description": format!("{name} of the fake server"),
        "inputSchema": {"type": "object", "properties": {"q": {"type": "string"}}}});
    if !annotations.is_null() {
        tool["annotations"] = annotations;
    }
    tool
}
