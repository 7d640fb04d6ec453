//! Resources that processes hold but no directory shows: deleted files that are open, mapped or in flight between
//! processes, and files in memory.

use std::collections::{HashMap, HashSet};
use std::fs::{self, Metadata};
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

/// The magic number of tmpfs.
const TMPFS_MAGIC: u64 = 0x0102_1994;
/// The writable tmpfs mounts of a sandbox.
const IN_MEMORY: [&str; 3] = ["tmp", "dev/shm", "run"];

/// Deleted but still open files on a device.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct UnlinkedFiles {
    pub(super) bytes: u64,
    /// Descriptors in flight in sockets, whose files cannot be identified.
    pub(super) in_flight: u64,
}

/// Finds deleted files on a device that processes still hold.
pub(super) fn unlinked_files(pids: &[i32], device: u64) -> UnlinkedFiles {
    // Keyed by inode, since all of them are on one device.
    let (mut files, mut sockets) = (HashMap::new(), HashMap::new());
    for descriptor in descriptors(pids) {
        let Ok(found) = fs::metadata(&descriptor) else { continue };
        if is_unlinked(&found) && found.dev() == device {
            files.insert(found.ino(), blocks(&found));
        } else if found.file_type().is_socket() && !sockets.contains_key(&found.ino()) {
            sockets.insert(found.ino(), in_flight(&descriptor));
        }
    }
    for pid in pids {
        add_mapped(*pid, device, &mut files);
    }
    let bytes = files.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
    UnlinkedFiles { bytes, in_flight: sockets.values().sum() }
}

/// Memory of open files that belongs to no single process.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct SharedMemory {
    /// The size of memfds. One that is also mapped counts twice, because its pages also count for every process
    /// that maps them.
    pub(super) bytes: u64,
    pub(super) pipes: u64,
    pub(super) sockets: u64,
}

/// Counts each object once, however many processes have it open.
pub(super) fn shared(pids: &[i32]) -> SharedMemory {
    let is_memory = |path: PathBuf| path.as_os_str().as_encoded_bytes().starts_with(b"/memfd:");
    let (mut files, mut pipes, mut sockets) = (HashMap::new(), HashSet::new(), HashSet::new());
    for descriptor in descriptors(pids) {
        let Ok(found) = fs::metadata(&descriptor) else { continue };
        let (kind, place) = (found.file_type(), (found.dev(), found.ino()));
        if kind.is_fifo() {
            pipes.insert(place);
        } else if kind.is_socket() {
            sockets.insert(place);
        } else if is_unlinked(&found) && fs::read_link(&descriptor).is_ok_and(is_memory) {
            files.insert(place, blocks(&found));
        }
    }
    let bytes = files.values().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
    SharedMemory { bytes, pipes: pipes.len() as u64, sockets: sockets.len() as u64 }
}

/// The usage of all writable tmpfs mounts of a process.
pub(super) fn tmpfs(pid: i32) -> u64 {
    let root = PathBuf::from(format!("/proc/{pid}/root"));
    let used = |name: &str| {
        let found = rustix::fs::statfs(root.join(name)).ok()?;
        let in_memory = u64::try_from(found.f_type).is_ok_and(|kind| kind == TMPFS_MAGIC);
        let block = u64::try_from(found.f_bsize).unwrap_or_default();
        in_memory.then(|| found.f_blocks.saturating_sub(found.f_bfree).saturating_mul(block))
    };
    IN_MEMORY.into_iter().filter_map(used).sum()
}

/// Each thread may have its own descriptor table.
pub(super) fn threads(pid: i32) -> impl Iterator<Item = PathBuf> {
    entries(&PathBuf::from(format!("/proc/{pid}/task")))
}

fn descriptors(pids: &[i32]) -> impl Iterator<Item = PathBuf> {
    pids.iter().flat_map(|pid| threads(*pid)).flat_map(|thread| entries(&thread.join("fd")))
}

fn is_unlinked(found: &Metadata) -> bool {
    found.is_file() && found.nlink() == 0
}

fn blocks(found: &Metadata) -> u64 {
    found.blocks().saturating_mul(512)
}

/// The number of descriptors in flight in a socket; only UNIX sockets have any.
fn in_flight(descriptor: &Path) -> u64 {
    let thread = descriptor.parent().and_then(Path::parent);
    let about = thread.zip(descriptor.file_name()).map(|(thread, name)| thread.join("fdinfo").join(name));
    let about = about.and_then(|about| fs::read_to_string(about).ok()).unwrap_or_default();
    let waiting = about.lines().find_map(|line| line.strip_prefix("scm_fds:"));
    waiting.and_then(|number| number.trim().parse().ok()).unwrap_or_default()
}

/// Adds deleted files that a process only has mapped. If the main thread has exited, the maps are only visible
/// through the other threads.
fn add_mapped(pid: i32, device: u64, files: &mut HashMap<u64, u64>) {
    for thread in threads(pid) {
        let Ok(maps) = fs::File::open(thread.join("maps")) else { continue };
        let mut any = false;
        // Read as bytes: a file name that is not UTF-8 must not end the loop.
        for line in BufReader::new(maps).split(b'\n').map_while(Result::ok) {
            any = true;
            if let Some(mapped) = DeletedMapping::parse(&line) {
                mapped.add(&thread, device, files);
            }
        }
        if any {
            return;
        }
    }
}

