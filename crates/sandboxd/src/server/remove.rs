//! Removes files and trees, by handle and with a depth limit: a symlink is removed and never followed.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use super::roots::{Roots, refusal};
use crate::protocol::{Code, Nothing, Refusal, Remove};

/// The depth limit; each level holds a handle.
const MAX_DEPTH: usize = 200;

pub(super) fn remove(roots: &Roots, remove: &Remove) -> Result<Nothing, Refusal> {
    let (directory, name) = roots.parent(&remove.place, false)?;
    match unlinkat(&directory, &name, AtFlags::empty()) {
        Ok(()) => return Ok(Nothing {}),
        Err(Errno::ISDIR) => {}
        Err(error) => return Err(refusal(error)),
    }
    if remove.recursive {
        empty(&open(&directory, &name)?, MAX_DEPTH)?;
    }
    unlinkat(&directory, &name, AtFlags::REMOVEDIR).map_err(refusal)?;
    Ok(Nothing {})
}

fn open(directory: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Refusal> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::empty()).map_err(refusal)
}

fn empty(directory: &OwnedFd, depth_left: usize) -> Result<(), Refusal> {
    if depth_left == 0 {
        return Err(Refusal::new(Code::Limit, format!("directories are nested more than {MAX_DEPTH} deep")));
    }
    for entry in Dir::read_from(directory).map_err(refusal)? {
        let entry = entry.map_err(refusal)?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                empty(&open(directory, name)?, depth_left - 1)?;
                unlinkat(directory, name, AtFlags::REMOVEDIR).map_err(refusal)?;
            }
            Err(error) => return Err(refusal(error)),
        }
    }
    Ok(())
}
