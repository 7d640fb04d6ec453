//! The crate's public API: recorded streams, forged streams, and a scripted server.

#![expect(clippy::unwrap_used, reason = "test helpers may panic like tests")]
#![expect(clippy::needless_pass_by_value, reason = "events are built inline and used once")]
#![expect(clippy::panic, reason = "test helpers may panic like tests")]

mod api;
mod client_invariants;
mod events;
mod faults;
mod files;
mod harness;
mod history;
mod hostile;
mod invariants;
mod recordings;
mod silence;
mod sse;
