//! Detects a dead peer: it must send a frame, and read what we write, within the idle limit.

use crate::error::{ChannelError, Violation};
use crate::frame::Frame;

/// The state of the peer since the last check.
#[derive(Default)]
pub(crate) struct Pings {
    /// The pong we owe. One is enough: a second ping before the pong was written is a flood.
    pong_owed: Option<u32>,
    last_sent: u32,
    state: PingState,
    frame_seen: bool,
    quiet_checks: u8,
    writing: bool,
    stuck_checks: u8,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum PingState {
    #[default]
    Idle,
    Queued,
    Sent,
}

impl Pings {
    /// A complete frame has arrived; parts of a frame prove nothing.
    pub(crate) fn frame_received(&mut self) {
        self.frame_seen = true;
    }

    /// Records that a batch was started, or that the last one was written.
    pub(crate) fn set_writing(&mut self, writing: bool) {
        self.writing = writing;
        self.stuck_checks = 0;
    }

    pub(crate) fn receive_ping(&mut self, number: u32) -> Result<(), Violation> {
        if self.pong_owed.is_some() {
            return Err(Violation::PingFlood);
        }
        self.pong_owed = Some(number);
        Ok(())
    }

    pub(crate) fn receive_pong(&mut self, number: u32) -> Result<(), Violation> {
        if self.state != PingState::Sent || number != self.last_sent {
            return Err(Violation::UnexpectedPong);
        }
        self.state = PingState::Idle;
        Ok(())
    }

    pub(crate) fn next_frame(&mut self) -> Option<Frame> {
        if let Some(number) = self.pong_owed.take() {
            return Some(Frame::Pong(number));
        }
        if self.state != PingState::Queued {
            return None;
        }
        self.state = PingState::Sent;
        Some(Frame::Ping(self.last_sent))
    }

    /// Called twice per idle limit: the first check without a frame sends a ping, the second gives up. A batch may
    /// have started just before its first check, so a write is allowed one more.
    pub(crate) fn check(&mut self) -> Result<(), ChannelError> {
        self.quiet_checks = if std::mem::take(&mut self.frame_seen) { 0 } else { self.quiet_checks + 1 };
        self.stuck_checks = if self.writing { self.stuck_checks + 1 } else { 0 };
        if self.quiet_checks >= 2 {
            return Err(ChannelError::Silent);
        }
        if self.stuck_checks >= 3 {
            return Err(ChannelError::Stalled);
        }
        if self.quiet_checks == 1 && self.state == PingState::Idle {
            self.last_sent = self.last_sent.wrapping_add(1);
            self.state = PingState::Queued;
        }
        Ok(())
    }
}
