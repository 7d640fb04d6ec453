//! The trait of all sandbox providers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;

use crate::error::SandboxError;
use crate::spec::{SandboxId, SnapshotId, Spec};

/// A connection into or out of a sandbox. Its other end is hostile.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// A connection that a program inside made to an injected port.
pub struct InjectedConnection {
    pub port: u16,
    pub stream: Box<dyn ByteStream>,
}

/// What a snapshot leaves out, by paths relative to the home.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Left out with everything below them.
    pub directories: Vec<PathBuf>,
    /// Left out only if they are regular files: a list that names a directory as a file must not lose what is in it.
    pub files: Vec<PathBuf>,
}

/// The result of [`Provider::ensure`]: a running sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnsureOutcome {
    pub id: SandboxId,
    /// The sandbox was already running and keeps its memory; apart from the id, the spec was not applied.
    pub recovered: bool,
    /// The sandbox had no files before this start: a caller that undoes the start may remove them.
    pub made_files: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SandboxState {
    Running,
    Paused,
    /// It ran and has ended; its files still exist.
    Dead,
    /// Its start was interrupted before its files were complete, so it has none and never ran.
    Incomplete,
    /// The provider cannot tell, so nothing may be concluded, least of all that it is dead.
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxInfo {
    pub id: SandboxId,
    pub state: SandboxState,
}

/// The party that stops an unused sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpiryOwner {
    Gateway,
    Provider,
    /// Somebody else runs it: never stop it, only disconnect.
    Nobody,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    Namespaces,
    Remote,
    None,
}

/// The calls that a provider supports; all others return [`SandboxError::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub struct Capabilities {
    pub memory_pause: bool,
    pub durable_snapshot: bool,
    pub fork: bool,
    pub injected_ports: bool,
    /// It starts and stops the processes of its sandboxes; if not, `terminate` only forgets the sandbox.
    pub owns_processes: bool,
    pub expiry: ExpiryOwner,
    pub isolation: Isolation,
}

/// Changes the copied files of a sandbox's home before they become a snapshot. What they contain is hostile.
pub type CleanCopy = Arc<dyn Fn(&Path) -> io::Result<()> + Send + Sync>;

/// A provider of sandboxes. Calls for different sandboxes run concurrently, calls for the same sandbox one at a
/// time.
#[async_trait]
pub trait Provider: Send + Sync {
    fn capabilities(&self) -> Capabilities;

    /// Finds the running sandbox or starts it: from its own files if they exist, otherwise from the snapshot,
    /// otherwise empty. A paused sandbox is resumed. A failed start leaves nothing behind.
    async fn ensure(&self, spec: &Spec) -> Result<EnsureOutcome, SandboxError>;

    /// Copies the files under a new name that outlives the sandbox. What is left out stays in the sandbox and is never
    /// written to the copy. The copy counts only when it was cleaned, which happens while the sandbox goes on.
    async fn snapshot(
        &self,
        id: &SandboxId,
        without: &LeftOut,
        clean: CleanCopy,
    ) -> Result<SnapshotId, SandboxError>;

    async fn remove_snapshot(&self, id: &SnapshotId) -> Result<(), SandboxError>;

    /// Freezes all processes and keeps their memory.
    async fn pause(&self, id: &SandboxId) -> Result<(), SandboxError>;

    async fn resume(&self, id: &SandboxId) -> Result<(), SandboxError>;

    /// Kills all processes and keeps the files. Succeeds if there is nothing to stop.
    async fn halt(&self, id: &SandboxId) -> Result<(), SandboxError>;

    /// Stops the sandbox and removes its files. Succeeds if it does not exist.
    async fn terminate(&self, id: &SandboxId) -> Result<(), SandboxError>;

    /// Why the provider stopped a sandbox that exceeded a limit, in words for people, if it was not started again
    /// since.
    async fn stop_reason(&self, _id: &SandboxId) -> Option<String> {
        None
    }

    /// All sandboxes of this provider. Changes nothing.
    async fn list(&self) -> Result<Vec<SandboxInfo>, SandboxError>;

    /// Connects to a port on the sandbox's loopback.
    async fn dial(&self, id: &SandboxId, port: u16) -> Result<Box<dyn ByteStream>, SandboxError>;

    /// Connections from programs inside to the injected ports, until the receiver is dropped.
    async fn listeners(&self, id: &SandboxId) -> Result<mpsc::Receiver<InjectedConnection>, SandboxError>;
}
