//! The one channel between the gateway and what runs inside a sandbox: many conversations over one byte stream, by
//! two sides that do not trust each other.
//!
//! [`connect`] and [`accept`] shake hands ([`handshake`]: both prove a shared key) and give a handle and a [`Driver`]
//! to spawn. The caller [opens](Caller::open) conversations with a request, the callee [takes](Incoming::next) them,
//! and a [`Stream`] says how exec, files and port forwarding use one.
//!
//! The inside is hostile, whoever holds the key: frames are bounded ([`frame`]), every conversation has a window and
//! nothing beyond it is held, and whoever floods, lies, stalls or falls silent is cut off with a [`ChannelError`] that
//! says why. It knows nothing of sandboxes, HTTP or SQL.

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
pub use limits::{CONTROL_WINDOW, Limits, MAX_CONTROL, PIECE_COST, WINDOW};
pub use mux::Usage;
pub use peer::{Caller, Incoming, accept, connect};
pub use stream::{Controls, Receiver, Sender, Stream};
pub use window::Chunk;
