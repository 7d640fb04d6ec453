//! The policy from outside: files, decisions, modes, comparisons.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod common;
mod comparisons;
mod decisions;
mod files;
mod modes;
mod properties;
