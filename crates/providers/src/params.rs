//! The parameters of a call. The gate has validated them by the action's schema; a value that is missing nevertheless
//! is an error and not a panic.

use serde_json::{Map, Value};

/// Parameters that do not make a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("Invalid params: {0}")]
pub struct InvalidParams(pub String);

/// The parameters of a call, as an object.
pub struct Params<'a>(&'a Map<String, Value>);

impl<'a> Params<'a> {
    pub(crate) fn new(params: &'a Value) -> Result<Self, InvalidParams> {
        params.as_object().map(Self).ok_or_else(|| InvalidParams("they must be an object".to_owned()))
    }

    pub(crate) fn text(&self, name: &str) -> Result<&'a str, InvalidParams> {
        self.optional_text(name).ok_or_else(|| InvalidParams(format!("{name} is required")))
    }

    pub(crate) fn optional_text(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).and_then(Value::as_str)
    }

    /// A whole number, as text for a path.
    pub(crate) fn number(&self, name: &str) -> Result<String, InvalidParams> {
        let found = self.0.get(name).and_then(Value::as_u64);
        found.map(|number| number.to_string()).ok_or_else(|| InvalidParams(format!("{name} is required")))
    }

    /// The parameters with these names that the call has, under the same names.
    pub(crate) fn only(&self, names: &[&str]) -> Map<String, Value> {
        let found = names.iter().filter_map(|name| Some(((*name).to_owned(), self.0.get(*name)?.clone())));
        found.collect()
    }
}
