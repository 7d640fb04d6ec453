//! Attacks on the proxy from inside a sandbox: over real sockets, with loopback standing in for the internet.
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]
#![expect(clippy::print_stdout, reason = "skipped clients must be reported")]

mod harness;
mod origin;

// Decisions.
mod addresses;
mod rules;
// Traffic.
mod plain;
mod reach;
mod records;
mod smuggling;
mod tunnels;
// Limits.
mod limits;
// Real clients.
mod clients;
