//! The client against the reference server, the public conformance suite, and servers that mean harm.
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod conformance;
mod everything;
mod hostile;
mod scripted;
mod tools;
