//! Why an operation on a sandbox failed, and what to do about it. No message contains a key, an environment value
//! or output of a program inside.

use std::io;

use crate::spec::{SandboxId, SnapshotId};
use crate::tree::TreeError;

/// Something that not every provider supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    MemoryPause,
    DurableSnapshot,
    Fork,
    InjectedPorts,
}

impl std::fmt::Display for Capability {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::MemoryPause => "pause with memory kept",
            Self::DurableSnapshot => "durable snapshots",
            Self::Fork => "start from a snapshot",
            Self::InjectedPorts => "ports injected into the sandbox",
        })
    }
}

/// Why a call to a provider failed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("the id is not valid: use 1 to 64 characters of a-z, 0-9 and '-'")]
    BadId,
    #[error("the description of the sandbox is not valid: {0}")]
    BadSpec(&'static str),
    #[error("this provider does not support {0}: choose one that does, or do without")]
    Unsupported(Capability),
    #[error("sandbox {0} does not exist: it was stopped or never started; start it again")]
    NotFound(SandboxId),
    #[error("snapshot {0} does not exist: it was removed or never created; start without it")]
    NoSnapshot(SnapshotId),
    #[error("bubblewrap is missing: install the package `bubblewrap` or configure its path")]
    BubblewrapMissing,
    #[error(
        "this host forbids user namespaces: allow them (kernel.unprivileged_userns_clone, AppArmor) for the gateway"
    )]
    NamespacesForbidden,
    #[error("all host user ids of the range are in use: stop some sandboxes or configure a larger range")]
    UidsExhausted,
    #[error("the sandbox did not start: {0}")]
    StartFailed(String),
    #[error("the program inside exited immediately: see the sandbox's log")]
    InitExited,
    #[error(
        "the sandbox was not ready in time ({0}): the host is overloaded or the program inside hangs; try again"
    )]
    Timeout(&'static str),
    #[error("nothing accepts connections on port {port} inside: {kind}")]
    Refused { port: u16, kind: io::ErrorKind },
    #[error(
        "the server's certificate is not trusted ({0}): set SSL_CERT_FILE to the file of its certificate authority"
    )]
    Tls(String),
    #[error(
        "no certificate authorities were found for the https attach URL: install `ca-certificates`, or set SSL_CERT_FILE"
    )]
    NoAuthorities,
    #[error("port {0} inside is used by another program: stop the sandbox and start it again")]
    PortTaken(u16),
    #[error("the socket broker of the sandbox died: try again, which starts a new one")]
    BrokerDied,
    #[error("the disk is full: free space or lower the number of sandboxes")]
    DiskFull,
    #[error(
        "its files take more than {} and the disk limit is {}: an operator can remove files below the data directory, in \
         `sandboxes/sandboxes/ID/home`, or raise SANDBOX_DISK_MIB and restart the gateway; `proliferate session stop \
         --discard ID` discards the files",
        mebibytes(*.most), mebibytes(*.limit)
    )]
    OverDisk { limit: u64, most: u64 },
    #[error("the sandbox's files could not be processed: {0}")]
    Tree(#[source] TreeError),
    #[error("the provider's record of this sandbox is not usable ({0}): inspect the data directory")]
    Records(&'static str),
    #[error("the host could not {what}: {kind}")]
    Host { what: &'static str, kind: io::ErrorKind },
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes / (1024 * 1024))
}

impl SandboxError {
    /// Names the step that the host refused; a full disk is a separate case, because the operator can fix it.
    pub(crate) fn host(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull,
            kind => Self::Host { what, kind },
        }
    }
}

impl From<TreeError> for SandboxError {
    fn from(error: TreeError) -> Self {
        match error {
            TreeError::Io(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) => Self::DiskFull,
            other => Self::Tree(other),
        }
    }
}
