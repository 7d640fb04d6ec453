//! Saying something to everyone: numbered, logged, and only then heard. And the whole conversation for one.

use axum::extract::ws::Utf8Bytes;
use proto::socket::{Message, ServerMessage, WireStatus};
use store::{NewBatch, TranscriptWrite};

use super::super::transcript::Held;
use super::{Over, Session, frame, millis};

/// Numbers are reserved in blocks on disk: after a crash of the database, which may cost the end of the log, the next
/// owner goes on behind the block.
const BLOCK: i64 = 100_000;
/// What of a conversation is told at once; of a longer one the end.
/// Whoever does not read it keeps it waiting in our memory, so it is no more than the system itself keeps for a socket.
pub(in crate::hub) const WHOLE: usize = 256 * 1024;
/// Frames that stay in the log behind the last turn, for clients that come back.
const KEPT: i64 = 5_000;

impl Session {
    /// Says all this to everyone, in order. When it returns, it is in the log and on its way. Messages that are
    /// finished by it are saved in the transaction that logs it, so that no client can have received the end of a
    /// message that a crash loses.
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

    /// Takes messages into the transcript and the counters; returns what is to be saved because of them.
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

    /// The agent will say no more of what is open: it is kept as it is, and marked.
    pub(super) async fn interrupt(&mut self) -> Result<(), Over> {
        let cut: Vec<_> = self.transcript.interrupt().iter().map(Held::stored).collect();
        if cut.is_empty() {
            return Ok(());
        }
        Ok(self.services.store.save_messages(&self.owner, self.feed.head(), cut).await?)
    }

    /// What a long turn has left in memory and in the log is let go of.
    pub(super) async fn rest(&mut self) -> Result<(), Over> {
        self.feed.rest();
        self.rested = self.feed.head();
        Ok(self.services.store.prune_events(&self.owner, self.feed.head() - KEPT).await?)
    }

    /// The same where that was not done for long.
    pub(super) async fn rest_at_times(&mut self) -> Result<(), Over> {
        if self.feed.head() - self.rested > KEPT { self.rest().await } else { Ok(()) }
    }

    /// The conversation up to now; nothing when the store does not answer.
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
