//! Loading a session from the database, in whatever state its last owner left it.

use std::sync::Arc;

use agent::Translator;
use proto::socket::{Frame, ServerMessage, TurnOutcome};
use proto::{PromptState, SessionId};
use store::{EventBatch, Owned, QueuedPrompt, StoreError, TranscriptExtent};

use super::super::eviction::Activity;
use super::super::feed::Feed;
use super::super::presence::Watchers;
use super::super::telemetry::Telemetry;
use super::super::transcript::Transcript;
use super::broadcast::Stream;
use super::phase::Phase;
use super::prompts::run_status;
use super::questions::Questions;
use super::queue::PromptQueue;
use super::timer::Timer;
use super::turn::Turn;
use super::{End, EvictionState, Failures, Session, millis, redact};
use crate::hub::HubServices;

/// The number of bytes read from the log at a time.
const LOG_PAGE_BYTES: usize = 1024 * 1024;
const SECRETS_UNREAD: StoreError =
    StoreError::Refused("the secrets that a conversation must not show cannot be read");

impl Session {
    /// Claims ownership of the session. From now on, writes of earlier owners are rejected. If somebody has deleted the
    /// session, this finishes that, and there is no session any more.
    pub(in crate::hub) async fn load(services: Arc<HubServices>, id: SessionId) -> Result<Self, StoreError> {
        let Owned { owner, record, head, deleted } =
            services.store.own_session(id, &services.instance).await?;
        let prompts = services.store.queued_prompts(id).await?;
        let questions = Questions::new(
            services.store.open_questions(id).await?,
            services.store.undelivered_questions(id).await?,
        );
        let elapsed = services.clock.elapsed();
        let feed = Arc::new(Feed::new(head, services.clock.clone()));
        // The next broadcast reserves a new block.
        let stream = Stream { feed, transcript: Transcript::default(), reserved: head, pruned_at: head };
        let mut session = Self {
            services,
            owner,
            record,
            stream,
            telemetry: Telemetry::default(),
            eviction: EvictionState {
                activity: Arc::default(),
                watchers: Watchers::default(),
                idle_since: elapsed,
            },
            sandbox: Phase::Disconnected { resume: None },
            expiry: Timer::default(),
            failures: Failures { boots: 0, losses: 0, connected_at: elapsed, saves: 0 },
            queue: PromptQueue::new(prompts),
            turn: Turn::idle(),
            questions,
        };
        session.replay().await?;
        if deleted {
            Box::pin(session.finish_deletion()).await?;
            return Err(StoreError::Missing("this session"));
        }
        // Watchers of the last owner have already received this queue length.
        session.queue.changed_len();
        session.watch_expiry();
        Ok(session)
    }

    pub(in crate::hub) fn id(&self) -> SessionId {
        self.record.id
    }

    pub(in crate::hub) fn feed(&self) -> &Arc<Feed> {
        &self.stream.feed
    }

    pub(in crate::hub) fn activity(&self) -> &Arc<Activity> {
        &self.eviction.activity
    }

