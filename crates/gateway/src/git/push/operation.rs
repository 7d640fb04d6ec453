//! The kinds of ref updates. Fast-forwarding a branch is ordinary. Updates that can destroy somebody's work, and tags,
//! from which people make releases, are operations with action modes of their own.

use std::io;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use policy::ModeKey;

use super::super::forge::ForgeRepo;
use super::super::pack::{CommitScan, MAX_SCANNED, Scan};
use super::request::{PushRequest, RefUpdate};

/// The source of the actions that are operations.
pub(crate) const GIT_SOURCE: &str = "git";
/// How many more bytes of a push are read before the scan for commits continues.
const SCAN_STEP: usize = 64 * 1024;

/// The kind of a ref update. The greatest of a push counts: see [`Operation::of_all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    /// Creates or fast-forwards a branch.
    Push,
    /// Creates or moves a tag.
    PushTag,
    /// Moves a ref to a commit that does not descend from the previous one, or cannot be proved to.
    ForcePush,
    DeleteRef,
}

impl Operation {
    pub(crate) const ALL: [Self; 4] = [Self::Push, Self::PushTag, Self::ForcePush, Self::DeleteRef];

    /// The name of the tool that policy knows it by.
    pub(crate) const fn tool(self) -> &'static str {
        match self {
            Self::Push => "git.push",
            Self::PushTag => "git.push_tag",
            Self::ForcePush => "git.force_push",
            Self::DeleteRef => "git.delete_ref",
        }
    }

    /// The key of its action mode. Ordinary pushes are governed by lanes alone.
    pub(crate) fn mode_key(self) -> Option<ModeKey> {
        let action = self.tool().strip_prefix("git.").filter(|_| self != Self::Push)?;
        ModeKey::new(GIT_SOURCE, action).ok()
    }

    /// The operation that policy decides about for a whole push. A push that mixes operations is refused by the check
    /// of its tool.
    pub(super) fn of_all(operations: &[Self]) -> Self {
        operations.iter().copied().max().unwrap_or(Self::Push)
    }
}

/// Classifies each update of a push. Reads as much of the pack as it needs to know the commits, into `bytes`, where the
/// pack starts at `start`. Whether a ref still is at its old commit is checked by the forge.
pub(super) async fn classify(
    forge: &ForgeRepo<'_>,
    request: &PushRequest,
    (bytes, start): (&mut Vec<u8>, usize),
    chunks: &mut (impl Stream<Item = io::Result<Bytes>> + Unpin),
) -> io::Result<Vec<Operation>> {
    let mut scan = None;
    let mut operations = Vec::new();
    for update in &request.updates {
        if let Some(operation) = without_history(update) {
            operations.push(operation);
            continue;
        }
        if scan.is_none() {
            scan = Some(read_commits(update.new.len(), (bytes, start), chunks).await?);
        }
        let fast_forward = match &scan {
            Some(scan) => forge.is_fast_forward(scan, &update.old, &update.new).await,
            None => false,
        };
        operations.push(if fast_forward { Operation::Push } else { Operation::ForcePush });
    }
    Ok(operations)
}

async fn read_commits(
    id_length: usize,
    (bytes, start): (&mut Vec<u8>, usize),
    chunks: &mut (impl Stream<Item = io::Result<Bytes>> + Unpin),
) -> io::Result<CommitScan> {
    let mut scan = CommitScan::new(id_length);
    let mut target = start;
    while scan.advance(bytes.get(start..).unwrap_or_default()) == Scan::NeedsMore {
        target = (target + SCAN_STEP).min(start + MAX_SCANNED);
        while bytes.len() < target {
            let Some(chunk) = chunks.next().await else {
                // The pack is truncated, so no more commits can be found in it.
                scan.advance(bytes.get(start..).unwrap_or_default());
                return Ok(scan);
            };
            bytes.extend_from_slice(&chunk?);
        }
    }
    Ok(scan)
}

/// The operation of an update that does not depend on history; `None` for one that moves a branch.
fn without_history(update: &RefUpdate) -> Option<Operation> {
    if update.deletes() {
        Some(Operation::DeleteRef)
    } else if update.name.starts_with("refs/tags/") {
        Some(Operation::PushTag)
    } else if update.creates() {
        Some(Operation::Push)
    } else {
        None
    }
}
