//! The specification of a sandbox: its id, its PID 1, its limits and its injected ports.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::error::SandboxError;

/// Binding lower ports needs a privilege that the broker does not have.
const MIN_INJECTED_PORT: u16 = 1024;
/// The number of bytes that fit into a pipe that nobody reads yet.
const MAX_STDIN: usize = 64 * 1024;
/// The total size of arguments and variables; below the kernel's limit on every host.
const MAX_ARGS_AND_ENV: usize = 96 * 1024;

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Accepts 1 to 64 of `a-z`, `0-9` and `-`, because the id becomes the name of a directory and of a
            /// control group.
            pub fn new(text: impl Into<String>) -> Result<Self, SandboxError> {
                let text = text.into();
                let ok = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
                if (1..=64).contains(&text.len()) && text.bytes().all(ok) {
                    Ok(Self(text))
                } else {
                    Err(SandboxError::BadId)
                }
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = SandboxError;
            fn try_from(text: String) -> Result<Self, SandboxError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.0
            }
        }
    };
}

id_type!(
    /// The id of a sandbox, chosen by the caller.
    SandboxId
);
id_type!(
    /// The id of a snapshot, chosen by the provider.
    SnapshotId
);

/// Resource limits of a sandbox. The provider clamps them to what the host allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    pub memory_bytes: u64,
    pub pids: u64,
    /// Thousandths of a core.
    pub cpu_millis: u64,
    pub disk_bytes: u64,
    pub tmp_bytes: u64,
    /// Open files of one process.
    pub files: u64,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self {
            memory_bytes: 2048 * MIB,
            pids: 512,
            cpu_millis: 2000,
            disk_bytes: 10 * 1024 * MIB,
            tmp_bytes: 512 * MIB,
            files: 4096,
        }
    }
}

/// The specification of a sandbox.
#[derive(Clone)]
pub struct Spec {
    pub id: SandboxId,
    /// Program and arguments of PID 1.
    pub init: Vec<String>,
    /// Programs and directories of the host that are visible inside, read-only, in `/opt` under these names.
    pub programs: BTreeMap<String, PathBuf>,
    /// The standard input of PID 1, for example a key; it can be read once.
    pub stdin: Vec<u8>,
    /// The environment inside, in addition to `HOME`, `USER`, `PATH` and `LANG`, which it may override.
    pub env: BTreeMap<String, String>,
    pub limits: Limits,
    /// Connections from inside to these ports on 127.0.0.1 arrive at the gateway.
    pub injected: BTreeSet<u16>,
    /// Start with the files of this snapshot.
    pub snapshot: Option<SnapshotId>,
    /// A root filesystem directory of the operator, used instead of the host's `/usr`.
    pub rootfs: Option<PathBuf>,
}

impl Spec {
    pub fn new(id: SandboxId, init: Vec<String>) -> Self {
        Self {
            id,
            init,
            programs: BTreeMap::new(),
            stdin: Vec::new(),
            env: BTreeMap::new(),
            limits: Limits::default(),
            injected: BTreeSet::new(),
            snapshot: None,
            rootfs: None,
        }
    }

    /// Rejects specs that would fail later with a less clear error.
    pub(crate) fn check(&self) -> Result<(), SandboxError> {
        let words = self.init.iter().chain(self.env.keys()).chain(self.env.values());
        if self.init.first().is_none_or(String::is_empty) {
            return Err(SandboxError::BadSpec("PID 1 needs a program"));
        }
        if words.clone().any(|w| w.contains('\0')) || self.env.keys().any(|k| k.is_empty() || k.contains('='))
        {
            return Err(SandboxError::BadSpec(
                "arguments and variables must not contain NUL, variable names no '='",
            ));
        }
        if !self.programs.keys().all(|name| is_valid_name(name)) {
            return Err(SandboxError::BadSpec("a program's name may only contain a-z, 0-9 and '-'"));
        }
        if words.map(String::len).sum::<usize>() > MAX_ARGS_AND_ENV {
            return Err(SandboxError::BadSpec("arguments and variables are too long"));
        }
        if self.stdin.len() > MAX_STDIN {
            return Err(SandboxError::BadSpec("standard input must not exceed 64 KiB"));
        }
        if self.injected.iter().any(|port| *port < MIN_INJECTED_PORT) {
            return Err(SandboxError::BadSpec("injected ports must be 1024 or above"));
        }
        let l = &self.limits;
        if [l.memory_bytes, l.pids, l.cpu_millis, l.disk_bytes, l.tmp_bytes, l.files].contains(&0) {
            return Err(SandboxError::BadSpec("a limit must not be zero"));
        }
        Ok(())
    }
}

fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Variables and standard input may be secret, so only their sizes are shown.
impl fmt::Debug for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spec")
            .field("id", &self.id)
            .field("stdin_bytes", &self.stdin.len())
            .field("env_count", &self.env.len())
            .field("limits", &self.limits)
            .field("injected", &self.injected)
            .field("snapshot", &self.snapshot)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn id_cannot_escape_its_directory() {
        for bad in ["", ".", "..", "a/b", "A", "a_b", "a\0", "ä", &"a".repeat(65)] {
            assert!(matches!(SandboxId::new(bad), Err(SandboxError::BadId)), "{bad:?}");
        }
        assert_eq!(SandboxId::new("a-1").unwrap().as_str(), "a-1");
        assert!(serde_json::from_str::<SandboxId>("\"../x\"").is_err());
    }

    #[test]
    fn invalid_spec_is_refused_and_debug_output_hides_secrets() {
        let good = Spec::new(SandboxId::new("a").unwrap(), vec!["/bin/true".into()]);
        assert!(good.check().is_ok());
        let bad: [fn(&mut Spec); 7] = [
            |s| s.programs.extend([("../x".into(), PathBuf::new())]),
            |s| s.init.clear(),
            |s| s.init.push("a\0b".into()),
            |s| s.env.extend([("A=B".into(), String::new())]),
            |s| s.injected.extend([80]),
            |s| s.limits.pids = 0,
            |s| s.stdin = vec![0; MAX_STDIN + 1],
        ];
        for change in bad {
            let mut spec = good.clone();
            change(&mut spec);
            assert!(matches!(spec.check(), Err(SandboxError::BadSpec(_))));
        }
        let mut spec = good;
        spec.env.insert("TOKEN".into(), "hunter2".into());
        spec.stdin = b"hunter2".to_vec();
        assert!(!format!("{spec:?}").contains("hunter2"));
    }
}
