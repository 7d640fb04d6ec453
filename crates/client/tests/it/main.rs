//! The client against a scripted gateway that misbehaves in various ways.

#![expect(clippy::unwrap_used, reason = "a failed precondition must fail the test")]
#![expect(clippy::panic, reason = "test helpers may panic like tests")]

mod calls;
mod script;
mod streams;
