//! The pages of an SQLite database. SQLite itself would trust a hostile file too much, and an update of its rows would
//! leave the old ones in free pages. See <https://www.sqlite.org/fileformat2.html>.

use std::fs::File;
use std::io;

use super::{OVERLAP, Texts, WINDOW, read_at_most};

const MAGIC: &[u8] = b"SQLite format 3\0";
const HEADER: usize = 100;
/// The type of a page with rows of a table.
const TABLE_LEAF: u8 = 0x0d;

pub(super) struct Database<'a> {
    pub(super) file: &'a File,
    pub(super) page_size: usize,
    /// The bytes of a page that SQLite uses.
    usable: usize,
}

/// A part of a row that is longer than its page, and where each piece is in the file. Never a whole row: a hostile one has
/// any length, in few pages that name each other.
#[derive(Default)]
struct RowWindow {
    bytes: Vec<u8>,
    /// Where a piece starts in these bytes, and in the file.
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
    pub(super) fn mask(&self, texts: &Texts<'_>) -> io::Result<()> {
        let (pages, mut page) = (self.pages()?, vec![0; self.page_size]);
        // All rows together are no longer than the file, unless it is hostile.
        let mut left = pages * self.page_size as u64;
        for number in 0..pages {
            let at = number * self.page_size as u64;
            let length = read_at_most(self.file, &mut page, at)?;
            self.mask_long_rows(&page[..length], number, pages, (&mut left, texts))?;
            let length = read_at_most(self.file, &mut page, at)?;
            for range in (texts.find)(&page[..length]) {
                texts.overwrite(self.file, &page[range.clone()], at + range.start as u64)?;
            }
        }
        Ok(())
    }

    /// Overwrites in the rows of a page that continue in other pages.
    fn mask_long_rows(
        &self,
        page: &[u8],
        number: u64,
        pages: u64,
        (left, texts): (&mut u64, &Texts<'_>),
    ) -> io::Result<()> {
        let header = if number == 0 { HEADER } else { 0 };
        if page.len() < self.usable || page.get(header) != Some(&TABLE_LEAF) {
            return Ok(());
        }
        let number_at =
            |at: usize| Some(usize::from(u16::from_be_bytes(page.get(at..at + 2)?.try_into().ok()?)));
        for cell in 0..number_at(header + 3).unwrap_or_default() {
            let Some(cell) = number_at(header + 8 + 2 * cell) else { break };
            let Some((local, next, length)) = self.long_cell(page, cell) else { continue };
            let Some(rest) = left.checked_sub(length) else { continue };
            *left = rest;
            let mut window = RowWindow::default();
            window.push(&page[local.clone()], number * self.page_size as u64 + local.start as u64);
            self.mask_row(window, next, (length, pages), texts)?;
        }
        Ok(())
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

    /// Overwrites in a row whose pieces continue on this page. Every page begins with the number of the next.
    fn mask_row(
        &self,
        mut window: RowWindow,
        mut next: u32,
        (length, pages): (u64, u64),
        texts: &Texts<'_>,
    ) -> io::Result<()> {
        let (mut page, mut done) = (vec![0; self.usable], window.bytes.len() as u64);
        while (1..=pages).contains(&u64::from(next)) && done < length {
            let at = (u64::from(next) - 1) * self.page_size as u64;
            if read_at_most(self.file, &mut page, at)? < page.len() {
                break;
            }
            next = u32::from_be_bytes([page[0], page[1], page[2], page[3]]);
            window.push(&page[4..], at + 4);
            done += page.len() as u64 - 4;
            if window.bytes.len() >= WINDOW {
                window.mask(self.file, texts)?;
                window.keep_end();
            }
        }
        window.mask(self.file, texts)
    }
}

impl RowWindow {
    fn push(&mut self, piece: &[u8], at: u64) {
        self.pieces.push((self.bytes.len(), at));
        self.bytes.extend_from_slice(piece);
    }

    fn mask(&self, file: &File, texts: &Texts<'_>) -> io::Result<()> {
        for range in (texts.find)(&self.bytes) {
            let first = self.pieces.partition_point(|(start, _)| *start <= range.start) - 1;
            let pieces = self.pieces[first..].iter().take_while(|(start, _)| *start < range.end);
            for (index, (start, at)) in pieces.enumerate() {
                let end = self.pieces.get(first + index + 1).map_or(self.bytes.len(), |(next, _)| *next);
                let (from, to) = (range.start.max(*start), range.end.min(end));
                texts.overwrite(file, &self.bytes[from..to], at + (from - start) as u64)?;
            }
        }
        Ok(())
    }

    /// Forgets the beginning, so that a text that the next pieces complete is found.
    fn keep_end(&mut self) {
        let first =
            self.pieces.partition_point(|(start, _)| start + OVERLAP <= self.bytes.len()).saturating_sub(1);
        let cut = self.pieces[first].0;
        self.pieces.drain(..first);
        self.bytes.drain(..cut);
        for (start, _) in &mut self.pieces {
            *start -= cut;
        }
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
