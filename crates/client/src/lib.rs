//! The gateway's public API from Rust: sessions over HTTP, and their stream over a `WebSocket` that comes back by itself.
//!
//! It knows the words (`proto`) and nothing of how the gateway keeps them, so that whatever it can do, anybody's
//! program can do.

mod client;
mod error;
mod stream;

pub use client::Client;
pub use error::Error;
pub use stream::{Event, Stream, Watch};
