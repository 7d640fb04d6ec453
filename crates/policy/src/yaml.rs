//! Parses the unambiguous subset of YAML: maps, lists and texts, each with its line number.
//!
//! Anchors, aliases, tags, multiple documents and duplicate keys are rejected, so that a file cannot expand
//! while it is parsed and two parsers cannot read it differently. `no` is the text "no" unless a field
//! expects a boolean.

use std::collections::HashSet;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};
use serde_json::Value;

use crate::error::Mistake;

/// Larger than any policy that people maintain by hand.
const MAX_BYTES: usize = 1 << 20;
const MAX_NODES: usize = 100_000;
const MAX_DEPTH: usize = 24;

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) line: usize,
    pub(crate) kind: Kind,
}

#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// `plain` texts are unquoted; only they can be numbers or booleans.
    Text {
        text: String,
        plain: bool,
    },
    List(Vec<Node>),
    Map(Vec<Entry>),
}

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) line: usize,
    pub(crate) value: Node,
}

/// Parses a file of another kind, which may also be JSON. The error names the line.
pub fn parse_yaml(text: &str) -> Result<Value, String> {
    let parsed = read(text).map_err(|mistake| format!("line {}: {}", mistake.line, mistake.message))?;
    Ok(parsed.to_json())
}

/// Parses a file with exactly one document.
pub(crate) fn read(text: &str) -> Result<Node, Mistake> {
    if text.len() > MAX_BYTES {
        return Err(Mistake::new(1, format!("the file has more than {MAX_BYTES} bytes")));
    }
    let mut reader = Reader { events: Parser::new_from_str(text), nodes: 0 };
    let document = loop {
        match reader.next()? {
            (Event::StreamStart | Event::DocumentStart(_) | Event::Nothing, _) => {}
            (Event::StreamEnd, at) => return Err(Mistake::new(line(at), "the file is empty")),
            (event, at) => break reader.node(event, at, 0)?,
        }
    };
    loop {
        match reader.next()? {
            (Event::DocumentEnd | Event::Nothing, _) => {}
            (Event::StreamEnd, _) => return Ok(document),
            (_, at) => {
                return Err(Mistake::new(
                    line(at),
                    "a second document starts here; a file must contain one document",
                ));
            }
        }
    }
}

struct Reader<'a> {
    events: Parser<'a, saphyr_parser::StrInput<'a>>,
    nodes: usize,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Mistake> {
        match self.events.next_event() {
            Some(Ok(found)) => Ok(found),
            Some(Err(error)) => Err(Mistake::new(error.marker().line(), error.info())),
            None => Err(Mistake::new(1, "the file ends unexpectedly")),
        }
    }

    fn node(&mut self, event: Event<'a>, at: Span, depth: usize) -> Result<Node, Mistake> {
        let line = line(at);
        self.nodes += 1;
        if self.nodes > MAX_NODES || depth > MAX_DEPTH {
            return Err(Mistake::new(line, "the file is nested too deeply or has too many entries"));
        }
        let kind = match event {
            Event::Alias(_) => {
                return Err(Mistake::new(line, "aliases (*name) are not supported; repeat the value"));
            }
            Event::Scalar(_, _, 1.., _) | Event::SequenceStart(1.., _) | Event::MappingStart(1.., _) => {
                return Err(Mistake::new(line, "anchors (&name) are not supported; repeat the value"));
            }
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => {
                return Err(Mistake::new(line, "tags (!name) are not supported; remove the tag"));
            }
            Event::Scalar(text, style, ..) => {
                Kind::Text { text: text.into_owned(), plain: style == ScalarStyle::Plain }
            }
            Event::SequenceStart(..) => Kind::List(self.list(depth)?),
            Event::MappingStart(..) => Kind::Map(self.map(depth)?),
            _ => return Err(Mistake::new(line, "a value is missing")),
        };
        Ok(Node { line, kind })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, Mistake> {
        let mut items = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(items),
                (event, at) => items.push(self.node(event, at, depth + 1)?),
            }
        }
    }

    fn map(&mut self, depth: usize) -> Result<Vec<Entry>, Mistake> {
        let mut entries = Vec::new();
        let mut keys = HashSet::new();
        loop {
            let (event, at) = self.next()?;
            if event == Event::MappingEnd {
                return Ok(entries);
            }
            let Node { line, kind: Kind::Text { text: key, .. } } = self.node(event, at, depth + 1)? else {
                return Err(Mistake::new(line(at), "a key must be a text"));
            };
            if !keys.insert(key.clone()) {
                return Err(Mistake::new(line, format!("duplicate key `{}`", sanitize(&key))));
            }
            let (event, at) = self.next()?;
            let value = self.node(event, at, depth + 1)?;
            entries.push(Entry { key, line, value });
        }
    }
}

impl Node {
    /// Converts to JSON, for schemas: a plain text that is a JSON null, boolean or number becomes that value.
    pub(crate) fn to_json(&self) -> Value {
        match &self.kind {
            Kind::Text { text, plain: true } if text.is_empty() || text == "~" => Value::Null,
            Kind::Text { text, plain: true } => match serde_json::from_str(text) {
                Ok(value @ (Value::Null | Value::Bool(_) | Value::Number(_))) => value,
                _ => text.as_str().into(),
            },
            Kind::Text { text, plain: false } => text.as_str().into(),
            Kind::List(items) => items.iter().map(Self::to_json).collect(),
            Kind::Map(entries) => {
                entries.iter().map(|entry| (entry.key.clone(), entry.value.to_json())).collect()
            }
        }
    }
}

/// Prepares a name from the file for a message: shortened, and without control characters that a terminal
/// would interpret.
pub(crate) fn sanitize(name: &str) -> String {
    name.chars().take(60).map(|c| if c.is_control() { '?' } else { c }).collect()
}

fn line(at: Span) -> usize {
    at.start.line().max(1)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn mistake(text: &str) -> String {
        read(text)
            .map_or_else(|mistake| format!("{}: {}", mistake.line, mistake.message), |_| "ok".to_owned())
    }

    #[test]
    fn parses_maps_lists_and_texts() {
        let text = "a: [x, 'y', \"z\"]\nb:\n  - c: 1\n    d: no\n  - ~\n";
        assert_eq!(
            read(text).unwrap().to_json(),
            json!({"a": ["x", "y", "z"], "b": [{"c": 1, "d": "no"}, null]})
        );
    }

    #[test]
    fn ambiguous_or_expanding_yaml_is_rejected_with_its_line() {
        for (text, expected) in [
            ("a: 1\nb: 2\na: 3\n", "3: duplicate key `a`"),
            ("a: &x 1\n", "1: anchors"),
            ("a: &x [1]\nb: *x\n", "1: anchors"),
            ("a: !!str 1\n", "1: tags"),
            ("a: 1\n---\nb: 2\n", "2: a second document"),
            ("", "1: the file is empty"),
            ("? [a]\n: b\n", "1: a key must be a text"),
            ("a: [1\n", "2: "),
            ("a:\n\t- b\n", "2: "),
        ] {
            assert!(mistake(text).starts_with(expected), "{text:?}: {}", mistake(text));
        }
        assert!(mistake(&"[".repeat(100)).contains("too deeply"));
        assert!(mistake(&"a: 1\n".repeat(300_000)).contains("bytes"));
        assert!(mistake(&format!("[{}]", "a,".repeat(100_001))).contains("too many"));
    }
}
