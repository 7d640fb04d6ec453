//! The channel between the gateway and the process inside a sandbox: it multiplexes many streams over one
//! connection between two sides that do not trust each other.
//!
//! [`connect`] and [`accept`] perform the [`handshake`], in which both sides prove a shared key, and return a
//! handle and a [`Driver`] to spawn. The caller [opens](Caller::open) streams with a request, the callee
//! [accepts](Incoming::next) them, and the documentation of [`Stream`] explains how exec, files and port forwarding
//! use one.
//!
//! The sandbox side is considered hostile even though it holds the key: frames have a maximum size ([`frame`]),
//! every stream has a flow control window that bounds its memory, and a peer that floods, lies, stalls or falls
//! silent is disconnected with a [`ChannelError`] that says why. This crate knows nothing of sandboxes, HTTP or
//! SQL.

mod batch;
mod driver;
mod error;
pub mod frame;
pub mod handshake;
mod limits;
mod mux;
mod peer;
mod stream;
mod window;

pub use driver::Driver;
pub use error::{ChannelError, StreamError, Violation};
pub use frame::{Lane, MAX_PAYLOAD};
pub use handshake::{HandshakeError, Key};
pub use limits::{CHUNK_OVERHEAD, CONTROL_WINDOW, Limits, MAX_CONTROL, WINDOW};
pub use mux::Usage;
pub use peer::{Caller, Incoming, accept, connect};
pub use stream::{Controls, Receiver, Sender, Stream};
pub use window::Chunk;
