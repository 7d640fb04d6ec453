//! What kind of push it is. Moving a branch forward is ordinary; what can destroy somebody's work, and tags, which others
//! release from, are operations of their own with modes of their own.

use std::io;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use policy::ModeKey;

use crate::runtime::{Access, CommitScan, MOST_COMMIT_BYTES, PushUpdate, PushWanted, Scan};

/// How much of a push is collected before its commits are looked for again.
const STEP: usize = 64 * 1024;

/// The operations of a push. The greatest decides: see [`Operation::of_all`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Operation {
    /// A branch is made or moves forward.
    Push,
    /// A tag is made or moved.
    PushTag,
    /// A ref moves to a commit that does not descend from the one before, or that cannot be shown to.
    ForcePush,
    DeleteRef,
}

impl Operation {
    pub(super) const ALL: [Self; 4] = [Self::Push, Self::PushTag, Self::ForcePush, Self::DeleteRef];

    /// The name of its tool.
    pub(super) const fn tool(self) -> &'static str {
        match self {
            Self::Push => "git.push",
            Self::PushTag => "git.push_tag",
            Self::ForcePush => "git.force_push",
            Self::DeleteRef => "git.delete_ref",
        }
    }

    /// The key of its mode. Ordinary pushes are governed by lanes alone.
    pub(super) fn mode_key(self) -> Option<ModeKey> {
        let action = self.tool().strip_prefix("git.").filter(|_| self != Self::Push)?;
        ModeKey::new("git", action).ok()
    }

    /// The operation that a push is decided as. One that mixes several is none of them; its check refuses it.
    pub(crate) fn of_all(operations: &[Self]) -> Self {
        operations.iter().copied().max().unwrap_or(Self::Push)
    }
}

/// Finds out what each update of a push is. Reads the commits of the push as far as it needs them, into `bytes`, in which
/// the pack starts at `start`. That a ref is at its old commit now is for the forge to check, which takes an update only then.
pub(crate) async fn classify(
    forge: &Access<'_>,
    wanted: &PushWanted,
    (bytes, start): (&mut Vec<u8>, usize),
    pieces: &mut (impl Stream<Item = io::Result<Bytes>> + Unpin),
) -> io::Result<Vec<Operation>> {
    let mut scan = None;
    let mut operations = Vec::new();
    for update in &wanted.updates {
        if let Some(operation) = plain(update) {
            operations.push(operation);
            continue;
        }
        if scan.is_none() {
            scan = Some(read_commits(update.new.len(), (bytes, start), pieces).await?);
        }
        let forward = match &scan {
            Some(scan) => forge.is_fast_forward(scan, &update.old, &update.new).await,
            None => false,
        };
        operations.push(if forward { Operation::Push } else { Operation::ForcePush });
    }
    Ok(operations)
}

async fn read_commits(
    id_length: usize,
    (bytes, start): (&mut Vec<u8>, usize),
    pieces: &mut (impl Stream<Item = io::Result<Bytes>> + Unpin),
) -> io::Result<CommitScan> {
    let mut scan = CommitScan::new(id_length);
    let mut enough = start;
    while scan.advance(bytes.get(start..).unwrap_or_default()) == Scan::NeedsMore {
        enough = (enough + STEP).min(start + MOST_COMMIT_BYTES);
        while bytes.len() < enough {
            let Some(piece) = pieces.next().await else {
                // The pack is cut off, so nothing more can be learned from it.
                scan.advance(bytes.get(start..).unwrap_or_default());
                return Ok(scan);
            };
            bytes.extend_from_slice(&piece?);
        }
    }
    Ok(scan)
}

/// The operation of an update that shows without its commits; `None` for one that moves a branch.
fn plain(update: &PushUpdate) -> Option<Operation> {
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
