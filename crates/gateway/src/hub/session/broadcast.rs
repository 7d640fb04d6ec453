//! Broadcasting: messages are numbered and logged before any watcher receives them. Also builds the complete
//! conversation for a new watcher.

use std::sync::Arc;

use proto::socket::{Message, ServerMessage, WireStatus};
use store::{NewBatch, OpenTranscript, StoredMessage, TranscriptWrite};

use super::super::approvals::waiting_approvals;
use super::super::feed::Feed;
use super::super::frame::FrameText;
use super::super::transcript::{OpenMessage, Transcript};
use super::{End, Session, frame, millis, redact};

/// The number of sequence numbers reserved on disk at a time. A database crash may lose the end of the log; the next
/// owner then continues after the reserved block, so that no number is used twice.
const RESERVED_BLOCK: i64 = 100_000;
/// The maximum size of the stored conversation in an `init` frame. A longer conversation is cut to its end. A client
/// that does not read keeps the frame in our memory, so it is no larger than what the kernel itself buffers for a
/// socket.
pub(in crate::hub) const INIT_BYTES: usize = 256 * 1024;
/// The number of frames kept in the log after a turn, for clients that reconnect.
const MAX_KEPT_FRAMES: i64 = 5_000;

/// The stream of the session, as its only writer sees it.
pub(super) struct Stream {
    pub(super) feed: Arc<Feed>,
    pub(super) transcript: Transcript,
    /// The last reserved sequence number. Beyond it, more must be reserved first.
    pub(super) reserved: i64,
    /// The sequence number at which the log was last pruned.
    pub(super) pruned_at: i64,
}

impl Session {
    /// Broadcasts these messages in order. When this returns, they are in the log and published. The same transaction
    /// saves the messages that they complete, so that no client can have received the end of a message that a crash
    /// loses.
    pub(super) async fn broadcast(&mut self, messages: Vec<ServerMessage>) -> Result<(), End> {
        if messages.is_empty() {
            return Ok(());
        }
        let redactor = Box::pin(self.redactor_for(&messages)).await?;
        let messages = match &redactor {
            Some(redactor) => {
                messages.into_iter().map(|message| redact::message(redactor, message)).collect()
            }
            None => messages,
        };
        let first = self.stream.feed.head() + 1;
        let last = self.stream.feed.head() + i64::try_from(messages.len()).unwrap_or(i64::MAX);
        if last > self.stream.reserved {
            Box::pin(self.services.store.reserve_numbers(&self.owner, last + RESERVED_BLOCK)).await?;
            self.stream.reserved = last + RESERVED_BLOCK;
        }
        let lines = frame::numbered(&messages, first);
        let mut finished = self.observe(first, &messages);
        if let Some(redactor) = &redactor {
            finished = finished.into_iter().map(|write| redact::write(redactor, write)).collect();
        }
        let now = self.services.clock.now();
        if finished.is_empty() {
            self.services.store.append_events(&self.owner, first, last, lines.text(), now).await?;
        } else {
            let batch =
                NewBatch { first_seq: first, last_seq: last, frames: lines.text().to_owned(), at: now };
            let settled = self.stream.transcript.settled(last);
            Box::pin(self.services.store.save_transcript(&self.owner, Some(batch), settled, finished))
                .await?;
        }
        self.stream.feed.publish(first, lines.into_frames());
        Ok(())
    }

    /// Applies messages to the transcript and the counters. Returns the writes to the transcript table that follow from
    /// them.
    fn observe(&mut self, first: i64, messages: &[ServerMessage]) -> Vec<TranscriptWrite> {
        let now = millis(&self.services);
        let mut finished = Vec::new();
        for (seq, message) in (first..).zip(messages) {
            self.telemetry.observe(message);
            if let (ServerMessage::TurnComplete { outcome, .. }, Some(turn)) =
                (message, self.turn.running_mut())
            {
                turn.outcome = Some(*outcome);
            }
            finished.extend(self.stream.transcript.apply(message, seq, now));
        }
        finished
    }

    pub(super) async fn broadcast_status(&mut self, status: WireStatus, message: &str) -> Result<(), End> {
        self.broadcast(vec![ServerMessage::Status { status, message: message.to_owned() }]).await
    }

    /// Saves the open messages as they are, marked as interrupted, because the agent will not complete them.
    pub(super) async fn interrupt(&mut self) -> Result<(), End> {
        if self.stream.transcript.open().is_empty() {
            return Ok(());
        }
        let redactor = self.redactor().await?;
        let cut = self.stream.transcript.interrupt();
        let cut = cut.iter().map(|message| redact::stored(&redactor, message.to_stored())).collect();
        Ok(self.services.store.save_messages(&self.owner, self.stream.feed.head(), cut).await?)
    }

    /// Returns the open messages as they are. Whoever stores them stores them until they end and are saved again.
    pub(super) async fn open_transcript(&self) -> Result<OpenTranscript, End> {
        let redactor = self.redactor().await?;
        let open = self.stream.transcript.open().iter();
        let messages = open.map(|message| redact::stored(&redactor, message.to_stored())).collect();
        Ok(OpenTranscript { seq: self.stream.transcript.settled(self.stream.feed.head()), messages })
    }

    /// Frees what a long turn has left in memory, and prunes the log.
    pub(super) async fn prune(&mut self) -> Result<(), End> {
        self.stream.feed.shrink();
        self.stream.pruned_at = self.stream.feed.head();
        Ok(self.services.store.prune_events(&self.owner, self.stream.feed.head() - MAX_KEPT_FRAMES).await?)
    }

    /// Does the same if the log has not been pruned for many frames.
    pub(super) async fn prune_if_long(&mut self) -> Result<(), End> {
        if self.stream.feed.head() - self.stream.pruned_at > MAX_KEPT_FRAMES {
            self.prune().await
        } else {
            Ok(())
        }
    }

    /// Returns the conversation so far as an `init` frame, with the sequence number of the last frame that it contains.
    /// `None` if the store does not answer.
    pub(super) async fn init_frame(&self) -> Option<(FrameText, i64)> {
        let stored = match self.services.store.transcript(self.record.id, INIT_BYTES).await {
            Ok(transcript) => transcript,
            Err(error) => {
                tracing::error!(session = %self.record.id, %error, "the transcript cannot be read");
                return None;
            }
        };
        let approvals = match waiting_approvals(&self.services.store, &self.services.clock, self.record.id)
            .await
        {
            Ok(approvals) => approvals,
            Err(error) => {
                tracing::error!(session = %self.record.id, %error, "the waiting invocations cannot be read");
                return None;
            }
        };
        // An open message may have been saved as it was then.
        let open = self.stream.transcript.open();
        let is_complete = |message: &StoredMessage| open.iter().all(|held| held.id() != message.id);
        let stored_messages = stored.messages.into_iter().filter(is_complete);
        let mut messages: Vec<Message> = stored_messages.map(Message::from).collect();
        messages.extend(open.iter().map(OpenMessage::to_message));
        let seq = self.stream.feed.head();
        let init = ServerMessage::Init {
            messages,
            earlier: stored.earlier,
            config: None,
            questions: self.questions.shown(),
            approvals,
        };
        Some((frame::init(&init, seq, self.owner.epoch()), seq))
    }
}
