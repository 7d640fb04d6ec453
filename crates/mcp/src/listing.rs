//! The tools that a server offers, page by page, and what was left out of them.

use std::collections::HashSet;

use ledger::Redactor;
use serde_json::Value;

use crate::definition::{Definition, DefinitionError, Size};
use crate::problem::Problem;

/// The maximum number of tools of one server.
pub const MAX_TOOLS: usize = 500;
/// The maximum number of bytes in the canonical texts of all definitions of one server.
pub const MAX_LISTING: usize = 512 * 1024;
/// The maximum number of JSON values in all definitions of one server.
pub const MAX_LISTING_NODES: usize = 50_000;

/// About how many bytes a JSON value takes in memory, besides its text.
const BYTES_PER_VALUE: usize = 100;

/// The tools that a server offers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Listing {
    pub definitions: Vec<Definition>,
    /// Why tools were left out, once per tool. The names of such tools are not repeated: they may be anything.
    pub refused: Vec<DefinitionError>,
    /// Whether the server offers more tools than [`MAX_TOOLS`].
    pub truncated: bool,
    /// The size of all definitions.
    size: Size,
}

impl Listing {
    /// About how many bytes the definitions take in memory.
    pub fn memory(&self) -> usize {
        self.definitions
            .iter()
            .map(|definition| definition.size().text + definition.size().nodes * BYTES_PER_VALUE)
            .sum()
    }

    pub fn find(&self, name: &str) -> Option<&Definition> {
        self.definitions.iter().find(|definition| definition.name() == name)
    }

    /// Adds a page. Returns the cursor of the next page, unless the listing is full. Lists are kept in memory, so one that is
    /// too large fails.
    pub(crate) fn add(
        &mut self,
        page: Page,
        accepted: Option<&HashSet<String>>,
        secrets: &[String],
    ) -> Result<Option<String>, Problem> {
        let secrets = Redactor::new(secrets).map_err(|_| Problem::Protocol("our credential is too large"))?;
        for raw in page.tools {
            if self.definitions.len() + self.refused.len() >= MAX_TOOLS {
                self.truncated = true;
                return Ok(None);
            }
            match self.check(raw, accepted, &secrets) {
                Ok(definition) => self.push(definition)?,
                Err(error) => self.refused.push(error),
            }
        }
        Ok(page.next_cursor)
    }

    fn push(&mut self, definition: Definition) -> Result<(), Problem> {
        self.size.text += definition.size().text;
        self.size.nodes += definition.size().nodes;
        if self.size.text > MAX_LISTING || self.size.nodes > MAX_LISTING_NODES {
            return Err(Problem::Listing);
        }
        self.definitions.push(definition);
        Ok(())
    }

    fn check(
        &self,
        raw: Value,
        accepted: Option<&HashSet<String>>,
        secrets: &Redactor,
    ) -> Result<Definition, DefinitionError> {
        let definition = Definition::parse(raw)?;
        if accepted.is_some_and(|names| !names.contains(definition.name())) {
            return Err(DefinitionError::Headers);
        }
        if self.find(definition.name()).is_some() {
            return Err(DefinitionError::Duplicate);
        }
        if secrets.is_known_in(&definition.raw().to_string()) {
            return Err(DefinitionError::Secret);
        }
        Ok(definition)
    }
}

/// One page of a server's list of tools, as it was sent.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) tools: Vec<Value>,
    pub(crate) next_cursor: Option<String>,
}

impl Page {
    /// Reads a message of a server. `None` if it is not a page of tools.
    pub(crate) fn of(mut message: Value) -> Option<Self> {
        let result = message.get_mut("result")?;
        let next_cursor =
            result["nextCursor"].as_str().filter(|cursor| !cursor.is_empty()).map(str::to_owned);
        match result.get_mut("tools")?.take() {
            Value::Array(tools) => Some(Self { tools, next_cursor }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page(tools: &Value) -> Page {
        Page::of(json!({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools, "nextCursor": "2"}})).unwrap()
    }

    fn tool(name: &str) -> Value {
        json!({"name": name, "inputSchema": {"type": "object"}})
    }

    #[test]
    fn an_invalid_tool_does_not_affect_the_others() {
        let mut listing = Listing::default();
        let secret = json!({"name": "leak", "description": "uses tops3cret", "inputSchema": {}});
        let encoded = json!({"name": "b64", "description": "eHh0b3BzM2NyZXQ=", "inputSchema": {}});
        let tools = json!([tool("a"), 7, tool("a b"), tool("a"), secret, encoded, tool("b")]);
        let next = listing.add(page(&tools), None, &["tops3cret".to_owned()]).unwrap();
        assert_eq!(next.as_deref(), Some("2"));
        let names: Vec<_> = listing.definitions.iter().map(Definition::name).collect();
        assert_eq!(names, ["a", "b"]);
        let refused = [
            DefinitionError::NotAnObject,
            DefinitionError::Name,
            DefinitionError::Duplicate,
            DefinitionError::Secret,
            DefinitionError::Secret,
        ];
        assert_eq!(listing.refused, refused);
        assert!(!listing.truncated);
    }

    #[test]
    fn a_list_of_too_many_tools_is_refused_with_the_reason() {
        let mut listing = Listing::default();
        let tools: Vec<_> = (0..=MAX_TOOLS).map(|number| tool(&format!("t{number}"))).collect();
        assert_eq!(listing.add(page(&json!(tools)), None, &[]), Ok(None));
        assert_eq!((listing.definitions.len(), listing.truncated), (MAX_TOOLS, true));
    }
}
