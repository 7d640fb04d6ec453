//! The conversation of a session that has no owner because the database cannot be written. It is built from what can be
//! read.

use clock::Clock;
use proto::SessionId;
use proto::socket::{Message, ServerMessage};
use store::{Store, StoreError, TranscriptExtent, TranscriptWrite};

use super::approvals::waiting_approvals;
use super::frame::{self, FrameText};
use super::session::{INIT_BYTES, logged_messages, message_id};
use super::transcript::{OpenMessage, Transcript};

/// The number of bytes read from the log at a time.
const LOG_PAGE_BYTES: usize = 1024 * 1024;

/// Builds an `init` frame, and returns it with the sequence number of the last frame it contains.
pub(crate) async fn read_init(
    store: &Store,
    clock: &Clock,
    id: SessionId,
) -> Result<(FrameText, i64), StoreError> {
    let stored = store.transcript(id, INIT_BYTES).await?;
    let TranscriptExtent { seq: reached, complete } = store.transcript_reach(id).await?;
    let now = clock.now().timestamp_millis();
    let (mut transcript, mut seq) = (Transcript::default(), reached);
    // What the log adds to an open message that was saved is not in its row.
    let saved = stored.messages.into_iter().filter(|message| complete.contains(&message.id));
    let mut messages: Vec<Message> = saved.map(Message::from).collect();
    loop {
        let page = store.events_after(id, seq, LOG_PAGE_BYTES).await?;
        let Some(last) = page.last() else { break };
        seq = last.last_seq;
        for (number, message) in page.iter().flat_map(logged_messages) {
            if number > reached
                && message_id(&message).is_none_or(|id| !complete.contains(id))
                && let Some(TranscriptWrite::Message(message)) = transcript.apply(&message, number, now)
            {
                messages.push(message.into());
            }
        }
    }
    let open = store.open_questions(id).await?;
    let questions = open.into_iter().map(|stored| stored.question).collect();
    messages.extend(transcript.open().iter().map(OpenMessage::to_message));
    let approvals = waiting_approvals(store, clock, id).await?;
    let init = ServerMessage::Init { messages, earlier: stored.earlier, config: None, questions, approvals };
    Ok((frame::stored_init_frame(&init, seq), seq))
}
