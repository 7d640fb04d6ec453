//! Credit: each side may send only as much as the other has said it will hold.
//!
//! A window belongs to one direction of one conversation. What is sent spends it, what the reader takes is returned
//! in portions of half a window. So a reader that stalls costs its window and never more, and a sender that is
//! refused credit costs the same on its side, because nothing is queued that has none.

use std::collections::VecDeque;
use std::fmt;
use std::task::Waker;

use bytes::Bytes;

use crate::frame::Lane;
use crate::limits::PIECE_COST;

/// Bytes as they came in one frame. Its `Debug` tells the size and never the contents.
#[derive(Clone, PartialEq, Eq)]
pub struct Chunk {
    pub lane: Lane,
    pub bytes: Bytes,
}

impl Chunk {
    fn cost(&self) -> usize {
        self.bytes.len() + PIECE_COST
    }
}

impl fmt::Debug for Chunk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chunk({:?}, {} bytes)", self.lane, self.bytes.len())
    }
}

/// What has come and was not read yet.
pub(crate) struct Inbox {
    window: usize,
    /// What the other side may still send.
    available: usize,
    /// What was read and not yet given back.
    unreturned: usize,
    queue: VecDeque<Chunk>,
    wanted: bool,
    pub(crate) reader: Option<Waker>,
}

impl Inbox {
    pub(crate) fn new(window: usize) -> Self {
        Self { window, available: window, unreturned: 0, queue: VecDeque::new(), wanted: true, reader: None }
    }

    /// False when the other side had no credit for this.
    pub(crate) fn push(&mut self, chunk: Chunk) -> bool {
        let Some(left) = self.available.checked_sub(chunk.cost()) else { return false };
        self.available = left;
        if self.wanted {
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

    /// Nobody reads any more. What still comes is dropped and its credit is kept: it ends by itself.
    pub(crate) fn close(&mut self) {
        self.wanted = false;
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

/// What waits to be written; all of it has credit.
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

    /// How long a piece may be now.
    pub(crate) fn room(&self) -> usize {
        self.credit.saturating_sub(PIECE_COST)
    }

    /// True if a piece of this length must wait; also an empty one costs.
    pub(crate) fn credit_lacks_for(&self, length: usize) -> bool {
        self.credit < length + PIECE_COST
    }

    /// The piece must fit into [`Outbox::room`].
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

    /// False when the other side returns nothing, or what it cannot have got. What is still held here counts: whoever
    /// could return credit for it would make this side hold more and more.
    pub(crate) fn grant(&mut self, amount: u32) -> bool {
        let credit = self.credit + amount as usize;
        if amount == 0 || credit + self.held > self.window {
            return false;
        }
        self.credit = credit;
        wake(&mut self.sender);
        true
    }

    /// The other side wants nothing more.
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
