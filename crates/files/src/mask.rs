//! Overwrites texts in the files of a directory that somebody hostile has written, such as the copied history of an agent: in
//! place and with as many bytes, so nothing has to understand the files.

mod sqlite;
mod wal;

use std::cell::Cell;
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use sqlite::Database;

/// Finds the ranges to overwrite.
pub type Find<'a> = dyn Fn(&[u8]) -> Vec<Range<usize>> + 'a;

/// How many bytes are searched. The files after that are removed: a sparse file can claim any size.
const MAX_BYTES: u64 = 1 << 30;
/// How many texts are overwritten. A file with more is removed: somebody fills it to keep us busy.
const MAX_OVERWRITTEN: u64 = 1_000_000;
/// How much of a file is searched at once, and the longest text that is found although it is in two such windows.
const WINDOW: usize = 1 << 20;
const OVERLAP: usize = 256 << 10;

/// Overwrites what `find` finds in the files below `top/directory`, and returns how many files were removed instead. Follows
/// no symlink. Nobody else may be able to change the directory.
pub fn mask(top: &Path, directory: &Path, find: &Find<'_>) -> io::Result<u64> {
    let mut path = top.to_owned();
    for part in directory {
        path.push(part);
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => allow(&path, &found, 0o700)?,
            Ok(_) => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(error) => return Err(error),
        }
    }
    let texts = Texts { find, left: Cell::new(MAX_OVERWRITTEN) };
    let mut mask = Mask { texts, left: MAX_BYTES, removed: 0 };
    mask.directory(&path)?;
    Ok(mask.removed)
}

struct Mask<'a> {
    texts: Texts<'a>,
    /// How many more bytes may be searched.
    left: u64,
    removed: u64,
}

/// Finds texts and overwrites them, not too many.
struct Texts<'a> {
    find: &'a Find<'a>,
    /// How many more may be overwritten.
    left: Cell<u64>,
}

impl Mask<'_> {
    fn directory(&mut self, path: &Path) -> io::Result<()> {
        let entries = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.path()));
        let mut entries: Vec<PathBuf> = entries.collect::<io::Result<_>>()?;
        // A database comes before its write-ahead log, which it includes.
        entries.sort();
        for entry in entries {
            let found = match fs::symlink_metadata(&entry) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                found => found?,
            };
            if found.is_dir() {
                allow(&entry, &found, 0o700)?;
                self.directory(&entry)?;
            } else if found.is_file() {
                allow(&entry, &found, 0o600)?;
                self.file(&entry, found.len())?;
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, size: u64) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        let database = Database::open(&file)?;
        let log = database.as_ref().and_then(|_| regular(&beside(path, "-wal")));
        let Some(left) = self.left.checked_sub(size + log.as_ref().map_or(0, Metadata::len)) else {
            self.removed += 1;
            return fs::remove_file(path);
        };
        self.left = left;
        let Some(database) = database else {
            let masked = self.plain(&file);
            return self.remove_unmasked(path, masked);
        };
        if let Some(log) = log {
            let path = beside(path, "-wal");
            allow(&path, &log, 0o600)?;
            database.checkpoint(&File::open(&path)?)?;
            fs::remove_file(path)?;
        }
        // The index of that log, which SQLite builds anew.
        if regular(&beside(path, "-shm")).is_some() {
            fs::remove_file(beside(path, "-shm"))?;
        }
        let masked = database.mask(&self.texts);
        self.remove_unmasked(path, masked)
    }

    /// Removes a file in which there was too much to overwrite.
    fn remove_unmasked(&mut self, path: &Path, masked: io::Result<()>) -> io::Result<()> {
        if masked.is_ok() || self.texts.left.get() > 0 {
            return masked;
        }
        self.removed += 1;
        fs::remove_file(path)
    }

    fn plain(&self, file: &File) -> io::Result<()> {
        let (mut window, mut at) = (vec![0; WINDOW], 0);
        loop {
            let length = read_at_most(file, &mut window, at)?;
            for range in (self.texts.find)(&window[..length]) {
                self.texts.overwrite(file, &window[range.clone()], at + range.start as u64)?;
            }
            if length < WINDOW {
                return Ok(());
            }
            at += (WINDOW - OVERLAP) as u64;
        }
    }
}

impl Texts<'_> {
    /// Replaces bytes by a text that is as valid in their place: a number stays a number.
    fn overwrite(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
        let left =
            self.left.get().checked_sub(1).ok_or_else(|| io::Error::other("too many texts to overwrite"))?;
        self.left.set(left);
        let filler = if bytes.iter().all(u8::is_ascii_digit) { b'1' } else { b'*' };
        file.write_all_at(&vec![filler; bytes.len()], at)
    }
}

/// Reads until the buffer is full or the file ends.
fn read_at_most(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], at + length as u64)? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

/// Lets us access a copy whose owner may not.
fn allow(path: &Path, found: &Metadata, mode: u32) -> io::Result<()> {
    if found.mode() & mode == mode {
        return Ok(());
    }
    fs::set_permissions(path, Permissions::from_mode(found.mode() & 0o777 | mode))
}

fn regular(path: &Path) -> Option<Metadata> {
    fs::symlink_metadata(path).ok().filter(Metadata::is_file)
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
