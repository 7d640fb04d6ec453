//! Sandboxes in which an agent's code runs, behind one trait, and the providers that need no external account.
//!
//! Everything that comes from inside a sandbox is hostile: its files, its connections, its output. Providers know
//! nothing of tools, agents or sessions; they start a program as PID 1, carry bytes to and from its ports, and
//! pause, copy and stop it.
//!
//! - [`local`]: bubblewrap in separate namespaces, the default.
//! - [`attach`]: a sandbox that somebody else runs at a URL.
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
    ByteStream, Capabilities, CleanCopy, EnsureOutcome, ExpiryOwner, InjectedConnection, Isolation, LeftOut,
    Provider, SandboxInfo, SandboxState,
};
pub use spec::{Limits, SandboxId, SnapshotId, Spec};
pub use tree::TreeError;
