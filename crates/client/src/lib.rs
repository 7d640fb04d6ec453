//! A Rust client for the gateway's public API: sessions and workspaces over HTTP, and the event stream of a session over a `WebSocket`
//! that reconnects automatically.
//!
//! It depends only on the wire types (`proto`) and not on the gateway's internals, so that any other program
//! can do the same.

mod actions;
mod automations;
mod changes;
mod client;
mod connectors;
mod databases;
mod environment;
mod error;
mod identity;
mod integrations;
mod notifications;
mod preferences;
mod sandbox;
mod stream;
mod workspaces;

pub use changes::{ChangeEvent, ChangeStream};
pub use client::Client;
pub use error::Error;
pub use sandbox::{Download, ExecOutput};
pub use stream::{Event, Stream, Watch};
