//! Takes the fields out of a map, one by one; what is left over at the end is a mistake.

use crate::error::Mistake;
use crate::yaml::{Entry, Kind, Node, shown};

pub(crate) struct Fields {
    pub(crate) line: usize,
    entries: Vec<Entry>,
}

/// A text and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Fields {
    pub(crate) fn of(node: Node, what: &str) -> Result<Self, Mistake> {
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

    /// A map inside; an empty one if it is not there.
    pub(crate) fn map(&mut self, key: &str) -> Result<Self, Mistake> {
        match self.take(key) {
            Some(node) => Self::of(node, &format!("`{key}`")),
            None => Ok(Self { line: self.line, entries: Vec::new() }),
        }
    }

    /// A list of nodes; an empty one if it is not there.
    pub(crate) fn list(&mut self, key: &str) -> Result<Vec<Node>, Mistake> {
        self.take(key).map_or(Ok(Vec::new()), |node| items(node, key))
    }

    /// A list of names, each once.
    pub(crate) fn names(&mut self, key: &str) -> Result<Vec<Located>, Mistake> {
        let mut found: Vec<Located> = Vec::new();
        for node in self.list(key)? {
            let name = name(node, key)?;
            if found.iter().any(|other| other.text == name.text) {
                return Err(Mistake::new(name.line, format!("`{}` stands in `{key}` twice", name.text)));
            }
            found.push(name);
        }
        Ok(found)
    }

    /// A text of 1 to `most` characters.
    pub(crate) fn text(&mut self, key: &str, most: usize) -> Result<Located, Mistake> {
        text(self.require(key)?, key, most)
    }

    pub(crate) fn optional_text(&mut self, key: &str, most: usize) -> Result<Option<Located>, Mistake> {
        self.take(key).map(|node| text(node, key, most)).transpose()
    }

    /// A name: what ids, tools, tables and scope fields are called.
    pub(crate) fn name(&mut self, key: &str) -> Result<Located, Mistake> {
        name(self.require(key)?, key)
    }

    pub(crate) fn number(&mut self, key: &str, least: u64, most: u64) -> Result<Option<u64>, Mistake> {
        let Some(found) = self.optional_text(key, 20)? else { return Ok(None) };
        match found.text.parse::<u64>() {
            Ok(number) if (least..=most).contains(&number) => Ok(Some(number)),
            _ => Err(Mistake::new(found.line, format!("`{key}` must be a number from {least} to {most}"))),
        }
    }

    pub(crate) fn truth(&mut self, key: &str) -> Result<Option<bool>, Mistake> {
        let Some(found) = self.optional_text(key, 5)? else { return Ok(None) };
        match found.text.as_str() {
            "true" => Ok(Some(true)),
            "false" => Ok(Some(false)),
            _ => Err(Mistake::new(found.line, format!("`{key}` must be true or false"))),
        }
    }

    /// Refuses what nobody took.
    pub(crate) fn end(self) -> Result<(), Mistake> {
        match self.entries.first() {
            None => Ok(()),
            Some(entry) => {
                Err(Mistake::new(entry.line, format!("the key `{}` is not known here", shown(&entry.key))))
            }
        }
    }
}

pub(crate) fn items(node: Node, key: &str) -> Result<Vec<Node>, Mistake> {
    match node.kind {
        Kind::List(items) => Ok(items),
        _ => Err(Mistake::new(node.line, format!("`{key}` must be a list"))),
    }
}

/// One of a few words.
pub(crate) fn word<T: Copy>(found: &Located, key: &str, words: &[(&str, T)]) -> Result<T, Mistake> {
    words.iter().find(|(word, _)| *word == found.text).map(|(_, value)| *value).ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        Mistake::new(found.line, format!("`{key}` must be one of {}", known.join(", ")))
    })
}

fn text(node: Node, key: &str, most: usize) -> Result<Located, Mistake> {
    match node.kind {
        Kind::Text { text, .. } if (1..=most).contains(&text.chars().count()) => {
            Ok(Located { line: node.line, text })
        }
        _ => Err(Mistake::new(node.line, format!("`{key}` must be a text of 1 to {most} characters"))),
    }
}

/// Names go into rule ids and logs, so they hold nothing that would have to be escaped there.
pub(crate) fn name(node: Node, key: &str) -> Result<Located, Mistake> {
    let found = text(node, key, 80)?;
    let right = |c: char| c.is_ascii_alphanumeric() || "_-.:/*@".contains(c);
    if found.text.chars().all(right) {
        Ok(found)
    } else {
        Err(Mistake::new(
            found.line,
            format!("`{key}` holds a name with something else than letters, digits and _-.:/*@"),
        ))
    }
}
