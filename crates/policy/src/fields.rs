//! Takes the fields out of a YAML map one by one; a field that is left over at the end is a mistake.

use crate::error::Mistake;
use crate::yaml::{Entry, Kind, Node, sanitize};

pub(crate) struct Fields {
    pub(crate) line: usize,
    entries: Vec<Entry>,
}

/// A text and its line number.
#[derive(Clone, Debug)]
pub(crate) struct LocatedText {
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Fields {
    pub(crate) fn from_node(node: Node, what: &str) -> Result<Self, Mistake> {
        match node.kind {
            Kind::Map(entries) => Ok(Self { line: node.line, entries }),
            _ => Err(Mistake::new(node.line, format!("{what} must be a map"))),
        }
    }

    pub(crate) fn take(&mut self, key: &str) -> Option<Node> {
        let at = self.entries.iter().position(|entry| entry.key == key)?;
        Some(self.entries.remove(at).value)
    }

    pub(crate) fn require(&mut self, key: &str) -> Result<Node, Mistake> {
        self.take(key).ok_or_else(|| Mistake::new(self.line, format!("`{key}` is missing")))
    }

    /// A nested map, or an empty one if the key is absent.
    pub(crate) fn map(&mut self, key: &str) -> Result<Self, Mistake> {
        match self.take(key) {
            Some(node) => Self::from_node(node, &format!("`{key}`")),
            None => Ok(Self { line: self.line, entries: Vec::new() }),
        }
    }

    /// A list of nodes, or an empty one if the key is absent.
    pub(crate) fn list(&mut self, key: &str) -> Result<Vec<Node>, Mistake> {
        self.take(key).map_or(Ok(Vec::new()), |node| items(node, key))
    }

    /// A list of distinct names.
    pub(crate) fn names(&mut self, key: &str) -> Result<Vec<LocatedText>, Mistake> {
        let mut found: Vec<LocatedText> = Vec::new();
        for node in self.list(key)? {
            let name = name(node, key)?;
            if found.iter().any(|other| other.text == name.text) {
                return Err(Mistake::new(name.line, format!("`{}` is listed twice in `{key}`", name.text)));
            }
            found.push(name);
        }
        Ok(found)
    }

    pub(crate) fn text(&mut self, key: &str, most: usize) -> Result<LocatedText, Mistake> {
        text(self.require(key)?, key, most)
    }

    pub(crate) fn optional_text(&mut self, key: &str, most: usize) -> Result<Option<LocatedText>, Mistake> {
        self.take(key).map(|node| text(node, key, most)).transpose()
    }

    /// A name, as used for ids, tools, tables and scope fields.
    pub(crate) fn name(&mut self, key: &str) -> Result<LocatedText, Mistake> {
        name(self.require(key)?, key)
    }

    pub(crate) fn number(&mut self, key: &str, least: u64, most: u64) -> Result<Option<u64>, Mistake> {
        let Some(found) = self.optional_text(key, 20)? else { return Ok(None) };
        match found.text.parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => Err(Mistake::new(found.line, format!("`{key}` must be a number from {least} to {most}"))),
        }
    }

    pub(crate) fn boolean(&mut self, key: &str) -> Result<Option<bool>, Mistake> {
        let Some(found) = self.optional_text(key, 5)? else { return Ok(None) };
        match found.text.as_str() {
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            _ => Err(Mistake::new(found.line, format!("`{key}` must be true or false"))),
        }
    }

    /// Rejects fields that were not taken.
    pub(crate) fn end(self) -> Result<(), Mistake> {
        match self.entries.first() {
            None => Ok(()),
            Some(entry) => Err(Mistake::new(entry.line, format!("unknown key `{}`", sanitize(&entry.key)))),
        }
    }
}

pub(crate) fn items(node: Node, key: &str) -> Result<Vec<Node>, Mistake> {
    match node.kind {
        Kind::List(items) => Ok(items),
        _ => Err(Mistake::new(node.line, format!("`{key}` must be a list"))),
    }
}

/// Parses one of a fixed set of words.
pub(crate) fn one_of<T: Copy>(found: &LocatedText, key: &str, words: &[(&str, T)]) -> Result<T, Mistake> {
    words.iter().find(|(word, _)| *word == found.text).map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        Mistake::new(found.line, format!("`{key}` must be one of {}", known.join(", ")))
    })
}

fn text(node: Node, key: &str, most: usize) -> Result<LocatedText, Mistake> {
    match node.kind {
        Kind::Text { text, .. } if (1..=most).contains(&text.chars().count()) => {
            Ok(LocatedText { line: node.line, text })
        }
        _ => Err(Mistake::new(node.line, format!("`{key}` must be a text of 1 to {most} characters"))),
    }
}

/// Names are used in rule ids and logs, so they contain only characters that never need escaping there.
pub(crate) fn name(node: Node, key: &str) -> Result<LocatedText, Mistake> {
    let found = text(node, key, 80)?;
    let right = |c: char| c.is_ascii_alphanumeric() || "_-.:/*@".contains(c);
    if found.text.chars().all(right) {
        Ok(found)
    } else {
        Err(Mistake::new(
            found.line,
            format!("`{key}` contains a name with characters other than letters, digits and _-.:/*@"),
        ))
    }
}
