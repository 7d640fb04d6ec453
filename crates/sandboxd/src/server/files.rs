//! Reading, writing, listing and moving files. Sizes are limited while bytes flow, whatever size a file reports.

use std::io;
use std::sync::Arc;

use channel::{Lane, Receiver, Sender};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, fchmod, openat, renameat, unlinkat};
use rustix::io::Errno;
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};

use super::roots::{Roots, clean, io_refusal, refusal, stat_at, stat_of};
use crate::protocol::{
    Code, Entry, Kind, List, Listing, MAX_ENTRIES, MAX_FILE, Nothing, Place, Read, ReadDone, Refusal, Rename,
    Stat, Write,
};

const CHUNK_BYTES: usize = 64 * 1024;

/// Runs disk I/O on a blocking thread, away from the tasks that keep the channel alive.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Refusal> + Send + 'static,
) -> Result<T, Refusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(Refusal::new(Code::Io, "the operation was aborted")))
}

pub(super) async fn read(roots: Arc<Roots>, read: Read, sender: &mut Sender) -> Result<ReadDone, Refusal> {
    let (offset, limit) = (read.offset, read.limit);
    let (file, stat) = blocking(move || roots.open_to_read(&read.place, false)).await?;
    let ahead = stat.size.saturating_sub(offset);
    if limit.is_none() && ahead > MAX_FILE {
        return Err(Refusal::new(Code::TooLarge, format!("{ahead} bytes exceed the limit of {MAX_FILE}")));
    }
    let mut file = tokio::fs::File::from_std(file);
    file.seek(io::SeekFrom::Start(offset)).await.map_err(|error| io_refusal(&error))?;
    let mut left = limit.unwrap_or(MAX_FILE).min(MAX_FILE);
    let mut sent = 0;
    while left > 0 {
        let mut chunk = bytes::BytesMut::with_capacity(CHUNK_BYTES);
        let got = (&mut file).take(left).read_buf(&mut chunk).await.map_err(|error| io_refusal(&error))?;
        if got == 0 {
            break;
        }
        left -= got as u64;
        sent += got as u64;
        let gone = |_| Refusal::new(Code::Io, "the caller stopped reading");
        sender.send(Lane::Main, chunk.freeze()).await.map_err(gone)?;
    }
    Ok(ReadDone { sent, size: stat.size, mode: stat.mode })
}

/// A temporary file that replaces its target atomically once it is complete, and is removed otherwise.
pub(super) struct AtomicWrite {
    directory: OwnedFd,
    name: String,
    temporary: String,
    mode: u32,
    committed: bool,
}

impl AtomicWrite {
    pub(super) fn new(
        roots: &Roots,
        place: &Place,
        mode: Option<u32>,
        parents: bool,
        number: u64,
    ) -> Result<(Self, std::fs::File), Refusal> {
        let (directory, name) = roots.parent(place, parents)?;
        let old = match stat_at(&directory, name.as_str()) {
            Ok(stat) => Some(stat),
            Err(Errno::NOENT) => None,
            Err(error) => return Err(refusal(error)),
        };
        match old.map(|old| old.kind) {
            None | Some(Kind::File) => {}
            Some(Kind::Directory) => return Err(refusal(Errno::ISDIR)),
            Some(Kind::Symlink) => return Err(refusal(Errno::LOOP)),
            Some(Kind::Other) => return Err(Refusal::new(Code::NotAFile, "not a regular file")),
        }
        // Drop setuid, setgid and sticky bits, which nothing here needs.
        let mode = mode.or(old.map(|old| old.mode)).unwrap_or(0o644) & 0o777;
        let temporary = format!(".sandboxd-{number:016x}.tmp");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&directory, &temporary, flags, Mode::from_raw_mode(0o600)).map_err(refusal)?;
        Ok((Self { directory, name, temporary, mode, committed: false }, file.into()))
    }

    pub(super) fn commit(mut self, file: &std::fs::File) -> Result<Stat, Refusal> {
        fchmod(file, Mode::from_raw_mode(self.mode)).map_err(refusal)?;
        renameat(&self.directory, &self.temporary, &self.directory, &self.name).map_err(refusal)?;
        self.committed = true;
        stat_of(file).map_err(refusal)
    }
}

