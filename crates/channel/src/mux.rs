//! All conversations of a channel as a machine without input or output: frames go in, frames come out.
//!
//! It sits behind one lock that is never held across an await. Whatever the other side may repeat is bounded by
//! something: opening by the places, bytes and control messages by credit, returning credit by what was written, last
//! words by the conversations, pings by their answers. What is beyond is a [`Violation`] and ends the channel.

mod entry;
mod local;
mod pings;

use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use entry::Entry;
pub(crate) use entry::Final;
use pings::Pings;

use crate::error::{ChannelError, Violation};
use crate::frame::{Frame, StreamId};
use crate::handshake::Role;
use crate::window::wake;

/// What a channel holds in memory at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub streams: usize,
    /// Bytes that have come and were not read, with what each piece costs.
    pub incoming: usize,
    /// The same of the conversation that holds most.
    pub fullest: usize,
    /// Bytes that were sent here and not yet written, with what each piece costs.
    pub outgoing: usize,
}

pub(crate) struct Mux {
    role: Role,
    places: u16,
    streams: HashMap<StreamId, Entry>,
    last_opened: StreamId,
    /// Opened by the other side, and not yet taken by ours.
    arrived: VecDeque<(StreamId, Bytes)>,
    pub(crate) acceptor: Option<Waker>,
    schedule: Schedule,
    pings: Pings,
    pub(crate) closed: Option<ChannelError>,
    /// Nobody here opens or takes conversations any more.
    leaving: bool,
}

/// Who writes next: one frame each, in turn, so that a large transfer does not hold a small request up.
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
    pub(crate) fn new(role: Role, places: u16) -> Self {
        Self {
            role,
            places,
            streams: HashMap::new(),
            last_opened: 0,
            arrived: VecDeque::new(),
            acceptor: None,
            schedule: Schedule::default(),
            pings: Pings::default(),
            closed: None,
            leaving: false,
        }
    }

    /// Takes in a frame of the other side.
    pub(crate) fn receive(&mut self, frame: Frame) -> Result<(), Violation> {
        self.pings.heard();
        match frame {
            Frame::Hello(_) => Err(Violation::LateHello),
            Frame::Open(id, request) => self.receive_open(id, request),
            Frame::Data(id, lane, bytes) => self.known(id)?.receive_data(id, lane, bytes),
            Frame::Control(id, bytes) => self.known(id)?.receive_control(id, bytes),
            Frame::End(id) => self.known(id)?.receive_end(id),
            Frame::Done(id, result) => self.receive_final(id, Final::Done(result)),
            Frame::Reset(id, reason) => self.receive_final(id, Final::Reset(reason)),
            Frame::Credit(id, flow, amount) => self.known(id)?.receive_credit(id, flow, amount),
            Frame::Ping(number) => {
                wake(&mut self.schedule.writer);
                self.pings.receive_ping(number)
            }
            Frame::Pong(number) => self.pings.receive_pong(number),
        }
    }

    /// The next frame to write: what keeps the channel alive first, then the conversations in turn.
    pub(crate) fn next_frame(&mut self) -> Option<Frame> {
        if let Some(frame) = self.pings.next_frame() {
            return Some(frame);
        }
        while let Some(id) = self.schedule.turns.pop_front() {
            let Some(entry) = self.streams.get_mut(&id) else { continue };
            let frame = entry.next_frame(id);
            if entry.is_over() {
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

    /// Waits for something to write. Nothing comes when everything was said and nobody here goes on.
    pub(crate) fn poll_next(&mut self, cx: &Context<'_>) -> Poll<Option<Frame>> {
        let next = self.next_frame();
        self.pings.writing(next.is_some());
        if let Some(frame) = next {
            return Poll::Ready(Some(frame));
        }
        if self.leaving && self.streams.is_empty() {
            return Poll::Ready(None);
        }
        self.schedule.writer = Some(cx.waker().clone());
        Poll::Pending
    }

    /// A look at the clock, twice per idle limit.
    pub(crate) fn look(&mut self) -> Result<(), ChannelError> {
        wake(&mut self.schedule.writer);
        self.pings.look()
    }

    /// Ends everything. The first reason stays.
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
        if self.streams.len() >= usize::from(self.places) {
            return Err(Violation::TooManyStreams(self.places));
        }
        self.last_opened = id;
        let entry = self.streams.entry(id).or_insert_with(|| Entry::new(None, None));
        if self.leaving {
            entry.finish(Final::refusal());
            self.schedule.add(id, entry);
        } else {
            self.arrived.push_back((id, request));
            wake(&mut self.acceptor);
        }
        Ok(())
    }

    fn receive_final(&mut self, id: StreamId, last: Final) -> Result<(), Violation> {
        let entry = self.known(id)?;
        entry.receive_final(last);
        if entry.is_over() {
            self.streams.remove(&id);
            // Whoever leaves may have waited for just this one.
            wake(&mut self.schedule.writer);
        }
        Ok(())
    }

    /// The conversation, if the other side may still speak in it.
    fn known(&mut self, id: StreamId) -> Result<&mut Entry, Violation> {
        match self.streams.get_mut(&id) {
            Some(entry) if entry.request.is_some() => Err(Violation::UnknownStream(id)),
            Some(entry) if entry.theirs.is_some() => Err(Violation::SpokeAfterFinal(id)),
            Some(entry) => Ok(entry),
            None => Err(Violation::UnknownStream(id)),
        }
    }
}
