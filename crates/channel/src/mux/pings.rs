//! Whether the other side is alive: it must say something, and take something, within the idle limit.

use crate::error::{ChannelError, Violation};
use crate::frame::Frame;

/// What is known of the other side from one look at the clock to the next.
#[derive(Default)]
pub(crate) struct Pings {
    /// The answer we owe. One is enough: whoever asks again before it was written floods.
    owed: Option<u32>,
    last: u32,
    asked: Asked,
    heard: bool,
    quiet_looks: u8,
    writing: bool,
    stuck_looks: u8,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Asked {
    #[default]
    Nothing,
    Waits,
    Sent,
}

impl Pings {
    /// A whole frame has come; parts of one prove nothing.
    pub(crate) fn heard(&mut self) {
        self.heard = true;
    }

    /// A batch was begun, or the last one was taken.
    pub(crate) fn writing(&mut self, begun: bool) {
        self.writing = begun;
        self.stuck_looks = 0;
    }

    pub(crate) fn receive_ping(&mut self, number: u32) -> Result<(), Violation> {
        if self.owed.is_some() {
            return Err(Violation::PingFlood);
        }
        self.owed = Some(number);
        Ok(())
    }

    pub(crate) fn receive_pong(&mut self, number: u32) -> Result<(), Violation> {
        if self.asked != Asked::Sent || number != self.last {
            return Err(Violation::UnaskedPong);
        }
        self.asked = Asked::Nothing;
        Ok(())
    }

    pub(crate) fn next_frame(&mut self) -> Option<Frame> {
        if let Some(number) = self.owed.take() {
            return Some(Frame::Pong(number));
        }
        if self.asked != Asked::Waits {
            return None;
        }
        self.asked = Asked::Sent;
        Some(Frame::Ping(self.last))
    }

    /// A look at the clock, twice per idle limit: the first quiet one asks, the second gives up. A batch may have been
    /// begun just before the first of its looks, so that is given one more.
    pub(crate) fn look(&mut self) -> Result<(), ChannelError> {
        self.quiet_looks = if std::mem::take(&mut self.heard) { 0 } else { self.quiet_looks + 1 };
        self.stuck_looks = if self.writing { self.stuck_looks + 1 } else { 0 };
        if self.quiet_looks >= 2 {
            return Err(ChannelError::Silent);
        }
        if self.stuck_looks >= 3 {
            return Err(ChannelError::Stalled);
        }
        if self.quiet_looks == 1 && self.asked == Asked::Nothing {
            self.last = self.last.wrapping_add(1);
            self.asked = Asked::Waits;
        }
        Ok(())
    }
}
