//! What a record is made of: JSON that means one thing only.
//!
//! Canonical form, hashes, chain and checkpoints join this crate when the gate does; it knows no SQL and no
//! HTTP, so that an auditor can link it alone.

mod strict;

pub use strict::{StrictError, check};
