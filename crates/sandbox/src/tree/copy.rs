//! Copies a hostile directory: data, symlinks and hard links, modes without set-id bits, times.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, Uid};

use super::links::Links;
use super::permissions::{OpenDirectory, open_regular};
use super::{MAX_DEPTH, MAX_ENTRIES, TreeError, kind, none_if_gone, open_directory, open_top, stat_entry};
use crate::provider::LeftOut;

/// The owner of the copy; `None` leaves it to the current user.
pub(crate) type Owner = Option<u32>;

/// A copy in progress.
pub(crate) struct Copy {
    owner: Owner,
    /// How many more bytes of data may be copied.
    left: u64,
    most: u64,
    entries: u64,
    without: LeftOut,
    /// The current path, relative to the top.
    at: PathBuf,
}

impl Copy {
    pub(crate) fn new(owner: Owner, most: u64) -> Self {
        Self { owner, left: most, most, entries: 0, without: LeftOut::default(), at: PathBuf::new() }
    }

    /// Leaves this out. A symlink to a part of it is still copied as a symlink, which then dangles.
    pub(crate) fn without(self, without: LeftOut) -> Self {
        Self { without, ..self }
    }

    /// Whether the entry at the current path is copied.
    fn is_wanted(&self, stat: &Stat) -> bool {
        let is_named_file = || kind(stat) == FileType::RegularFile && self.without.files.contains(&self.at);
        !self.without.directories.contains(&self.at) && !is_named_file()
    }

    /// Copies the content of `from` into `to`, an empty directory that nobody else can reach.
    pub(crate) fn run(mut self, from: &Path, to: &Path) -> Result<(), TreeError> {
        let (from, to, links) = (OpenDirectory::top(from)?, open_top(to)?, Links::create_for(to)?);
        self.directory(&from, &to, &links, 0)?;
        self.finish(&to, &from.stat)
    }

    fn directory(
        &mut self,
        from: &OpenDirectory,
        to: &OwnedFd,
        links: &Links,
        depth: usize,
    ) -> Result<(), TreeError> {
        if depth > MAX_DEPTH {
            return Err(TreeError::TooDeep);
        }
        from.each_name(|name| {
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return Err(TreeError::TooMany);
            }
            self.at.push(OsStr::from_bytes(name.to_bytes()));
            let stat = none_if_gone(stat_entry(from.handle(), name))?;
            if let Some(stat) = stat.filter(|stat| self.is_wanted(stat)) {
                match kind(&stat) {
                    FileType::Directory => {
                        self.subdirectory(from.handle(), to, links, (name, &stat), depth)?;
                    }
                    FileType::RegularFile => self.file(from.handle(), to, links, name)?,
                    FileType::Symlink => self.link(from.handle(), to, name)?,
                    _ => {}
                }
            }
            self.at.pop();
            Ok(())
        })
    }

    fn subdirectory(
        &mut self,
        from: BorrowedFd<'_>,
        to: &OwnedFd,
        links: &Links,
        (name, stat): (&CStr, &Stat),
        depth: usize,
    ) -> Result<(), TreeError> {
        let Some(inner) = OpenDirectory::directory(from, name, stat)? else { return Ok(()) };
        rustix::fs::mkdirat(to, name, Mode::RWXU)?;
        let copy = open_directory(to, name)?;
        self.directory(&inner, &copy, links, depth + 1)?;
        self.finish(&copy, &inner.stat)
    }

    fn file(
        &mut self,
        from: BorrowedFd<'_>,
        to: &OwnedFd,
        links: &Links,
        name: &CStr,
    ) -> Result<(), TreeError> {
        let Some((source, stat)) = open_regular(from, name)? else { return Ok(()) };
        if links.link_existing(&stat, to, name)? {
            return Ok(());
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let copy = rustix::fs::openat(to, name, flags, Mode::RUSR | Mode::WUSR)?;
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        if rustix::fs::ioctl_ficlone(&copy, &source).is_err() {
            let copy_file = File::from(copy.try_clone()?);
            self.data(source, copy_file, size)?;
        }
        self.finish(&copy, &stat)?;
        Ok(links.record(&stat, to, name)?)
    }

    /// Copies data and preserves holes: a sparse file of a terabyte costs only its data.
    fn data(&mut self, mut from: File, mut to: File, size: u64) -> Result<(), TreeError> {
        let mut at = 0;
        while at < size {
            let start = match rustix::fs::seek(&from, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(rustix::io::Errno::NXIO) => break,
                Err(_) => at,
            };
            let end = rustix::fs::seek(&from, SeekFrom::Hole(start)).unwrap_or(size).min(size);
            let length = end.saturating_sub(start);
            if length == 0 {
                break;
            }
            self.left = self.left.checked_sub(length).ok_or(TreeError::TooLarge(self.most))?;
            from.seek(io::SeekFrom::Start(start))?;
            to.seek(io::SeekFrom::Start(start))?;
            io::copy(&mut (&mut from).take(length), &mut to)?;
            at = end;
        }
        to.set_len(size)?;
        Ok(to.flush()?)
    }

    fn link(&mut self, from: BorrowedFd<'_>, to: &OwnedFd, name: &CStr) -> Result<(), TreeError> {
        let target = none_if_gone(rustix::fs::readlinkat(from, name, Vec::new()))?;
        let Some(target) = target else { return Ok(()) };
        rustix::fs::symlinkat(&target, to, name)?;
        if let Some(owner) = self.owner {
            let (uid, gid) = (Uid::from_raw(owner), Gid::from_raw(owner));
            rustix::fs::chownat(to, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
        }
        Ok(())
    }

    fn finish(&self, copy: &OwnedFd, stat: &Stat) -> Result<(), TreeError> {
        if let Some(owner) = self.owner {
            rustix::fs::fchown(copy, Some(Uid::from_raw(owner)), Some(Gid::from_raw(owner)))?;
        }
        rustix::fs::fchmod(copy, Mode::from_raw_mode(stat.st_mode & 0o1777))?;
        let time = |secs, nsec: u64| Timespec { tv_sec: secs, tv_nsec: nsec.try_into().unwrap_or_default() };
        let times = Timestamps {
            last_access: time(stat.st_atime, stat.st_atime_nsec),
            last_modification: time(stat.st_mtime, stat.st_mtime_nsec),
        };
        Ok(rustix::fs::futimens(copy, &times)?)
    }
}
