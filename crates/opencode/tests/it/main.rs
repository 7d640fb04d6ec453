//! The crate from outside: recorded streams, forged ones, and a server that says what a test wants.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod events;
mod faults;
mod forged;
mod history;
mod invariants;
mod recordings;
mod silence;
mod sse;
mod stage;