impl Drop for AtomicWrite {
    fn drop(&mut self) {
        if !self.committed {
            let _ = unlinkat(&self.directory, &self.temporary, AtFlags::empty());
        }
    }
}

pub(super) async fn write(
    roots: Arc<Roots>,
    write: Write,
    number: u64,
    receiver: &mut Receiver,
) -> Result<Stat, Refusal> {
    let most = write.most.unwrap_or(MAX_FILE).min(MAX_FILE);
    let (target, file) =
        blocking(move || AtomicWrite::new(&roots, &write.place, write.mode, write.parents, number)).await?;
    let mut file = tokio::fs::File::from_std(file);
    let mut size = 0;
    let broken = |_| Refusal::new(Code::Io, "the content ended early");
    while let Some(chunk) = receiver.recv().await.map_err(broken)? {
        size += chunk.bytes.len() as u64;
        if size > most {
            return Err(Refusal::new(Code::TooLarge, format!("more than {most} bytes")));
        }
        file.write_all(&chunk.bytes).await.map_err(|error| io_refusal(&error))?;
    }
    file.flush().await.map_err(|error| io_refusal(&error))?;
    let file = file.into_std().await;
    blocking(move || target.commit(&file)).await
}

pub(super) fn list(roots: &Roots, list: &List) -> Result<Listing, Refusal> {
    let most = list.most.unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES);
    let (directory, _) = roots.open_to_read(&list.place, true)?;
    let mut listing = Listing { entries: Vec::new(), truncated: false };
    for entry in Dir::read_from(&directory).map_err(refusal)? {
        let entry = entry.map_err(refusal)?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if listing.entries.len() == most {
            listing.truncated = true;
            break;
        }
        // The entry may have been removed meanwhile.
        let Ok(stat) = stat_at(&directory, name) else { continue };
        listing.entries.push(Entry { name: name.to_string_lossy().into_owned(), stat });
    }
    listing.entries.sort_by(|one, two| one.name.cmp(&two.name));
    Ok(listing)
}

/// Creates a directory and its parents; an existing directory is fine.
pub(super) fn mkdir(roots: &Roots, place: &Place) -> Result<Nothing, Refusal> {
    let path = clean(&place.path)?;
    roots.directory(place.root, &path, true).map(|_| Nothing {})
}

pub(super) fn rename(roots: &Roots, rename: &Rename) -> Result<Nothing, Refusal> {
    let (from, old) = roots.parent(&rename.from, false)?;
    let (to, new) = roots.parent(&rename.to, false)?;
    renameat(from, old, to, new).map_err(|error| match error {
        // Here XDEV does not mean that a path leaves its root.
        Errno::XDEV => Refusal::new(Code::Io, "the two places are on different file systems"),
        other => refusal(other),
    })?;
    Ok(Nothing {})
}

/// Reads a small file completely.
pub(super) fn read_small(roots: &Roots, place: &Place, most: u64) -> Result<Vec<u8>, Refusal> {
    use std::io::Read as _;
    let (file, _) = roots.open_to_read(place, false)?;
    let mut content = Vec::new();
    file.take(most + 1).read_to_end(&mut content).map_err(|error| io_refusal(&error))?;
    if content.len() as u64 > most {
        return Err(Refusal::new(Code::TooLarge, format!("more than {most} bytes")));
    }
    Ok(content)
}

/// Writes a small file atomically.
pub(super) fn write_small(
    roots: &Roots,
    place: &Place,
    mode: Option<u32>,
    content: &[u8],
    number: u64,
) -> Result<(), Refusal> {
    use std::io::Write as _;
    let (target, mut file) = AtomicWrite::new(roots, place, mode, true, number)?;
    file.write_all(content).map_err(|error| io_refusal(&error))?;
    target.commit(&file).map(drop)
}
