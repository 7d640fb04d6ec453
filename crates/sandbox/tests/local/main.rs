//! The local provider with real sandboxes, as root and as an ordinary user.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![expect(clippy::print_stdout, reason = "what was not tried has to be said")]
#![expect(clippy::expect_used, reason = "a test that cannot go on ends here")]

mod isolation;
mod leaks;
mod lifecycle;
mod limits;
mod rootless;
mod support;
