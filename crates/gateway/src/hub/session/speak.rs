//! Broadcasting: messages are numbered and logged before any watcher receives them. Also builds the complete
//! conversation for a new watcher.

use axum::extract::ws::Utf8Bytes;
use proto::socket::{Message, ServerMessage, WireStatus};
use store::{NewBatch, TranscriptWrite};

use super::super::transcript::Held;
use super::{Over, Session, frame, millis};

/// The number of sequence numbers reserved on disk at a time. A database crash may lose the end of the log; the next
/// owner then continues after the reserved block, so that no number is used twice.
const BLOCK: i64 = 100_000;
/// The maximum size of the stored conversation in an `init` frame. A longer conversation is cut to its end. A client
/// that does not read keeps the frame in our memory, so it is no larger than what the kernel itself buffers for a
/// socket.
pub(in crate::hub) const WHOLE: usize = 256 * 1024;
/// The number of frames kept in the log after a turn, for clients that reconnect.
const KEPT: i64 = 5_000;

impl Session {
    /// Broadcasts these messages in order. When this returns, they are in the log and published. The same transaction
    /// saves the messages that they complete, so that no client can have received the end of a message that a crash
    /// loses.
    pub(super) async fn say(&mut self, messages: Vec<ServerMessage>) -> Result<(), Over> {
        if messages.is_empty() {
            return Ok(());
        }
        let first = self.feed.head() + 1;
        let last = self.feed.head() + i64::try_from(messages.len()).unwrap_or(i64::MAX);
        if last > self.reserved {
            Box::pin(self.services.store.reserve_numbers(&self.owner, last + BLOCK)).await?;
            self.reserved = last + BLOCK;
        }
        let (text, frames) = frame::numbered(&messages, first);
        let finished = self.observe(first, &messages);
        let now = self.services.clock.now();
        if finished.is_empty() {
            self.services.store.append_events(&self.owner, first, last, &text, now).await?;
        } else {
            let batch =
                NewBatch { first_seq: first, last_seq: last, frames: text.as_str().to_owned(), at: now };
            let settled = self.transcript.settled(last);
            Box::pin(self.services.store.save_transcript(&self.owner, Some(batch), settled, finished))
                .await?;
        }
        self.feed.publish(first, frames);
        Ok(())
    }

    /// Applies messages to the transcript and the counters. Returns the writes to the transcript table that follow from
    /// them.
    fn observe(&mut self, first: i64, messages: &[ServerMessage]) -> Vec<TranscriptWrite> {
        let now = millis(&self.services);
        let mut finished = Vec::new();
        for (seq, said) in (first..).zip(messages) {
            self.telemetry.observe(said);
            if let ServerMessage::TurnComplete { outcome, .. } = said {
                self.outcome = Some(*outcome);
            }
            finished.extend(self.transcript.apply(said, seq, now));
        }
        finished
    }

    pub(super) async fn say_status(&mut self, status: WireStatus, message: &str) -> Result<(), Over> {
        self.say(vec![ServerMessage::Status { status, message: message.to_owned() }]).await
    }

    /// Saves the open messages as they are, marked as interrupted, because the agent will not complete them.
    pub(super) async fn interrupt(&mut self) -> Result<(), Over> {
        let cut: Vec<_> = self.transcript.interrupt().iter().map(Held::stored).collect();
        if cut.is_empty() {
            return Ok(());
        }
        Ok(self.services.store.save_messages(&self.owner, self.feed.head(), cut).await?)
    }

    /// Frees what a long turn has left in memory, and prunes the log.
    pub(super) async fn rest(&mut self) -> Result<(), Over> {
        self.feed.rest();
        self.rested = self.feed.head();
        Ok(self.services.store.prune_events(&self.owner, self.feed.head() - KEPT).await?)
    }

    /// Does the same if the log has not been pruned for many frames.
    pub(super) async fn rest_at_times(&mut self) -> Result<(), Over> {
        if self.feed.head() - self.rested > KEPT { self.rest().await } else { Ok(()) }
    }

    /// Returns the conversation so far, or `None` if the store does not answer.
    pub(super) async fn history(&self) -> Option<(Utf8Bytes, i64)> {
        let stored = match self.services.store.transcript(self.record.id, WHOLE).await {
            Ok(transcript) => transcript,
            Err(error) => {
                tracing::error!(session = %self.record.id, %error, "the transcript cannot be read");
                return None;
            }
        };
        let mut messages: Vec<Message> = stored.messages.into_iter().map(Message::from).collect();
        messages.extend(self.transcript.open().iter().map(Held::shown));
        let seq = self.feed.head();
        let init = ServerMessage::Init { messages, earlier: stored.earlier, config: None };
        Some((frame::init(&init, seq, self.owner.epoch()), seq))
    }
}
