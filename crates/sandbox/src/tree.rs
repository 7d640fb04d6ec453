//! Copying, measuring and removing a folder whose content is hostile and may change meanwhile.
//!
//! Nothing is done by path: every step opens one name below a handle without following links, and looks at what the
//! handle is. So a link, or a folder swapped for a link in the middle, cannot lead outside. Sockets, pipes and
//! devices are left out of copies; set-id bits are dropped, as a copy belongs to the gateway's user.

mod copy;
mod remove;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

pub(crate) use copy::{Copy, Owner};
pub(crate) use remove::remove;

/// Deeper than any honest tree, and few enough open handles.
const MAX_DEPTH: usize = 128;
/// More names than this cost the gateway too much to look at.
const MAX_ENTRIES: u64 = 4_000_000;

/// Why a folder could not be handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    #[error("folders are nested more than {MAX_DEPTH} deep: flatten them")]
    TooDeep,
    #[error("there are more than {MAX_ENTRIES} files: remove some")]
    TooMany,
    #[error("they hold more than {0} bytes: remove some")]
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

/// Opens a folder of ours; only the last name of the path is checked not to be a link.
pub(crate) fn open_top(path: &Path) -> Result<OwnedFd, TreeError> {
    Ok(rustix::fs::open(path, FOLDER, Mode::empty())?)
}

const FOLDER: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::RDONLY)
    .union(OFlags::NONBLOCK);

fn open_folder(parent: impl AsFd, name: &std::ffi::CStr) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(parent, name, FOLDER, Mode::empty())
}

/// The names in a folder, read at once so that what is done to them cannot disturb the reading.
fn names(folder: impl AsFd) -> Result<Vec<std::ffi::CString>, TreeError> {
    let mut found = Vec::new();
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_bytes() != b"." && name.to_bytes() != b".." {
            if found.len() as u64 >= MAX_ENTRIES {
                return Err(TreeError::TooMany);
            }
            found.push(name.to_owned());
        }
    }
    Ok(found)
}

fn look(parent: impl AsFd, name: &std::ffi::CStr) -> Result<Stat, Errno> {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
}

fn kind(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// What a folder takes on disk, links counted once. Stops with an error above `most`.
pub(crate) fn measure(top: &Path, most: u64) -> Result<u64, TreeError> {
    let mut sum = Sum { bytes: 0, entries: 0, most };
    let top = open_top(top)?;
    sum.folder(&top, 0)?;
    Ok(sum.bytes)
}

struct Sum {
    bytes: u64,
    entries: u64,
    most: u64,
}

impl Sum {
    fn folder(&mut self, folder: &OwnedFd, depth: usize) -> Result<(), TreeError> {
        if depth > MAX_DEPTH {
            return Err(TreeError::TooDeep);
        }
        for name in names(folder)? {
            // What vanishes between two looks is simply not there any more.
            let Ok(stat) = look(folder, &name) else { continue };
            self.add(&stat)?;
            if kind(&stat) == FileType::Directory
                && let Ok(inner) = open_folder(folder, &name)
            {
                self.folder(&inner, depth + 1)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, stat: &Stat) -> Result<(), TreeError> {
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default().saturating_mul(512);
        let links = u32::try_from(stat.st_nlink).unwrap_or(u32::MAX).max(1);
        let links = if kind(stat) == FileType::Directory { 1 } else { u64::from(links) };
        self.bytes = self.bytes.saturating_add(blocks / links);
        self.entries += 1;
        match (self.bytes > self.most, self.entries > MAX_ENTRIES) {
            (true, _) => Err(TreeError::TooLarge(self.most)),
            (_, true) => Err(TreeError::TooMany),
            _ => Ok(()),
        }
    }
}

/// Opens a file for reading if it is a plain one; a pipe that took its place does not block us.
fn open_plain(parent: impl AsFd, name: &std::ffi::CStr) -> Result<Option<(File, Stat)>, Errno> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&file)?;
    Ok((kind(&stat) == FileType::RegularFile).then(|| (File::from(file), stat)))
}

#[cfg(test)]
mod tests;
