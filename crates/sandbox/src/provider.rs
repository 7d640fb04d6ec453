//! What every provider of sandboxes can be asked, whatever runs them.

use std::path::PathBuf;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::error::SandboxError;
use crate::spec::{SandboxId, SnapshotId, Spec};

/// A connection into or out of a sandbox. Its other end is hostile.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection that a program inside made to an injected port.
pub struct Injected {
    pub port: u16,
    pub stream: Box<dyn ByteStream>,
}

/// A sandbox that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ensured {
    pub id: SandboxId,
    /// It ran already and goes on with its memory; what the spec says beside the id was not applied.
    pub recovered: bool,
    /// It had no files before: whoever takes this start back may remove them.
    pub made_files: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxState {
    Running,
    Paused,
    /// It ran and is over; its files are there.
    Dead,
    /// Its start was cut off before its files were whole, so it has none and never ran.
    Unmade,
    /// The provider cannot tell, so nothing may be concluded, least of all that it is dead.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub id: SandboxId,
    pub state: SandboxState,
}

/// Who ends a sandbox that nobody uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryOwner {
    Gateway,
    Provider,
    /// Somebody else runs it: never end it, only disconnect.
    Nobody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    Namespaces,
    Remote,
    None,
}

/// What a provider can do; the rest of its calls answer [`SandboxError::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent questions with yes or no for an answer")]
pub struct Capabilities {
    pub memory_pause: bool,
    pub durable_snapshot: bool,
    pub fork: bool,
    pub injected_ports: bool,
    /// It starts and ends what it provides; if not, `terminate` only forgets.
    pub owns_processes: bool,
    pub expiry: ExpiryOwner,
    pub isolation: Isolation,
}

/// One way to have sandboxes. Calls about different sandboxes run beside each other, calls about one wait in line.
#[async_trait]
pub trait Provider: Send + Sync {
    fn capabilities(&self) -> Capabilities;

    /// Finds the sandbox running, else starts it: from its own files if they are there, else from the snapshot, else
    /// empty. A paused one is resumed. When this fails, nothing of the attempt is left behind.
    async fn ensure(&self, spec: &Spec) -> Result<Ensured, SandboxError>;

    /// Keeps a copy of the files under a new name that outlives the sandbox, without these files and folders of the
    /// home. They stay where they are in the sandbox, and were never in the copy.
    async fn snapshot(&self, id: &SandboxId, without: &[PathBuf]) -> Result<SnapshotId, SandboxError>;

    async fn remove_snapshot(&self, id: &SnapshotId) -> Result<(), SandboxError>;

    /// Stops all processes and keeps their memory.
    async fn pause(&self, id: &SandboxId) -> Result<(), SandboxError>;

    async fn resume(&self, id: &SandboxId) -> Result<(), SandboxError>;

    /// Ends all processes and keeps the files. Ending what is not there succeeds.
    async fn halt(&self, id: &SandboxId) -> Result<(), SandboxError>;

    /// Ends the sandbox and removes its files. Ending what is not there succeeds.
    async fn terminate(&self, id: &SandboxId) -> Result<(), SandboxError>;

    /// Why the provider itself ended a sandbox that took too much, in words for people, if it has not been started since.
    async fn ended_for(&self, _id: &SandboxId) -> Option<String> {
        None
    }

    /// All sandboxes of this provider. Changes nothing.
    async fn list(&self) -> Result<Vec<Listed>, SandboxError>;

    /// Connects to a port of the sandbox's own loopback.
    async fn dial(&self, id: &SandboxId, port: u16) -> Result<Box<dyn ByteStream>, SandboxError>;

    /// Connections that programs inside make to the injected ports, until the receiver is dropped.
    async fn listeners(&self, id: &SandboxId) -> Result<mpsc::Receiver<Injected>, SandboxError>;
}
