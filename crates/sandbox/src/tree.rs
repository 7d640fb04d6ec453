//! Copying, measuring and removing a directory whose content is hostile and may change meanwhile.
//!
//! Nothing is done by path: every step opens one name below a handle without following symlinks, and checks what
//! the handle is. A symlink, or a directory swapped for a symlink in the middle, therefore cannot lead outside. Copies
//! omit sockets, pipes and devices, and drop set-id bits, because a copy belongs to the gateway's user.

mod copy;
mod ensure_directory;
mod links;
mod permissions;
mod remove;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

pub(crate) use copy::{Copy, Owner};
pub(crate) use ensure_directory::ensure_directory;
pub(crate) use remove::remove;

use self::permissions::OpenDirectory;

/// Deeper than any legitimate tree, and a small enough number of open handles.
const MAX_DEPTH: usize = 128;
/// Scanning more entries than this costs the gateway too much.
pub(crate) const MAX_ENTRIES: u64 = 4_000_000;

/// Why a directory could not be processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    #[error("directories are nested more than {MAX_DEPTH} deep: flatten them")]
    TooDeep,
    #[error("there are more than {MAX_ENTRIES} files: remove some")]
    TooMany,
    #[error("the files take more than {0} bytes: remove some")]
    TooLarge(u64),
    #[error("{0}")]
    Io(io::ErrorKind),
}

impl From<io::Error> for TreeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error.kind())
    }
}

impl From<Errno> for TreeError {
    fn from(error: Errno) -> Self {
        Self::Io(error.kind())
    }
}

/// Opens a directory of ours; only the last component of the path must not be a symlink.
pub(crate) fn open_top(path: &Path) -> Result<OwnedFd, TreeError> {
    Ok(rustix::fs::open(path, OPEN_DIRECTORY, Mode::empty())?)
}

const OPEN_DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::RDONLY)
    .union(OFlags::NONBLOCK);

fn open_directory(parent: impl AsFd, name: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(parent, name, OPEN_DIRECTORY, Mode::empty())
}

/// `None` for an entry that vanished, or changed its type, since it was listed. Every other error is an error, or a
/// copy would silently omit what could not be opened, and a measurement what is hidden.
fn none_if_gone<T>(done: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match done {
        Ok(done) => Ok(Some(done)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO | Errno::INVAL) => Ok(None),
        Err(error) => Err(error),
    }
}

fn stat_entry(parent: impl AsFd, name: &std::ffi::CStr) -> Result<Stat, Errno> {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// The size of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// On disk; a file with several hard links counts once.
    pub(crate) bytes: u64,
    pub(crate) names: u64,
}

/// Measures a directory. Fails above `most` bytes.
pub(crate) fn measure(top: &Path, most: u64) -> Result<Size, TreeError> {
    let mut sum = Measurement { size: Size::default(), most };
    sum.directory(&OpenDirectory::top(top)?, 0)?;
    Ok(sum.size)
}

struct Measurement {
    size: Size,
    most: u64,
}

impl Measurement {
    fn directory(&mut self, directory: &OpenDirectory, depth: usize) -> Result<(), TreeError> {
        if depth > MAX_DEPTH {
            return Err(TreeError::TooDeep);
        }
        directory.each_name(|name| {
            let Some(stat) = none_if_gone(stat_entry(directory.handle(), name))? else { return Ok(()) };
            self.add(&stat)?;
            if kind(&stat) == FileType::Directory
                && let Some(inner) = OpenDirectory::directory(directory.handle(), name, &stat)?
            {
                self.directory(&inner, depth + 1)?;
            }
            Ok(())
        })
    }

    fn add(&mut self, stat: &Stat) -> Result<(), TreeError> {
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(512);
        let links = u32::try_from(stat.st_nlink).unwrap_or(u32::MAX).max(1);
        let links = if kind(stat) == FileType::Directory { 1 } else { u64::from(links) };
        self.size.bytes = self.size.bytes.saturating_add(blocks / links);
        self.size.names += 1;
        match (self.size.bytes > self.most, self.size.names > MAX_ENTRIES) {
            (true, _) => Err(TreeError::TooLarge(self.most)),
            (_, true) => Err(TreeError::TooMany),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
