//! A real worker on a loopback port, and the client connected to it.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod common;
mod dialling;
mod envfiles;
mod exec;
mod files;
mod hostile;
mod reaper;
mod services;
mod terminal;
