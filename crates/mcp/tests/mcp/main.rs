//! The client against the reference server, the public conformance suite, and servers that mean harm.
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]

mod conformance;
mod everything;
mod hostile;
mod scripted;
mod tools;
