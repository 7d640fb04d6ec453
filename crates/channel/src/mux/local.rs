//! The operations of this side's own tasks on the state machine: open, accept, read, send, end.

use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::sync::OwnedSemaphorePermit;

use super::Mux;
use super::entry::{ClosingFrame, Entry, SendState};
use crate::error::{ChannelError, StreamError};
use crate::frame::{Lane, MAX_PAYLOAD, StreamId};
use crate::window::{Chunk, wake};

impl Mux {
    /// Opens a stream; its request is the first frame that is written for it.
    pub(crate) fn open(
        &mut self,
        request: Bytes,
        permit: OwnedSemaphorePermit,
    ) -> Result<StreamId, ChannelError> {
        if let Some(reason) = &self.closed {
            return Err(reason.clone());
        }
        let id = self.last_opened.checked_add(1).ok_or(ChannelError::Exhausted)?;
        self.last_opened = id;
        let entry = self.streams.entry(id).or_insert_with(|| Entry::new(Some(request), Some(permit)));
        self.schedule.add(id, entry);
        Ok(id)
    }

    /// The next stream that the other side opened.
    pub(crate) fn poll_accept(&mut self, cx: &Context<'_>) -> Poll<Option<(StreamId, Bytes)>> {
        if self.closed.is_some() {
            return Poll::Ready(None);
        }
        if let Some(open) = self.pending_opens.pop_front() {
            return Poll::Ready(Some(open));
        }
        self.acceptor = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Stops opening and accepting streams; open ones continue.
    pub(crate) fn shut_down(&mut self) {
        self.shutting_down = true;
        while let Some((id, _)) = self.pending_opens.pop_front() {
            self.finish(id, ClosingFrame::refusal());
        }
        wake(&mut self.schedule.writer);
    }

    pub(crate) fn poll_data(
        &mut self,
        id: StreamId,
        cx: &Context<'_>,
    ) -> Poll<Result<Option<Chunk>, StreamError>> {
        let Some(entry) = self.streams.get_mut(&id) else {
            return Poll::Ready(Err(closed_error(self.closed.as_ref())));
        };
        if let Some(chunk) = entry.data_in.pop() {
            if entry.data_in.owes_credit() {
                self.schedule.add(id, entry);
            }
            return Poll::Ready(Ok(Some(chunk)));
        }
        if entry.ended_in && entry.our_final.is_none() {
            return Poll::Ready(Ok(None));
        }
        if let Some(end_of_stream) = end_of_stream(entry, self.closed.as_ref()) {
            return Poll::Ready(end_of_stream.map(|_| None));
        }
        entry.data_in.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Waits for the other side's final frame. Unread bytes are dropped.
    pub(crate) fn poll_outcome(
        &mut self,
        id: StreamId,
        cx: &Context<'_>,
    ) -> Poll<Result<Bytes, StreamError>> {
        let Some(entry) = self.streams.get_mut(&id) else {
            return Poll::Ready(Err(closed_error(self.closed.as_ref())));
        };
        while entry.data_in.pop().is_some() {}
        if entry.data_in.owes_credit() {
            self.schedule.add(id, entry);
        }
        if let Some(end_of_stream) = end_of_stream(entry, self.closed.as_ref()) {
            return Poll::Ready(end_of_stream);
        }
        entry.data_in.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(crate) fn poll_control(
        &mut self,
        id: StreamId,
        cx: &Context<'_>,
    ) -> Poll<Result<Option<Bytes>, StreamError>> {
        let Some(entry) = self.streams.get_mut(&id) else {
            return Poll::Ready(Err(closed_error(self.closed.as_ref())));
        };
        if let Some(chunk) = entry.control_in.pop() {
            if entry.control_in.owes_credit() {
                self.schedule.add(id, entry);
            }
            return Poll::Ready(Ok(Some(chunk.bytes)));
        }
        if let Some(end_of_stream) = end_of_stream(entry, self.closed.as_ref()) {
            return Poll::Ready(end_of_stream.map(|_| None));
        }
        entry.control_in.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Queues one frame with as much of the data as fits and returns its size, at least one byte.
    pub(crate) fn poll_send(
        &mut self,
        id: StreamId,
        cx: &Context<'_>,
        length: usize,
        take: impl FnOnce(usize) -> (Lane, Bytes),
    ) -> Poll<Result<usize, StreamError>> {
        let entry = match writable(self.streams.get_mut(&id), self.closed.as_ref()) {
            Ok(entry) => entry,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if entry.send_state != SendState::Open {
            return Poll::Ready(Err(StreamError::Ended));
        }
        let fits = length.min(entry.data_out.sendable()).min(MAX_PAYLOAD);
        if fits == 0 {
            entry.data_out.sender = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let (lane, bytes) = take(fits);
        entry.data_out.push(Chunk { lane, bytes });
        self.schedule.add(id, entry);
        Poll::Ready(Ok(fits))
    }

    pub(crate) fn poll_send_control(
        &mut self,
        id: StreamId,
        cx: &Context<'_>,
        message: &Bytes,
    ) -> Poll<Result<(), StreamError>> {
        let entry = match writable(self.streams.get_mut(&id), self.closed.as_ref()) {
            Ok(entry) => entry,
            Err(error) => return Poll::Ready(Err(error)),
        };
        if entry.control_out.lacks_credit_for(message.len()) {
            entry.control_out.sender = Some(cx.waker().clone());
            return Poll::Pending;
        }
        entry.control_out.push(Chunk { lane: Lane::Main, bytes: message.clone() });
        self.schedule.add(id, entry);
        Poll::Ready(Ok(()))
    }

    /// Ends this side's bytes; what was queued is still written.
    pub(crate) fn end(&mut self, id: StreamId) {
        if let Some(entry) = self.streams.get_mut(&id)
            && entry.send_state == SendState::Open
        {
            entry.send_state = SendState::EndQueued;
            self.schedule.add(id, entry);
        }
    }

    /// Closes this side of the stream.
    pub(crate) fn finish(&mut self, id: StreamId, last: ClosingFrame) {
        if let Some(entry) = self.streams.get_mut(&id) {
            entry.finish(last);
            self.schedule.add(id, entry);
        }
    }

    /// Resets the stream if its sender is dropped without an end: the other side must not mistake a part for the
    /// whole.
    pub(crate) fn sender_dropped(&mut self, id: StreamId) {
        let unfinished = |entry: &Entry| entry.send_state == SendState::Open && entry.their_final.is_none();
        if self.streams.get(&id).is_some_and(unfinished) {
            self.finish(id, ClosingFrame::dropped());
        }
    }

    /// Resets the stream if its receiver is dropped early: the other side would otherwise spend its credit and
    /// hang.
    pub(crate) fn receiver_dropped(&mut self, id: StreamId) {
        let unfinished = |entry: &Entry| !entry.ended_in && entry.their_final.is_none();
        if self.streams.get(&id).is_some_and(unfinished) {
            self.finish(id, ClosingFrame::dropped());
        }
    }
}

/// Why no more data will arrive, or `None` if it still may.
fn end_of_stream(entry: &Entry, closed: Option<&ChannelError>) -> Option<Result<Bytes, StreamError>> {
    if entry.our_final.is_some() {
        return Some(Err(StreamError::Ended));
    }
    let their_final = entry.their_final.as_ref().map(ClosingFrame::result);
    their_final.or_else(|| closed.map(|reason| Err(StreamError::Channel(reason.clone()))))
}

/// Returns the stream if this side may still send on it.
fn writable<'a>(
    entry: Option<&'a mut Entry>,
    closed: Option<&ChannelError>,
) -> Result<&'a mut Entry, StreamError> {
    let Some(entry) = entry else { return Err(closed_error(closed)) };
    match end_of_stream(entry, closed) {
        None => Ok(entry),
        Some(Ok(_)) => Err(StreamError::Finished),
        Some(Err(error)) => Err(error),
    }
}

fn closed_error(closed: Option<&ChannelError>) -> StreamError {
    closed.map_or(StreamError::Ended, |reason| StreamError::Channel(reason.clone()))
}
