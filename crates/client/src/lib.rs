//! A Rust client for the gateway's public API: sessions over HTTP, and their event stream over a `WebSocket`
//! that reconnects automatically.
//!
//! It depends only on the wire types (`proto`) and not on the gateway's internals, so that any other program
//! can do the same.

mod client;
mod error;
mod stream;

pub use client::Client;
pub use error::Error;
pub use stream::{Event, Stream, Watch};
