//! The state of one stream as this side knows it.
//!
//! Each side closes its half with exactly one final frame, Done or Reset, and the stream is forgotten when both
//! were sent. A frame for an unknown stream is therefore never late but always a violation. A permit is released
//! only when the task that served the stream has dropped it, so opening and resetting in a loop starts no more work
//! than the limit allows.

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use crate::error::{StreamError, Violation};
use crate::frame::{Flow, Frame, Lane, StreamId};
use crate::limits::{CONTROL_WINDOW, WINDOW};
use crate::window::{Chunk, Inbox, Outbox, wake};

/// The frame that closes one side of a stream.
#[derive(Clone, Debug)]
pub(crate) enum ClosingFrame {
    Done(Bytes),
    Reset(Bytes),
}

impl ClosingFrame {
    pub(crate) fn dropped() -> Self {
        Self::Reset(Bytes::from_static(b"dropped"))
    }

    pub(crate) fn refusal() -> Self {
        Self::Reset(Bytes::from_static(b"this side accepts no more streams"))
    }

    /// Converts the other side's final frame into the result that a reader waits for.
    pub(crate) fn result(&self) -> Result<Bytes, StreamError> {
        match self {
            Self::Done(result) => Ok(result.clone()),
            Self::Reset(reason) => Err(StreamError::Reset(String::from_utf8_lossy(reason).into_owned())),
        }
    }
}

/// Whether this side still sends bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    Open,
    EndQueued,
    EndSent,
}

pub(crate) struct Entry {
    /// The caller's request, until it was written.
    pub(crate) request: Option<Bytes>,
    pub(crate) data_in: Inbox,
    pub(crate) control_in: Inbox,
    pub(crate) data_out: Outbox,
    pub(crate) control_out: Outbox,
    /// The other side has sent End.
    pub(crate) ended_in: bool,
    pub(crate) send_state: SendState,
    pub(crate) our_final: Option<ClosingFrame>,
    our_final_sent: bool,
    pub(crate) their_final: Option<ClosingFrame>,
    /// Whether the stream is queued for writing.
    pub(crate) scheduled: bool,
    /// Releases the permit when the stream is forgotten.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Entry {
    pub(crate) fn new(request: Option<Bytes>, permit: Option<OwnedSemaphorePermit>) -> Self {
        Self {
            request,
            data_in: Inbox::new(WINDOW),
            control_in: Inbox::new(CONTROL_WINDOW),
            data_out: Outbox::new(WINDOW),
            control_out: Outbox::new(CONTROL_WINDOW),
            ended_in: false,
            send_state: SendState::Open,
            our_final: None,
            our_final_sent: false,
            their_final: None,
            scheduled: false,
            _permit: permit,
        }
    }

    /// Whether both sides have sent their final frames.
    pub(crate) fn is_closed(&self) -> bool {
        self.our_final_sent && self.their_final.is_some()
    }

    pub(crate) fn receive_data(&mut self, id: StreamId, lane: Lane, bytes: Bytes) -> Result<(), Violation> {
        if self.ended_in {
            return Err(Violation::DataAfterEnd(id));
        }
        if self.data_in.push(Chunk { lane, bytes }) { Ok(()) } else { Err(Violation::CreditOverrun(id)) }
    }

    pub(crate) fn receive_control(&mut self, id: StreamId, bytes: Bytes) -> Result<(), Violation> {
        let chunk = Chunk { lane: Lane::Main, bytes };
        if self.control_in.push(chunk) { Ok(()) } else { Err(Violation::CreditOverrun(id)) }
    }

    pub(crate) fn receive_credit(&mut self, id: StreamId, flow: Flow, amount: u32) -> Result<(), Violation> {
        let granted = match flow {
            Flow::Data => self.data_out.grant(amount),
            Flow::Control => self.control_out.grant(amount),
        };
        if granted { Ok(()) } else { Err(Violation::CreditExcess(id)) }
    }

    pub(crate) fn receive_end(&mut self, id: StreamId) -> Result<(), Violation> {
        if self.ended_in {
            return Err(Violation::DataAfterEnd(id));
        }
        self.ended_in = true;
        wake(&mut self.data_in.reader);
        Ok(())
    }

    pub(crate) fn receive_final(&mut self, last: ClosingFrame) {
        self.their_final = Some(last);
        self.data_out.clear();
        self.control_out.clear();
        wake(&mut self.data_in.reader);
        wake(&mut self.control_in.reader);
    }

    /// Closes this side with a final frame, unless it is already closed. Unread bytes are dropped. A reset also
    /// drops unwritten bytes, unless this side has already ended its data, which is then complete and still
    /// written.
    pub(crate) fn finish(&mut self, last: ClosingFrame) {
        if self.our_final.is_some() {
            return;
        }
        if matches!(last, ClosingFrame::Reset(_)) && self.send_state == SendState::Open {
            self.data_out.clear();
            self.control_out.clear();
        }
        self.our_final = Some(last);
        self.data_in.close();
        self.control_in.close();
        wake(&mut self.data_out.sender);
        wake(&mut self.control_out.sender);
    }

    /// The next frame to write. Control messages overtake data, and the final frame comes last.
    pub(crate) fn next_frame(&mut self, id: StreamId) -> Option<Frame> {
        if let Some(request) = self.request.take() {
            return Some(Frame::Open(id, request));
        }
        if self.our_final_sent {
            return None;
        }
        if self.their_final.is_none()
            && let Some(frame) = self.next_stream_frame(id)
        {
            return Some(frame);
        }
        let last = self.our_final.clone()?;
        self.our_final_sent = true;
        Some(match last {
            ClosingFrame::Done(result) => Frame::Done(id, result),
            ClosingFrame::Reset(reason) => Frame::Reset(id, reason),
        })
    }

    fn next_stream_frame(&mut self, id: StreamId) -> Option<Frame> {
        if let Some(amount) = self.data_in.return_credit() {
            return Some(Frame::Credit(id, Flow::Data, amount));
        }
        if let Some(amount) = self.control_in.return_credit() {
            return Some(Frame::Credit(id, Flow::Control, amount));
        }
        if let Some(chunk) = self.control_out.pop() {
            return Some(Frame::Control(id, chunk.bytes));
        }
        if let Some(chunk) = self.data_out.pop() {
            return Some(Frame::Data(id, chunk.lane, chunk.bytes));
        }
        if self.send_state == SendState::EndQueued {
            self.send_state = SendState::EndSent;
            return Some(Frame::End(id));
        }
        None
    }

    pub(crate) fn wake_all(&mut self) {
        wake(&mut self.data_in.reader);
        wake(&mut self.control_in.reader);
        wake(&mut self.data_out.sender);
        wake(&mut self.control_out.sender);
    }
}
