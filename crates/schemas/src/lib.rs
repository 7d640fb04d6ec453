//! JSON Schemas that somebody else wrote: an operator of an organization, or an MCP server. A small schema can make a
//! validator take exponential time, or memory for millions of errors. So a schema has limits ([`measure`]), what it costs to
//! validate a value is counted before it is done ([`cost`]), and compiled schemas are kept up to a size ([`Compiled`]).

mod compiled;
mod cost;
mod limits;

pub use compiled::{Compiled, Problems};
pub use cost::{Budget, Cost, OverBudget, cost};
pub use limits::{MAX_NODES, MAX_PATTERNS, SchemaError, Size, measure};
