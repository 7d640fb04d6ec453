//! The ledger's public API: what an auditor sees, and what an attacker tries.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a failed precondition must fail the test")]

mod common;
mod records;
mod redaction;
mod tampering;
mod verification;