/// A line of `/proc/PID/maps` about a deleted file.
#[derive(Debug, PartialEq, Eq)]
struct DeletedMapping {
    from: u64,
    to: u64,
    offset: u64,
    device: u64,
    number: u64,
}

impl DeletedMapping {
    /// `from-to rights offset major:minor inode name`, in hexadecimal except for the inode.
    fn parse(line: &[u8]) -> Option<Self> {
        let line = String::from_utf8_lossy(line.strip_suffix(b" (deleted)")?);
        let mut fields = line.split_ascii_whitespace();
        let mut next = || fields.next();
        let (range, _, offset, device, number) = (next()?, next()?, next()?, next()?, next()?);
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let (from, to) = range.split_once('-')?;
        let (major, minor) = device.split_once(':')?;
        let (major, minor) = (u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
        let device = rustix::fs::makedev(major, minor);
        Some(Self {
            from: hex(from)?,
            to: hex(to)?,
            offset: hex(offset)?,
            device,
            number: number.parse().ok()?,
        })
    }

    /// Only root can read the real size. Other users estimate it by the end of the mapping; with several mappings,
    /// the highest end counts.
    fn add(&self, thread: &Path, device: u64, files: &mut HashMap<u64, u64>) {
        // `map_files` only exists in the directory of the process, not of its threads.
        let process = thread.parent().and_then(Path::parent);
        let file = process.map(|process| process.join(format!("map_files/{:x}-{:x}", self.from, self.to)));
        if let Some(found) = file.and_then(|file| fs::metadata(file).ok()) {
            // A file that still has another name is counted under that.
            if is_unlinked(&found) && found.dev() == device {
                files.insert(found.ino(), blocks(&found));
            }
        } else if self.device == device {
            let end = self.offset.saturating_add(self.to.saturating_sub(self.from));
            let bytes = files.entry(self.number).or_default();
            *bytes = end.max(*bytes);
        }
    }
}

/// Lists a directory; returns nothing if it is gone.
fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path())
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::os::fd::AsFd as _;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

    use super::*;

    #[test]
    fn mapping_of_a_deleted_file_is_parsed_whatever_its_name() {
        let line = b"7f4ba1277000-7f4ba1377000 rw-s 00002000 fe:00 10321996                   /home/\xff\\012x (deleted)";
        let mapped = DeletedMapping::parse(line).unwrap();
        assert_eq!((mapped.to - mapped.from, mapped.offset, mapped.number), (1 << 20, 0x2000, 10_321_996));
        assert_eq!(mapped.device, rustix::fs::makedev(0xfe, 0));
        for other in
            [&line[..line.len() - 10], b" (deleted)", b"x-y r-- 0 0:0 1 /a (deleted)", b"1-2 r-- 0 (deleted)"]
        {
            assert_eq!(DeletedMapping::parse(other), None);
        }
    }

    /// Maps a file of 1 MiB twice, closes and removes it.
    const MAPS: &str = "open(W, q(>), q(x)); print W q(x) x (1 << 20); close W; for (1, 2) { open($f[$_], q(<:mmap), q(x)); \
        read($f[$_], $b, 1); POSIX::close(fileno($f[$_])) } unlink q(x); $| = 1; print qq(ready\\n); <STDIN>";

    /// Uses a separate process, because other tests open files in this one.
    #[test]
    fn mapped_file_is_counted_once() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("perl")
            .args(["-MPOSIX", "-e", MAPS])
            .current_dir(dir.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let device = fs::metadata(dir.path()).unwrap().dev();
        let pid = child.id().cast_signed();
        let (found, elsewhere) = (unlinked_files(&[pid], device), unlinked_files(&[pid], device + 1));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(said, "ready\n");
        assert!((1 << 20..2 << 20).contains(&found.bytes), "{found:?}");
        assert_eq!(elsewhere, UnlinkedFiles::default());
    }

    #[test]
    fn descriptors_in_flight_are_counted() {
        let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
        let path = |socket: &std::os::unix::net::UnixStream| {
            let number = std::os::fd::AsRawFd::as_raw_fd(socket);
            PathBuf::from(format!("/proc/self/task/{}/fd/{number}", rustix::thread::gettid()))
        };
        assert_eq!((in_flight(&path(&one)), in_flight(&path(&other))), (0, 0));
        let file = tempfile::tempfile().unwrap();
        for sent in 1..3 {
            let mut space = [std::mem::MaybeUninit::uninit(); 64];
            let mut descriptors = SendAncillaryBuffer::new(&mut space);
            let files = [file.as_fd()];
            assert!(descriptors.push(SendAncillaryMessage::ScmRights(&files)));
            rustix::net::sendmsg(&one, &[IoSlice::new(b"x")], &mut descriptors, SendFlags::empty()).unwrap();
            assert_eq!((in_flight(&path(&one)), in_flight(&path(&other))), (0, sent));
        }
    }
}
