//! The numbers that both sides live by: those a caller chooses, and those that are part of version 1.

use std::time::Duration;

use crate::frame::{HEADER, MAX_PAYLOAD};

/// What a side allows. Each side has its own; the smaller number of streams counts.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Conversations at a time. The caller waits for a free place, whoever opens more is cut off.
    pub streams: u16,
    /// How long the other side may take to prove itself.
    pub handshake: Duration,
    /// How long the other side may say nothing, or take nothing, before it is dead. It is asked (Ping) after half
    /// of this and is found dead after at most one and a half times this.
    pub idle: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { streams: 64, handshake: Duration::from_secs(5), idle: Duration::from_secs(30) }
    }
}

/// How much data of one conversation may be under way or unread in each direction. This, and not what the other
/// side would like to send, is what a stalled reader costs.
pub const WINDOW: usize = 256 * 1024;
/// The same for control messages.
pub const CONTROL_WINDOW: usize = 32 * 1024;
/// What a piece costs of a window beyond its bytes. It is about what the piece takes of memory: without it, a window
/// full of single bytes would cost sixty times the window.
pub const PIECE_COST: usize = 64;
/// The longest control message: two fit into the window, so that one always fits when half of it was returned.
pub const MAX_CONTROL: usize = CONTROL_WINDOW / 2 - PIECE_COST;

/// What is written at once. A small request waits for at most so much of a large transfer.
pub(crate) const BATCH: usize = 2 * MAX_PAYLOAD;
/// Room for two frames: when the unread rest of one is moved to the front, nothing is ever allocated again.
pub(crate) const READ_BUFFER: usize = 2 * MAX_FRAME;
pub(crate) const MAX_FRAME: usize = HEADER + MAX_PAYLOAD;
