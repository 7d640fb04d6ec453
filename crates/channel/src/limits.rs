//! The limits of a channel: those that each side chooses, and those that protocol version 1 fixes.

use std::time::Duration;

use crate::frame::{HEADER, MAX_PAYLOAD};

/// The limits that a side chooses. Each side has its own; the smaller number of streams applies.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Streams open at once. [`crate::Caller::open`] waits for a free one; a peer that opens more is disconnected.
    pub streams: u16,
    /// How long the other side may take to prove itself.
    pub handshake: Duration,
    /// How long the other side may send nothing, or read nothing, before it is considered dead. We send a ping
    /// after half of this, and give up after at most one and a half times this.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { streams: 64, handshake: Duration::from_secs(5), idle: Duration::from_secs(30) }
    }
}

/// How much data of one stream may be in flight or unread in each direction. It bounds the memory that a stalled
/// reader costs, however much the other side sends.
pub const WINDOW: usize = 256 * 1024;
/// The same for control messages.
pub const CONTROL_WINDOW: usize = 32 * 1024;
/// What a chunk costs of a window in addition to its bytes, roughly its memory overhead. Without it, a window full
/// of single bytes would take sixty times the window in memory.
pub const CHUNK_OVERHEAD: usize = 64;
/// The longest control message. Two fit into the window, so one always fits once half of it was returned.
pub const MAX_CONTROL: usize = CONTROL_WINDOW / 2 - CHUNK_OVERHEAD;

/// How many bytes are written at once. A small request waits for at most this much of a large transfer.
pub(crate) const BATCH: usize = 2 * MAX_PAYLOAD;
/// Space for two frames, so that moving an incomplete frame to the front never needs another allocation.
pub(crate) const READ_BUFFER: usize = 2 * MAX_FRAME;
pub(crate) const MAX_FRAME: usize = HEADER + MAX_PAYLOAD;
