//! Credit-based flow control: each side may send only as much as the other has agreed to buffer.
//!
//! A window belongs to one direction of one stream. Sending spends credit, and the reader returns it in portions of
//! half a window. A stalled reader therefore costs at most its window, and a sender without credit costs the same
//! on its side, because only data that has credit is queued.

use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;

use bytes::Bytes;

use crate::frame::Lane;
use crate::limits::CHUNK_OVERHEAD;

/// The bytes of one frame. Its `Debug` output shows the size and never the contents.
#[derive(Clone, PartialEq, Eq)]
pub struct Chunk {
    pub lane: Lane,
    pub bytes: Bytes,
}

impl Chunk {
    fn cost(&self) -> usize {
        self.bytes.len() + CHUNK_OVERHEAD
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({:?}, {} bytes)", self.lane, self.bytes.len())
    }
}

/// Received chunks that were not read yet.
pub(crate) struct Inbox {
    window: usize,
    /// How much the other side may still send.
    available: usize,
    /// Credit for chunks that were read, not yet returned to the other side.
    unreturned: usize,
    queue: VecDeque<Chunk>,
    open: bool,
    pub(crate) reader: Option<Waker>,
}

impl Inbox {
    pub(crate) fn new(window: usize) -> Self {
        Self { window, available: window, unreturned: 0, queue: VecDeque::new(), open: true, reader: None }
    }

    /// Returns false when the other side had no credit for this chunk.
    pub(crate) fn push(&mut self, chunk: Chunk) -> bool {
        let Some(left) = self.available.checked_sub(chunk.cost()) else { return false };
        self.available = left;
        if self.open {
            self.queue.push_back(chunk);
            wake(&mut self.reader);
        }
        true
    }

    pub(crate) fn pop(&mut self) -> Option<Chunk> {
        let chunk = self.queue.pop_front()?;
        self.unreturned += chunk.cost();
        Some(chunk)
    }

    /// Drops everything that is received from now on, without returning its credit, so the other side soon stops.
    pub(crate) fn close(&mut self) {
        self.open = false;
        self.queue = VecDeque::new();
        self.unreturned = 0;
        wake(&mut self.reader);
    }

    pub(crate) fn owes_credit(&self) -> bool {
        self.unreturned >= self.window / 2
    }

    pub(crate) fn return_credit(&mut self) -> Option<u32> {
        if !self.owes_credit() {
            return None;
        }
        self.available += self.unreturned;
        u32::try_from(std::mem::take(&mut self.unreturned)).ok()
    }

    pub(crate) fn held(&self) -> usize {
        self.queue.iter().map(Chunk::cost).sum()
    }
}

/// Chunks that wait to be written; all of them have credit.
pub(crate) struct Outbox {
    window: usize,
    credit: usize,
    held: usize,
    queue: VecDeque<Chunk>,
    pub(crate) sender: Option<Waker>,
}

impl Outbox {
    pub(crate) fn new(window: usize) -> Self {
        Self { window, credit: window, held: 0, queue: VecDeque::new(), sender: None }
    }

    /// The longest chunk that currently has credit.
    pub(crate) fn sendable(&self) -> usize {
        self.credit.saturating_sub(CHUNK_OVERHEAD)
    }

    /// Whether a chunk of this length must wait for credit; an empty one also has a cost.
    pub(crate) fn lacks_credit_for(&self, length: usize) -> bool {
        self.credit < length + CHUNK_OVERHEAD
    }

    /// The chunk must fit into [`Outbox::sendable`].
    pub(crate) fn push(&mut self, chunk: Chunk) {
        self.credit = self.credit.saturating_sub(chunk.cost());
        self.held += chunk.cost();
        self.queue.push_back(chunk);
    }

    pub(crate) fn pop(&mut self) -> Option<Chunk> {
        let chunk = self.queue.pop_front()?;
        self.held -= chunk.cost();
        Some(chunk)
    }

    /// Returns false when the other side returns no credit, or more than it can have received. Chunks that are
    /// still queued here count as not received: otherwise the other side could make this queue grow without limit.
    pub(crate) fn grant(&mut self, amount: u32) -> bool {
        let credit = self.credit + amount as usize;
        if amount == 0 || credit + self.held > self.window {
            return false;
        }
        self.credit = credit;
        wake(&mut self.sender);
        true
    }

    /// Drops the queue, because the other side accepts nothing more.
    pub(crate) fn clear(&mut self) {
        self.queue = VecDeque::new();
        self.held = 0;
        wake(&mut self.sender);
    }

    pub(crate) fn held(&self) -> usize {
        self.held
    }
}

pub(crate) fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