    /// Applies the part of the log that is not in the transcript table yet: open messages are loaded into memory,
    /// messages that are complete in the log are saved, and a turn that ended in the log is settled. A turn that was
    /// running continues.
    async fn replay(&mut self) -> Result<(), StoreError> {
        let TranscriptExtent { seq: reached, complete } =
            self.services.store.transcript_reach(self.record.id).await?;
        let sent = |prompt: &&QueuedPrompt| prompt.state == PromptState::Dispatched;
        let sent: Vec<String> = self.queue.iter().filter(sent).map(|prompt| prompt.id.clone()).collect();
        // A prompt that was marked as dispatched but never broadcast was never sent, so it is the next one.
        let mut turn = sent.iter().find(|id| complete.contains(*id)).cloned();
        let (mut place, mut outcome, now) = (0, None, millis(&self.services));
        let (mut finished, mut resume) = (Vec::new(), None::<Box<dyn Translator>>);
        let agent = self.record.agent_session_id.clone().unwrap_or_default();
        loop {
            let page = self.services.store.events_after(self.record.id, place, LOG_PAGE_BYTES).await?;
            let Some(last) = page.last() else { break };
            place = last.last_seq;
            for (seq, message) in page.iter().flat_map(logged_messages) {
                if seq > reached && message_id(&message).is_none_or(|id| !complete.contains(id)) {
                    finished.extend(self.stream.transcript.apply(&message, seq, now));
                }
                if let Some(begun) = message_id(&message).and_then(|id| sent.iter().find(|sent| *sent == id))
                {
                    turn = Some(begun.clone());
                    (resume, outcome) = (Some(self.translator_of_turn(&agent, begun)), None);
                } else if let Some(translator) = &mut resume {
                    translator.recall(&message);
                    if let ServerMessage::TurnComplete { outcome: ended, .. } = message {
                        outcome = Some(ended);
                    }
                }
            }
        }
        if !finished.is_empty() {
            let redactor = self.redactor().await.map_err(|_| SECRETS_UNREAD)?;
            let finished = finished.into_iter().map(|write| redact::write(&redactor, write)).collect();
            let settled = self.stream.transcript.settled(self.stream.feed.head());
            self.services.store.save_transcript(&self.owner, None, settled, finished).await?;
        }
        if let Some(turn) = &turn {
            self.queue.remove(turn);
        }
        let resume = match (&turn, &self.record.agent_session_id, resume) {
            (Some(_), Some(_), Some(mut translator)) => {
                translator.stream_lost();
                Some(translator)
            }
            (Some(turn), Some(agent), None) => Some(self.translator_of_turn(agent, turn)),
            _ => None,
        };
        self.sandbox = Phase::Disconnected { resume };
        match turn {
            Some(turn) => self.resume_turn(turn, outcome).await,
            None => Ok(()),
        }
    }

    /// A translator in the middle of a turn whose messages are yet to be recalled.
    fn translator_of_turn(&self, agent_session: &str, prompt: &str) -> Box<dyn Translator> {
        let mut translator = self.services.runtime.translator(agent_session);
        translator.begin(prompt);
        translator.stream_lost();
        translator
    }

    /// Continues a turn, or settles it if the last owner crashed after it logged the end.
    async fn resume_turn(&mut self, turn: String, outcome: Option<TurnOutcome>) -> Result<(), StoreError> {
        let Some(outcome) = outcome else {
            let prompt = self.services.store.unsettled_prompt(self.record.id, &turn).await?;
            let sender = prompt.as_ref().and_then(|prompt| prompt.sender_id.as_deref());
            self.services.gate.begin_turn(&self.record, &turn, sender).await?;
            self.stream.transcript.prompted(&turn);
            self.turn = Turn::start(turn);
            return Ok(());
        };
        self.services.gate.end_turn(&self.record, &turn, run_status(outcome)).await?;
        self.services.store.set_prompt_state(&self.owner, &turn, PromptState::Answered).await
    }

    /// Closes the open messages as interrupted when there is no turn to continue, because no agent will complete them.
    pub(in crate::hub) async fn close_open_messages(&mut self) -> Result<(), StoreError> {
        if self.turn.is_running() {
            return Ok(());
        }
        self.interrupt().await.or_else(End::into_store_error)
    }
}

impl End {
    /// The error of a step that is done while the session is loaded, when it cannot be evicted yet.
    pub(super) fn into_store_error(self) -> Result<(), StoreError> {
        match self {
            Self::Store(error) | Self::Refused(error) => Err(error),
            Self::Fenced => Err(StoreError::Fenced),
            Self::Secrets => Err(SECRETS_UNREAD),
            Self::Idle | Self::Deleted => Ok(()),
        }
    }
}

/// The messages in a batch of the log, with their sequence numbers. Frames that this version cannot parse are skipped.
pub(in crate::hub) fn logged_messages(batch: &EventBatch) -> impl Iterator<Item = (i64, ServerMessage)> {
    let numbered = (batch.first_seq..).zip(batch.frames.lines());
    numbered.filter_map(|(seq, line)| Some((seq, Frame::parse(line).ok()?.message)))
}

/// The id of the message that an event belongs to.
pub(in crate::hub) fn message_id(message: &ServerMessage) -> Option<&str> {
    match message {
        ServerMessage::Message(message) => Some(&message.id),
        ServerMessage::Token { message_id, .. }
        | ServerMessage::TextPartComplete { message_id, .. }
        | ServerMessage::MessageComplete { message_id }
        | ServerMessage::MessageCancelled { message_id: Some(message_id) }
        | ServerMessage::ToolStart { message_id: Some(message_id), .. } => Some(message_id),
        _ => None,
    }
}
