//! `proliferate sandboxd`: the server that runs as PID 1 inside a sandbox, and the gateway's client for it.
//!
//! [`server`] runs next to the agent, under the agent's uid: it accepts only peers that prove the key it received
//! on its standard input. [`client`] runs in the gateway and trusts nothing that the sandbox sends: every answer
//! has a size limit, a type and a timeout. They talk over one [`channel`] in the messages of [`protocol`].

pub mod client;
pub mod protocol;
pub mod server;

pub use client::{ClientError, ExecHandle, Sandboxd};
