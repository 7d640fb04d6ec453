//! The policy's public API: files, decisions, modes, comparisons.
#![expect(clippy::unwrap_used, reason = "a failed precondition must fail the test")]

mod common;
mod comparisons;
mod decisions;
mod files;
mod mode_settings;
mod modes;
mod properties;
