//! The client against a gateway of few words, which does what a real one does on its worst day.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod calls;
mod stage;
mod streams;
