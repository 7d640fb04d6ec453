//! The one JSON value that a caller gets for the result of a tool.

use rmcp::model::{CallToolResult, ContentBlock};
use serde_json::Value;

/// How a tool answered.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolResult {
    Done(Value),
    /// The tool says that it failed, and this is its account of why.
    Failed(String),
}

/// Reads a tool's answer: its structured content, else its text, parsed if it is JSON, else the blocks as they are.
pub(crate) fn read_result(result: CallToolResult) -> ToolResult {
    if result.is_error == Some(true) {
        let texts = result.content.iter().filter_map(ContentBlock::as_text).map(|block| block.text.as_str());
        return ToolResult::Failed(texts.collect::<Vec<_>>().join("\n"));
    }
    let text =
        || text_of(&result.content).map(|text| serde_json::from_str(&text).unwrap_or(Value::String(text)));
    let blocks = || serde_json::to_value(&result.content).unwrap_or_default();
    let value = match result.structured_content {
        Some(value) => value,
        None if result.content.is_empty() => Value::Null,
        None => text().unwrap_or_else(blocks),
    };
    ToolResult::Done(value)
}

/// The text of the blocks, one line after the other. If another block is among them, the caller gets all blocks instead,
/// because nothing may be left out silently.
fn text_of(blocks: &[ContentBlock]) -> Option<String> {
    let text = |block: &ContentBlock| block.as_text().map(|text| text.text.clone());
    let texts: Option<Vec<String>> = blocks.iter().map(text).collect();
    texts.map(|texts| texts.join("\n"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(result: Value) -> ToolResult {
        read_result(serde_json::from_value(result).unwrap())
    }

    #[test]
    fn structured_content_counts_before_text_and_text_before_blocks() {
        let text = |text: &str| json!({"type": "text", "text": text});
        let image = json!({"type": "image", "data": "AA==", "mimeType": "image/png"});
        for (result, expected) in [
            (json!({"content": [text("1")], "structuredContent": {"a": 2}}), json!({"a": 2})),
            (json!({"content": [text("{\"a\":"), text("1}")]}), json!({"a": 1})),
            (json!({"content": [text("one"), text("two")]}), json!("one\ntwo")),
            (json!({"content": [text("one"), image.clone()]}), json!([text("one"), image.clone()])),
            (json!({"content": []}), Value::Null),
            (json!({"content": [], "isError": false}), Value::Null),
        ] {
            assert_eq!(read(result), ToolResult::Done(expected));
        }
    }

    #[test]
    fn a_tool_that_failed_says_why() {
        let failed = json!({"content": [{"type": "text", "text": "no such city"}], "isError": true});
        assert_eq!(read(failed), ToolResult::Failed("no such city".to_owned()));
    }
}
