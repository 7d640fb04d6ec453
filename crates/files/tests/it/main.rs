//! The files that need care, on real file systems and with real databases.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

mod mask;
