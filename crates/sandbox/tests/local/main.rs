//! Tests of the local provider with real sandboxes, as root and as an unprivileged user.
#![expect(clippy::unwrap_used, reason = "a failed step ends the test")]
#![expect(clippy::print_stdout, reason = "skipped checks must be reported")]
#![expect(clippy::expect_used, reason = "a failed step ends the test")]

mod isolation;
mod leaks;
mod lifecycle;
mod limits;
mod rootless;
mod support;
