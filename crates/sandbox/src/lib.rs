//! Places where an agent's code runs, behind one trait, and the providers that need no account anywhere.
//!
//! Everything that comes from inside a sandbox is hostile: its files, its connections, its output. Providers know
//! nothing of tools, agents or what a session means; they start a program as PID 1, carry bytes to and from its
//! ports, freeze, copy and end it.
//!
//! - [`local`]: bubblewrap in namespaces of its own, the default.
//! - [`attach`]: something that somebody else runs at a URL.
//! - [`process`]: no isolation at all, only with an explicit [`process::Insecure`].

pub mod attach;
pub mod conformance;
mod error;
pub mod local;
pub mod process;
mod provider;
mod spec;
mod sys;
mod tree;

pub use error::{Capability, SandboxError};
pub use provider::{
    ByteStream, Capabilities, Ensured, ExpiryOwner, Injected, Isolation, Listed, Provider, SandboxState,
};
pub use spec::{Limits, SandboxId, SnapshotId, Spec};
pub use tree::TreeError;
