//! `proliferate sandboxd`: PID 1 inside a sandbox, and the host's client for it.
//!
//! [`inside`] runs where the agent runs, under the agent's own uid: it believes nobody who has not proved the key that
//! came to it on its standard input. [`client`] runs in the gateway and believes nothing that the inside says: every
//! answer is bounded, typed and timed. Between them is one [`channel`], and on it the words of [`protocol`].

pub mod client;
pub mod inside;
pub mod protocol;

pub use client::{ClientError, ExecHandle, Sandboxd};
