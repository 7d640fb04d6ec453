//! The pages of an SQLite database. SQLite itself would trust a hostile file too much, and an update of its rows would
//! leave the old ones in free pages. See <https://www.sqlite.org/fileformat2.html>.

use std::fs::File;
use std::io;

use super::{Find, overwrite, read_at_most};

const MAGIC: &[u8] = b"SQLite format 3\0";
const HEADER: usize = 100;
/// The type of a page with rows of a table.
const TABLE_LEAF: u8 = 0x0d;
/// Longer rows are only searched page by page.
const MAX_ROW: u64 = 64 << 20;

pub(super) struct Database<'a> {
    pub(super) file: &'a File,
    pub(super) page_size: usize,
    /// The bytes of a page that SQLite uses.
    usable: usize,
}

/// The bytes of a row that is longer than its page, and where each piece is in the file.
#[derive(Default)]
struct Row {
    bytes: Vec<u8>,
    /// Where a piece starts in the row, and in the file.
    pieces: Vec<(usize, u64)>,
}

impl<'a> Database<'a> {
    /// `None` if the file is no database.
    pub(super) fn open(file: &'a File) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER];
        if read_at_most(file, &mut header, 0)? < HEADER || !header.starts_with(MAGIC) {
            return Ok(None);
        }
        let page_size = match u16::from_be_bytes([header[16], header[17]]) {
            1 => 65_536,
            size => usize::from(size),
        };
        let usable = page_size.saturating_sub(usize::from(header[20]));
        let is_valid = page_size.is_power_of_two() && page_size >= 512 && usable >= 480;
        Ok(is_valid.then_some(Self { file, page_size, usable }))
    }

    pub(super) fn pages(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len().div_ceil(self.page_size as u64))
    }

    /// Overwrites in every page, also in free ones, and in the rows that are longer than a page.
    pub(super) fn mask(&self, find: &Find<'_>) -> io::Result<()> {
        let (pages, mut page) = (self.pages()?, vec![0; self.page_size]);
        // All rows together are no longer than the file, unless it is hostile.
        let mut left = pages * self.page_size as u64;
        for number in 0..pages {
            let at = number * self.page_size as u64;
            let length = read_at_most(self.file, &mut page, at)?;
            for row in self.long_rows(&page[..length], number, pages, &mut left)? {
                row.mask(self.file, find)?;
            }
            let length = read_at_most(self.file, &mut page, at)?;
            for range in find(&page[..length]) {
                overwrite(self.file, &page[range.clone()], at + range.start as u64)?;
            }
        }
        Ok(())
    }

    /// The rows of a page that continue in other pages.
    fn long_rows(&self, page: &[u8], number: u64, pages: u64, left: &mut u64) -> io::Result<Vec<Row>> {
        let header = if number == 0 { HEADER } else { 0 };
        let mut rows = Vec::new();
        if page.len() < self.usable || page.get(header) != Some(&TABLE_LEAF) {
            return Ok(rows);
        }
        let number_at =
            |at: usize| Some(usize::from(u16::from_be_bytes(page.get(at..at + 2)?.try_into().ok()?)));
        for cell in 0..number_at(header + 3).unwrap_or_default() {
            let Some(cell) = number_at(header + 8 + 2 * cell) else { break };
            let Some((local, next, length)) = self.long_cell(page, cell) else { continue };
            let Some(rest) = left.checked_sub(length).filter(|_| length <= MAX_ROW) else { continue };
            *left = rest;
            let mut row = Row::default();
            row.push(&page[local.clone()], number * self.page_size as u64 + local.start as u64);
            self.follow(&mut row, next, length, pages)?;
            rows.push(row);
        }
        Ok(rows)
    }

    /// Where the first piece of a row is in its page, the page with the next piece, and the length of the row. `None` if
    /// the row is complete in its page.
    fn long_cell(&self, page: &[u8], cell: usize) -> Option<(std::ops::Range<usize>, u32, u64)> {
        let (length, row_id) = varint(page, cell)?;
        let (_, start) = varint(page, row_id)?;
        let usable = self.usable as u64;
        let least = (usable - 12) * 32 / 255 - 23;
        if length <= usable - 35 {
            return None;
        }
        let local = least + (length - least) % (usable - 4);
        let local = if local <= usable - 35 { local } else { least };
        let end = start + usize::try_from(local).ok()?;
        let next = u32::from_be_bytes(page.get(end..end + 4)?.try_into().ok()?);
        Some((start..end, next, length))
    }

    /// Adds the pieces of a row from this page on. Every page begins with the number of the next.
    fn follow(&self, row: &mut Row, mut next: u32, length: u64, pages: u64) -> io::Result<()> {
        let mut page = vec![0; self.usable];
        while (1..=pages).contains(&u64::from(next)) && (row.bytes.len() as u64) < length {
            let at = (u64::from(next) - 1) * self.page_size as u64;
            if read_at_most(self.file, &mut page, at)? < page.len() {
                break;
            }
            next = u32::from_be_bytes([page[0], page[1], page[2], page[3]]);
            row.push(&page[4..], at + 4);
        }
        Ok(())
    }
}

impl Row {
    fn push(&mut self, piece: &[u8], at: u64) {
        self.pieces.push((self.bytes.len(), at));
        self.bytes.extend_from_slice(piece);
    }

    fn mask(&self, file: &File, find: &Find<'_>) -> io::Result<()> {
        for range in find(&self.bytes) {
            for (index, (start, at)) in self.pieces.iter().enumerate() {
                let end = self.pieces.get(index + 1).map_or(self.bytes.len(), |(next, _)| *next);
                let (from, to) = (range.start.max(*start), range.end.min(end));
                if from < to {
                    overwrite(file, &self.bytes[from..to], at + (from - start) as u64)?;
                }
            }
        }
        Ok(())
    }
}

/// Parses SQLite's integer of one to nine bytes. Returns it and where the next field begins.
fn varint(page: &[u8], start: usize) -> Option<(u64, usize)> {
    let mut value = 0;
    for at in start..start + 8 {
        let byte = *page.get(at)?;
        value = value << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            return Some((value, at + 1));
        }
    }
    Some((value << 8 | u64::from(*page.get(start + 8)?), start + 9))
}
