//! The way out of a sandbox, attacked from inside: over real sockets, with loopback standing in for the internet.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]
#![expect(clippy::print_stdout, reason = "what was not tried has to be said")]

mod harness;
mod origin;

// What is decided.
mod addresses;
mod rules;
// What passes and what does not.
mod plain;
mod reach;
mod records;
mod smuggling;
mod tunnels;
// What must not last or grow.
mod limits;
// Those who really use it.
mod clients;
