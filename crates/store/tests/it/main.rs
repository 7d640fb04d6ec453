//! The guarantees of the store: each test runs on a fresh SQLite file and on a fresh PostgreSQL database; what only one
//! of them has is tested there.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod action_modes;
mod backend;
mod world;

// The public calls.
mod automations;
mod credentials;
mod decisions;
mod egress;
mod events;
mod fencing;
mod found;
mod gate;
mod idempotency;
mod identity;
mod instance_lock;
mod lock_order;
mod log_model;
mod logins;
mod prompts;
mod questions;
mod sandboxes;
mod sessions;
mod snapshots;
mod states;
mod transcripts;
mod usage;
mod vault;
mod workspaces;
// The schema.
mod catalog;
mod ledger;
mod refused;
mod vocabulary;
// The file and the server below.
mod backup;
mod broken;
mod concurrency;
mod existing;
mod opening;
mod probing;
