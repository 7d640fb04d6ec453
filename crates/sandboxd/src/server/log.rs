//! The recent output of a service: a bounded ring in memory to read and follow, and a bounded file for people
//! inside.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use rustix::fs::{CWD, Mode, OFlags, openat};
use tokio::sync::watch;

use super::roots::stat_of;
use crate::protocol::Kind;

/// How much is kept in memory per service.
pub(super) const RING_SIZE: usize = 256 * 1024;
/// The file is rotated at this size; only one rotated file is kept.
const MAX_FILE_SIZE: u64 = 1024 * 1024;
const MAX_PART: usize = 32 * 1024;

pub(super) struct Log {
    ring: Mutex<Ring>,
    /// The number of bytes ever written.
    end: watch::Sender<u64>,
}

struct Ring {
    bytes: VecDeque<u8>,
    end: u64,
    path: PathBuf,
    file: Option<(File, u64)>,
}

/// A part of the log, starting at some offset.
pub(super) struct LogPart {
    pub(super) bytes: Vec<u8>,
    pub(super) skipped: u64,
    pub(super) next: u64,
}

impl Log {
    pub(super) fn new(path: PathBuf) -> Self {
        let file = open(&path);
        let ring = Ring { bytes: VecDeque::new(), end: 0, path, file };
        Self { ring: Mutex::new(ring), end: watch::Sender::new(0) }
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock()
    }

    pub(super) fn append(&self, bytes: &[u8]) {
        let end = {
            let mut ring = self.ring();
            ring.append(bytes);
            ring.end
        };
        self.end.send_replace(end);
    }

    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.end.subscribe()
    }

    pub(super) fn read_from(&self, from: u64) -> LogPart {
        let ring = self.ring();
        let oldest = ring.end - ring.bytes.len() as u64;
        let start = from.max(oldest);
        let at = usize::try_from(start - oldest).unwrap_or(usize::MAX);
        let bytes: Vec<u8> = ring.bytes.iter().skip(at).take(MAX_PART).copied().collect();
        let next = start + bytes.len() as u64;
        LogPart { bytes, skipped: start - from, next }
    }
}

impl Ring {
    fn append(&mut self, bytes: &[u8]) {
        let last = &bytes[bytes.len().saturating_sub(RING_SIZE)..];
        let surplus = (self.bytes.len() + last.len()).saturating_sub(RING_SIZE);
        self.bytes.drain(..surplus);
        self.bytes.extend(last);
        self.end += bytes.len() as u64;
        self.append_to_file(bytes);
    }

    /// A service must not fail because its log file cannot be written.
    fn append_to_file(&mut self, bytes: &[u8]) {
        if self.file.as_ref().is_some_and(|(_, size)| size + bytes.len() as u64 > MAX_FILE_SIZE) {
            self.file = None;
            let _ = std::fs::rename(&self.path, self.path.with_extension("log.1"));
            self.file = open(&self.path);
        }
        if let Some((file, size)) = &mut self.file
            && file.write_all(bytes).is_ok()
        {
            *size += bytes.len() as u64;
        }
    }
}

/// The agent may have put anything at this path: a symlink is not followed, and a fifo does not block.
fn open(path: &Path) -> Option<(File, u64)> {
    std::fs::create_dir_all(path.parent()?).ok()?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = openat(CWD, path, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o600)).ok()?;
    let stat = stat_of(&file).ok().filter(|stat| stat.kind == Kind::File)?;
    Some((file.into(), stat.size))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_and_files_are_bounded_and_keep_the_newest_output() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("logs/web.log");
        let log = Log::new(path.clone());
        for number in 0..400_000_u32 {
            log.append(format!("{number:09}\n").as_bytes());
        }
        let first = log.read_from(0);
        assert_eq!(first.skipped, 4_000_000 - RING_SIZE as u64);
        let (mut from, mut all) = (0, Vec::new());
        loop {
            let part = log.read_from(from);
            if part.bytes.is_empty() {
                break;
            }
            all.extend(part.bytes);
            from = part.next;
        }
        assert_eq!((all.len(), from), (RING_SIZE, 4_000_000));
        assert!(all.ends_with(b"000399999\n"));
        let sizes = ["log", "log.1"].map(|end| path.with_extension(end).metadata().unwrap().len());
        assert!(sizes.iter().all(|size| *size <= MAX_FILE_SIZE), "{sizes:?}");
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 2);
    }

    #[test]
    fn symlink_or_fifo_at_the_log_path_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (path, target) = (directory.path().join("a.log"), directory.path().join("target"));
        std::fs::write(&target, "untouched").unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        Log::new(path.clone()).append(b"hello");
        assert_eq!(std::fs::read(&target).unwrap(), b"untouched");
        std::fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let log = Log::new(path);
        log.append(b"hello");
        assert_eq!(log.read_from(0).bytes, b"hello");
    }
}
