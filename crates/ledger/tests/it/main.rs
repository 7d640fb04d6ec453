//! The ledger from outside: what an auditor sees, and what an attacker tries.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot go on must fail")]

mod common;
mod records;
mod tampering;
mod verification;
