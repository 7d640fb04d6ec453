//! The write-ahead log of an SQLite database. Its frames have checksums, so what is in the log can only be overwritten after
//! the log was checkpointed into the database. See <https://www.sqlite.org/walformat.html>.

use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::FileExt as _;

use super::sqlite::Database;

const MAGIC: u32 = 0x377f_0682;
const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// The log up to its last commit.
struct Committed {
    frames: u64,
    /// The size of the database after the commit.
    pages: u32,
}

/// The running checksum of a log.
struct Checksum {
    is_big_endian: bool,
    sums: [u32; 2],
}

impl Database<'_> {
    /// Writes the committed pages of a log into the database, as SQLite does before the log is deleted.
    pub(super) fn checkpoint(&self, log: &File) -> io::Result<()> {
        let mut log = BufReader::new(log);
        let Some(committed) = self.committed(&mut log)? else { return Ok(()) };
        log.seek(SeekFrom::Start(HEADER as u64))?;
        let mut frame = vec![0; FRAME_HEADER + self.page_size];
        for _ in 0..committed.frames {
            log.read_exact(&mut frame)?;
            let number = word(&frame, 0);
            if (1..=committed.pages).contains(&number) {
                let at = u64::from(number - 1) * self.page_size as u64;
                self.file.write_all_at(&frame[FRAME_HEADER..], at)?;
            }
        }
        self.file.set_len(u64::from(committed.pages) * self.page_size as u64)
    }

    fn committed(&self, log: &mut BufReader<&File>) -> io::Result<Option<Committed>> {
        let mut header = [0; HEADER];
        if !read(log, &mut header)? || word(&header, 0) & !1 != MAGIC {
            return Ok(None);
        }
        let mut checksum = Checksum { is_big_endian: word(&header, 0) & 1 == 1, sums: [0; 2] };
        checksum.add(&header[..24]);
        if word(&header, 8) as usize != self.page_size || !checksum.is(&header[24..]) {
            return Ok(None);
        }
        let before = self.pages()?;
        let (mut frame, mut frames, mut committed) = (vec![0; FRAME_HEADER + self.page_size], 0, None);
        while read(log, &mut frame)? && frame[8..16] == header[16..24] {
            checksum.add(&frame[..8]);
            checksum.add(&frame[FRAME_HEADER..]);
            if !checksum.is(&frame[16..24]) {
                break;
            }
            frames += 1;
            let pages = word(&frame, 4);
            // A new page is in the log. A hostile log could name any size, and the file would get it.
            if pages > 0 && u64::from(pages) <= before + frames {
                committed = Some(Committed { frames, pages });
            }
        }
        Ok(committed)
    }
}

impl Checksum {
    fn add(&mut self, bytes: &[u8]) {
        let [mut one, mut other] = self.sums;
        for pair in bytes.chunks_exact(8) {
            one = one.wrapping_add(self.word(&pair[..4])).wrapping_add(other);
            other = other.wrapping_add(self.word(&pair[4..])).wrapping_add(one);
        }
        self.sums = [one, other];
    }

    fn word(&self, bytes: &[u8]) -> u32 {
        if self.is_big_endian { word(bytes, 0) } else { word(bytes, 0).swap_bytes() }
    }

    fn is(&self, stored: &[u8]) -> bool {
        self.sums == [word(stored, 0), word(stored, 4)]
    }
}

/// The big-endian number at this offset.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// Fills the buffer. `false` if the log ends before.
fn read(log: &mut BufReader<&File>, buffer: &mut [u8]) -> io::Result<bool> {
    match log.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}
