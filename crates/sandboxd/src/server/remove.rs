//! Removes files and trees, by handle and with a depth limit: a symlink is removed and never followed.

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, Dir, Mode, OFlags, openat, unlinkat};
use rustix::io::Errno;

use super::roots::{Roots, refusal};
use crate::protocol::{Code, Nothing, Refusal, Remove};

/// The depth limit; each level holds a handle.
const MAX_DEPTH: usize = 200;

pub(super) fn remove(roots: &Roots, remove: &Remove) -> Result<Nothing, Refusal> {
    let (folder, name) = roots.parent(&remove.place, false)?;
    match unlinkat(&folder, &name, AtFlags::empty()) {
        Ok(()) => return Ok(Nothing {}),
        Err(Errno::ISDIR) => {}
        Err(error) => return Err(refusal(error)),
    }
    if remove.recursive {
        empty(&open(&folder, &name)?, MAX_DEPTH)?;
    }
    unlinkat(&folder, &name, AtFlags::REMOVEDIR).map_err(refusal)?;
    Ok(Nothing {})
}

fn open(folder: impl AsFd, name: impl rustix::path::Arg) -> Result<OwnedFd, Refusal> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(folder, name, flags, Mode::empty()).map_err(refusal)
}

fn empty(folder: &OwnedFd, depth_left: usize) -> Result<(), Refusal> {
    if depth_left == 0 {
        return Err(Refusal::new(Code::Limit, format!("folders are nested more than {MAX_DEPTH} deep")));
    }
    for entry in Dir::read_from(folder).map_err(refusal)? {
        let entry = entry.map_err(refusal)?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(folder, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR) => {
                empty(&open(folder, name)?, depth_left - 1)?;
                unlinkat(folder, name, AtFlags::REMOVEDIR).map_err(refusal)?;
            }
            Err(error) => return Err(refusal(error)),
        }
    }
    Ok(())
}
