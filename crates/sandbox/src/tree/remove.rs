//! Removes a hostile directory completely, whatever its depth and permissions.

use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType};
use rustix::io::Errno;

use super::permissions::grant_permissions;
use super::{TreeError, kind, none_if_gone, open_directory, open_top, stat_entry};

/// The depth of one descent; deeper directories are first moved to the top.
const MAX_DESCENT: usize = 32;
/// How many names are read at once; continuing after removing some of them could skip others.
const NAMES_PER_BATCH: usize = 1024;

/// Removes a directory and its content. A missing directory is fine, also when another process removes it at the same
/// time: the gateway and an operator may both stop a sandbox.
pub(crate) fn remove(top: &Path) -> Result<(), TreeError> {
    let directory = match open_top(top) {
        Ok(directory) => directory,
        Err(TreeError::Io(std::io::ErrorKind::NotFound)) => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut moved = 0;
    // Each round empties the top and may move deep directories into it.
    loop {
        let round = moved;
        clear(&directory, &directory, 0, &mut moved)?;
        if moved == round {
            break;
        }
    }
    Ok(ok_if_gone(rustix::fs::unlinkat(CWD, top, AtFlags::REMOVEDIR))?)
}

fn ok_if_gone(removed: Result<(), Errno>) -> Result<(), Errno> {
    if removed == Err(Errno::NOENT) { Ok(()) } else { removed }
}

fn names(directory: &OwnedFd) -> Result<Vec<CString>, TreeError> {
    let mut directory = Dir::read_from(directory)?;
    let names =
        std::iter::from_fn(|| next_name(&mut directory)).take(NAMES_PER_BATCH).collect::<Result<_, _>>();
    Ok(names?)
}

fn next_name(directory: &mut Dir) -> Option<Result<CString, Errno>> {
    loop {
        let name = match directory.read()? {
            Ok(entry) => entry.file_name().to_owned(),
            Err(error) => return Some(Err(error)),
        };
        if !matches!(name.to_bytes(), b"." | b"..") {
            return Some(Ok(name));
        }
    }
}

fn clear(top: &OwnedFd, directory: &OwnedFd, depth: usize, moved: &mut u64) -> Result<(), TreeError> {
    loop {
        let names = names(directory)?;
        if names.is_empty() {
            return Ok(());
        }
        clear_names(top, directory, &names, depth, moved)?;
    }
}

fn clear_names(
    top: &OwnedFd,
    directory: &OwnedFd,
    names: &[CString],
    depth: usize,
    moved: &mut u64,
) -> Result<(), TreeError> {
    for name in names {
        let Some(stat) = none_if_gone(stat_entry(directory, name))? else { continue };
        if kind(&stat) != FileType::Directory {
            ok_if_gone(rustix::fs::unlinkat(directory, name, AtFlags::empty()))?;
        } else if depth >= MAX_DESCENT {
            move_up(top, directory, name, moved)?;
        } else {
            let inner = match open_for_removal(directory, name) {
                Err(Errno::NOENT) => continue,
                opened => opened?,
            };
            clear(top, &inner, depth + 1, moved)?;
            ok_if_gone(rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR))?;
        }
    }
    Ok(())
}

/// We own a directory without permissions, so grant them first.
fn open_for_removal(parent: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    if let Ok(stat) = stat_entry(parent, name)
        && stat.st_mode & 0o700 != 0o700
    {
        grant_permissions(parent, name)?;
    }
    open_directory(parent, name)
}

fn move_up(top: &OwnedFd, directory: &OwnedFd, name: &CStr, moved: &mut u64) -> Result<(), TreeError> {
    // Moving a directory rewrites its `..`, which needs permissions on the directory itself.
    drop(open_for_removal(directory, name)?);
    loop {
        *moved += 1;
        let fresh = CString::new(format!(".removing-{moved}")).unwrap_or_default();
        match rustix::fs::renameat_with(directory, name, top, &fresh, rustix::fs::RenameFlags::NOREPLACE) {
            Err(Errno::EXIST) => {}
            other => return Ok(other?),
        }
    }
}
