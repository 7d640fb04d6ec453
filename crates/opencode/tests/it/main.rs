//! The crate from outside: recorded streams, forged ones, and a server that says what a test wants.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]
#![expect(clippy::needless_pass_by_value, reason = "events are made where they are used, and used once")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod api;
mod events;
mod faults;
mod files;
mod forged;
mod history;
mod invariants;
mod promises;
mod recordings;
mod sse;
mod stage;
