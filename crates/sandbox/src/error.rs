//! Why a sandbox could not be had, and what to do about it. No text holds a key, an environment value or anything
//! that a program inside has printed.

use std::io;

use crate::spec::{SandboxId, SnapshotId};
use crate::tree::TreeError;

/// Something that not every provider can do.
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

/// Why a call of a provider failed.
#[derive(Debug, thiserror::Error)]
pub enum SandboxError {
    #[error("an id is 1 to 64 of a-z, 0-9 and '-': use such a one")]
    BadId,
    #[error("the sandbox cannot be described so: {0}")]
    BadSpec(&'static str),
    #[error("this provider has no {0}: choose a provider that has, or do without")]
    Unsupported(Capability),
    #[error("there is no sandbox {0}: it was ended or never started; start it again")]
    NotFound(SandboxId),
    #[error("there is no snapshot {0}: it was removed or never made; start without it")]
    NoSnapshot(SnapshotId),
    #[error("bubblewrap is missing: install the package `bubblewrap` or set where it is")]
    BubblewrapMissing,
    #[error(
        "this host forbids user namespaces: allow them (kernel.unprivileged_userns_clone, AppArmor) for the gateway"
    )]
    NamespacesForbidden,
    #[error("all host user ids of the range are in use: end sandboxes or configure a larger range")]
    UidsExhausted,
    #[error("the sandbox did not start: {0}")]
    StartFailed(String),
    #[error("the program inside ended at once: look at the sandbox's log")]
    InitExited,
    #[error(
        "the sandbox was not ready in time ({0}): the host is overloaded or the program inside hangs; try again"
    )]
    Timeout(&'static str),
    #[error("nothing accepts connections on port {port} inside: {kind}")]
    Refused { port: u16, kind: io::ErrorKind },
    #[error("the other side is not trusted ({0}): name the file of its authority in SSL_CERT_FILE")]
    Tls(String),
    #[error(
        "an https attach URL needs authorities to trust, and none were found: install `ca-certificates`, or name a file in SSL_CERT_FILE"
    )]
    NoAuthorities,
    #[error("port {0} inside is taken by another program: end the sandbox and start it again")]
    PortTaken(u16),
    #[error("the socket broker of the sandbox died: try again, a new one is started")]
    BrokerDied,
    #[error("the disk is full: free space or lower the number of sandboxes")]
    DiskFull,
    #[error(
        "its files take more than {} and the disk limit is {}: an operator can remove files below the data directory, in \
         `sandboxes/sandboxes/ID/home`, or raise SANDBOX_DISK_MIB and restart the gateway; `proliferate session stop \
         --discard ID` gives the files up",
        mebibytes(*.most), mebibytes(*.limit)
    )]
    OverDisk { limit: u64, most: u64 },
    #[error("the files inside could not be handled: {0}")]
    Tree(#[source] TreeError),
    #[error("the provider's records of this sandbox cannot be read ({0}): look at the data folder by hand")]
    Records(&'static str),
    #[error("the host refused `{what}`: {kind}")]
    Host { what: &'static str, kind: io::ErrorKind },
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes / (1024 * 1024))
}

impl SandboxError {
    /// Says which step of ours the host refused; a full disk is its own case, as the operator can mend it.
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
