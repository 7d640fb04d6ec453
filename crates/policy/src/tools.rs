//! `tools.yaml`: HTTP tools that a team can add without writing code.

use serde_json::Value;

use crate::error::Mistake;
use crate::fields::{Fields, LocatedText, items, one_of};
use crate::lanes::{TableWrite, check_unique, write};
use crate::modes::{ModeKey, Risk};
use crate::yaml::{Kind, Node};

#[derive(Clone, Debug, PartialEq)]
pub struct HttpTool {
    pub name: String,
    pub method: Method,
    pub url: String,
    pub timeout_ms: u64,
    pub auth: Auth,
    /// The JSON schema of the parameters; an empty object accepts anything.
    pub schema: Value,
    pub risk: Risk,
    /// A description of the tool, for agents and for the people who approve its calls.
    pub description: String,
    /// The table that the tool writes to; a lane must list this write.
    pub writes: Option<TableWrite>,
    pub(crate) line: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl HttpTool {
    pub fn mode_key(&self) -> ModeKey {
        ModeKey::of_tool(&self.name)
    }
}

/// The tool's credential; `key` names a secret of the organization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Auth {
    None,
    Bearer { key: String },
    Header { name: String, key: String },
}

const HTTP_METHODS: [(&str, Method); 5] = [
    ("GET", Method::Get),
    ("POST", Method::Post),
    ("PUT", Method::Put),
    ("PATCH", Method::Patch),
    ("DELETE", Method::Delete),
];

pub(crate) fn read(node: Node) -> Result<Vec<HttpTool>, Mistake> {
    let list = if let Kind::List(items) = node.kind {
        items
    } else {
        let mut file = Fields::from_node(node, "the file")?;
        let list = items(file.require("tools")?, "tools")?;
        file.end()?;
        list
    };
    let tools = list.into_iter().map(parse_tool).collect::<Result<Vec<_>, _>>()?;
    check_unique(tools.iter().map(|tool| (&tool.name, tool.line)), "tool")?;
    Ok(tools)
}

fn parse_tool(node: Node) -> Result<HttpTool, Mistake> {
    let mut fields = Fields::from_node(node, "a tool")?;
    let line = fields.line;
    let name = fields.name("name")?;
    if name.text.contains('*') {
        return Err(Mistake::new(name.line, "the name of a tool must not contain `*`"));
    }
    let method = match fields.optional_text("method", 10)? {
        Some(found) => one_of(&found, "method", &HTTP_METHODS)?,
        None => Method::Post,
    };
    let url = url(fields.text("url", 2048)?)?;
    let timeout_ms = fields.number("timeout_ms", 1, 600_000)?.unwrap_or(30_000);
    let auth = fields.optional_text("auth", 300)?.map_or(Ok(Auth::None), |found| auth(&found))?;
    let schema = schema(fields.take("schema"))?;
    let risk = match fields.optional_text("risk", 10)? {
        Some(found) => one_of(&found, "risk", &Risk::NAMES)?,
        None => Risk::Write,
    };
    let description = fields.optional_text("description", 2000)?.map(|found| found.text).unwrap_or_default();
    let writes = fields.take("writes").map(write).transpose()?;
    fields.end()?;
    Ok(HttpTool { name: name.text, method, url, timeout_ms, auth, schema, risk, description, writes, line })
}

/// Checks only the syntax. Which addresses the tool may reach is decided when it is called.
fn url(found: LocatedText) -> Result<String, Mistake> {
    let rest = found.text.strip_prefix("https://").or_else(|| found.text.strip_prefix("http://"));
    let authority = rest.and_then(|rest| rest.split(['/', '?', '#']).next()).unwrap_or_default();
    let odd = |c: char| c.is_whitespace() || c.is_control() || c == '\\';
    if authority.is_empty() || authority.contains('@') || found.text.contains(odd) {
        let message =
            "`url` must be http:// or https:// with a host, and without a user, spaces or backslashes";
        return Err(Mistake::new(found.line, message));
    }
    Ok(found.text)
}

fn auth(found: &LocatedText) -> Result<Auth, Mistake> {
    let token = |text: &str| {
        !text.is_empty()
            && text.len() <= 200
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b))
    };
    let parts: Vec<_> = found.text.split(':').collect();
    match parts.as_slice() {
        ["none"] => Ok(Auth::None),
        ["bearer", key] if token(key) => Ok(Auth::Bearer { key: (*key).to_owned() }),
        ["header", name, key] if token(name) && token(key) => {
            Ok(Auth::Header { name: (*name).to_owned(), key: (*key).to_owned() })
        }
        _ => Err(Mistake::new(found.line, "`auth` must be none, bearer:KEY or header:NAME:KEY")),
    }
}

fn schema(node: Option<Node>) -> Result<Value, Mistake> {
    let Some(node) = node else { return Ok(Value::Object(serde_json::Map::new())) };
    match node.to_json() {
        schema @ Value::Object(_) => match schemas::measure(&schema) {
            Ok(_) => Ok(schema),
            Err(problem) => Err(Mistake::new(node.line, format!("`schema` {problem}"))),
        },
        _ => Err(Mistake::new(node.line, "`schema` must be a map: a JSON schema")),
    }
}
