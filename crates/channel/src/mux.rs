//! The state machine of a channel's streams. It does no I/O: frames go in, frames come out.
//!
//! One lock guards it, which is never held across an await. Everything that the other side can repeat is bounded:
//! opens by the stream limit, data and control messages by credit, returned credit by what was written, final
//! frames by the open streams, pings by our answers. Exceeding a bound is a [`Violation`] and ends the channel.

mod entry;
mod local;
mod pings;

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

pub(crate) use entry::ClosingFrame;
use entry::Entry;
use pings::Pings;

use crate::error::{ChannelError, Violation};
use crate::frame::{Frame, StreamId};
use crate::handshake::Role;
use crate::window::wake;

/// A snapshot of what a channel holds in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub streams: usize,
    /// Received but unread bytes, including the overhead of each chunk.
    pub incoming: usize,
    /// `incoming` of the stream that holds most.
    pub fullest: usize,
    /// Bytes queued by this side and not yet written to the connection, including the overhead of each chunk.
    pub outgoing: usize,
}

pub(crate) struct Mux {
    role: Role,
    max_streams: u16,
    streams: HashMap<StreamId, Entry>,
    last_opened: StreamId,
    /// Streams that the other side opened and this side has not accepted yet.
    pending_opens: VecDeque<(StreamId, Bytes)>,
    pub(crate) acceptor: Option<Waker>,
    schedule: Schedule,
    pings: Pings,
    pub(crate) closed: Option<ChannelError>,
    /// This side opens or accepts no more streams.
    shutting_down: bool,
}

/// Schedules the writing: round robin with one frame per stream, so that a large transfer does not delay a small
/// request.
#[derive(Default)]
struct Schedule {
    turns: VecDeque<StreamId>,
    writer: Option<Waker>,
}

impl Schedule {
    fn add(&mut self, id: StreamId, entry: &mut Entry) {
        if !entry.scheduled {
            entry.scheduled = true;
            self.turns.push_back(id);
        }
        wake(&mut self.writer);
    }
}

impl Mux {
    pub(crate) fn new(role: Role, max_streams: u16) -> Self {
        Self {
            role,
            max_streams,
            streams: HashMap::new(),
            last_opened: 0,
            pending_opens: VecDeque::new(),
            acceptor: None,
            schedule: Schedule::default(),
            pings: Pings::default(),
            closed: None,
            shutting_down: false,
        }
    }

    /// Processes a frame from the other side.
    pub(crate) fn receive(&mut self, frame: Frame) -> Result<(), Violation> {
        self.pings.frame_received();
        match frame {
            Frame::Hello(_) => Err(Violation::LateHello),
            Frame::Open(id, request) => self.receive_open(id, request),
            Frame::Data(id, lane, bytes) => self.stream_for_peer(id)?.receive_data(id, lane, bytes),
            Frame::Control(id, bytes) => self.stream_for_peer(id)?.receive_control(id, bytes),
            Frame::End(id) => self.stream_for_peer(id)?.receive_end(id),
            Frame::Done(id, result) => self.receive_final(id, ClosingFrame::Done(result)),
            Frame::Reset(id, reason) => self.receive_final(id, ClosingFrame::Reset(reason)),
            Frame::Credit(id, flow, amount) => self.stream_for_peer(id)?.receive_credit(id, flow, amount),
            Frame::Ping(number) => {
                wake(&mut self.schedule.writer);
                self.pings.receive_ping(number)
            }
            Frame::Pong(number) => self.pings.receive_pong(number),
        }
    }

    /// The next frame to write: pings and pongs first, then the streams in turn.
    pub(crate) fn next_frame(&mut self) -> Option<Frame> {
        if let Some(frame) = self.pings.next_frame() {
            return Some(frame);
        }
        while let Some(id) = self.schedule.turns.pop_front() {
            let Some(entry) = self.streams.get_mut(&id) else { continue };
            let frame = entry.next_frame(id);
            if entry.is_closed() {
                self.streams.remove(&id);
            } else if frame.is_some() {
                self.schedule.turns.push_back(id);
            } else {
                entry.scheduled = false;
            }
            if frame.is_some() {
                return frame;
            }
        }
        None
    }

    /// Waits for a frame to write. Resolves to `None` when everything was written and this side has shut down.
    pub(crate) fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Option<Frame>> {
        let next = self.next_frame();
        self.pings.set_writing(next.is_some());
        if let Some(frame) = next {
            return Poll::Ready(Some(frame));
        }
        if self.shutting_down && self.streams.is_empty() {
            return Poll::Ready(None);
        }
        self.schedule.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Checks for a dead peer; called twice per idle limit.
    pub(crate) fn check_liveness(&mut self) -> Result<(), ChannelError> {
        wake(&mut self.schedule.writer);
        self.pings.check()
    }

    /// Ends all streams. The first reason is kept.
    pub(crate) fn close(&mut self, reason: ChannelError) {
        self.closed.get_or_insert(reason);
        self.streams.values_mut().for_each(Entry::wake_all);
        wake(&mut self.acceptor);
        wake(&mut self.schedule.writer);
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.streams.is_empty()
    }

    pub(crate) fn usage(&self) -> Usage {
        let mut usage = Usage { streams: self.streams.len(), ..Usage::default() };
        for entry in self.streams.values() {
            let incoming = entry.data_in.held() + entry.control_in.held();
            usage.incoming += incoming;
            usage.fullest = usage.fullest.max(incoming);
            usage.outgoing += entry.data_out.held() + entry.control_out.held();
        }
        usage
    }

    fn receive_open(&mut self, id: StreamId, request: Bytes) -> Result<(), Violation> {
        if self.role == Role::Caller {
            return Err(Violation::OpenByCallee(id));
        }
        let wanted = self.last_opened.wrapping_add(1);
        if id != wanted {
            return Err(Violation::StreamReused { got: id, wanted });
        }
        if self.streams.len() >= usize::from(self.max_streams) {
            return Err(Violation::TooManyStreams(self.max_streams));
        }
        self.last_opened = id;
        let entry = self.streams.entry(id).or_insert_with(|| Entry::new(None, None));
        if self.shutting_down {
            entry.finish(ClosingFrame::refusal());
            self.schedule.add(id, entry);
        } else {
            self.pending_opens.push_back((id, request));
            wake(&mut self.acceptor);
        }
        Ok(())
    }

    fn receive_final(&mut self, id: StreamId, last: ClosingFrame) -> Result<(), Violation> {
        let entry = self.stream_for_peer(id)?;
        entry.receive_final(last);
        if entry.is_closed() {
            self.streams.remove(&id);
            // A side that shuts down may have waited for this last stream.
            wake(&mut self.schedule.writer);
        }
        Ok(())
    }

    /// Returns the stream if the other side may still send frames on it.
    fn stream_for_peer(&mut self, id: StreamId) -> Result<&mut Entry, Violation> {
        match self.streams.get_mut(&id) {
            Some(entry) if entry.request.is_some() => Err(Violation::UnknownStream(id)),
            Some(entry) if entry.their_final.is_some() => Err(Violation::FrameAfterFinal(id)),
            Some(entry) => Ok(entry),
            None => Err(Violation::UnknownStream(id)),
        }
    }
}
