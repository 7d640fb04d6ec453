//! What the gateway tells the launcher. It is only sent over standard input, because others on the host can read
//! the arguments and environment of a process.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::spec::Limits;

/// Larger than any plan of a valid spec.
const MAX_PLAN: usize = 4 * 1024 * 1024;

#[derive(Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) bwrap: PathBuf,
    pub(crate) home: PathBuf,
    pub(crate) init: Vec<String>,
    pub(crate) programs: BTreeMap<String, PathBuf>,
    pub(crate) rootfs: Option<PathBuf>,
    pub(crate) stdin: Vec<u8>,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) limits: Limits,
    /// The host uid of the sandbox; `None` when the gateway is not root and the sandbox runs as its user.
    pub(crate) uid: Option<u32>,
    /// The files to which a process writes itself to join the sandbox's control groups.
    pub(crate) join: Vec<PathBuf>,
}

impl Plan {
    /// Encodes a length and the plan; [the last file](super::bwrap::LAST_FILE) follows on the same pipe.
    pub(crate) fn encode(&self) -> io::Result<Vec<u8>> {
        let body = serde_json::to_vec(self)?;
        let length = u32::try_from(body.len()).map_err(io::Error::other)?;
        Ok([&length.to_le_bytes()[..], &body].concat())
    }

    /// Reads exactly the plan; bubblewrap reads the rest of the pipe.
    pub(crate) fn decode(mut from: impl Read) -> io::Result<Self> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > MAX_PLAN {
            return Err(io::Error::other("the plan is too long"));
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body)?;
        Ok(serde_json::from_slice(&body)?)
    }
}
