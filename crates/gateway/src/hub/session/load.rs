//! Loading a session from the database, in whatever state its last owner left it.

use std::sync::Arc;

use opencode::translate::Translator;
use proto::socket::{Frame, ServerMessage, TurnOutcome};
use proto::{PromptState, SessionId};
use store::{EventBatch, Owned, QueuedPrompt, Reach, StoreError};

use super::super::feed::Feed;
use super::super::presence::Watchers;
use super::super::room::Pulse;
use super::super::telemetry::Telemetry;
use super::super::transcript::Transcript;
use super::turns::run_status;
use super::{Over, Session, millis};
use crate::hub::HubServices;

/// The number of bytes read from the log at a time.
const PAGE: usize = 1024 * 1024;

impl Session {
    /// Claims ownership of the session. From now on, writes of earlier owners are rejected.
    pub(in crate::hub) async fn load(services: Arc<HubServices>, id: SessionId) -> Result<Self, StoreError> {
        let Owned { owner, record, head } = services.store.own_session(id, &services.instance).await?;
        let prompts = services.store.queued_prompts(id).await?;
        let mut session = Self {
            feed: Arc::new(Feed::new(head, services.clock.clone())),
            pulse: Arc::default(),
            // The next broadcast reserves a new block.
            reserved: head,
            transcript: Transcript::default(),
            telemetry: Telemetry::default(),
            watchers: Watchers::default(),
            agent: None,
            translator: None,
            boot: None,
            failures: 0,
            losses: 0,
            had_at: services.clock.elapsed(),
            queue: prompts.into(),
            turn: None,
            dispatch: None,
            cancelled: false,
            outcome: None,
            aborting: None,
            aborts: 0,
            reading: None,
            settling: None,
            expiry: None,
            moving: None,
            stopping: Vec::new(),
            unsaved: 0,
            idle_since: services.clock.elapsed(),
            rested: head,
            told_waiting: 0,
            services,
            owner,
            record,
        };
        session.replay().await?;
        // Watchers of the last owner have already received this queue length.
        session.told_waiting = session.queue.len();
        session.watch_expiry();
        Ok(session)
    }

    pub(in crate::hub) fn id(&self) -> SessionId {
        self.record.id
    }

    pub(in crate::hub) fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    pub(in crate::hub) fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// Applies the part of the log that is not in the transcript table yet: open messages are loaded into memory,
    /// messages that are complete in the log are saved, and a turn that ended in the log is settled. A turn that was
    /// running continues.
    async fn replay(&mut self) -> Result<(), StoreError> {
        let Reach { seq: reached, complete } = self.services.store.transcript_reach(self.record.id).await?;
        let sent = |prompt: &&QueuedPrompt| prompt.state == PromptState::Dispatched;
        let sent: Vec<String> = self.queue.iter().filter(sent).map(|prompt| prompt.id.clone()).collect();
        // A prompt that was marked as dispatched but never broadcast was never sent, so it is the next one.
        let mut turn = sent.iter().find(|id| complete.contains(*id)).cloned();
        let (mut place, mut outcome, now) = (0, None, millis(&self.services));
        let mut finished = Vec::new();
        let agent = self.record.agent_session_id.clone().unwrap_or_default();
        loop {
            let page = self.services.store.events_after(self.record.id, place, PAGE).await?;
            let Some(last) = page.last() else { break };
            place = last.last_seq;
            for (seq, message) in page.iter().flat_map(spoken) {
                if seq > reached && about(&message).is_none_or(|id| !complete.contains(id)) {
                    finished.extend(self.transcript.apply(&message, seq, now));
                }
                if let Some(begun) = about(&message).and_then(|id| sent.iter().find(|sent| *sent == id)) {
                    turn = Some(begun.clone());
                    (self.translator, outcome) = (Some(Translator::resume(&agent, begun, [])), None);
                } else if let Some(translator) = &mut self.translator {
                    translator.recall(&message);
                    if let ServerMessage::TurnComplete { outcome: ended, .. } = message {
                        outcome = Some(ended);
                    }
                }
            }
        }
        if !finished.is_empty() {
            let settled = self.transcript.settled(self.feed.head());
            self.services.store.save_transcript(&self.owner, None, settled, finished).await?;
        }
        self.queue.retain(|prompt| turn.as_ref() != Some(&prompt.id));
        self.translator = match (&turn, &self.record.agent_session_id, self.translator.take()) {
            (Some(_), Some(_), Some(mut translator)) => {
                translator.stream_lost();
                Some(translator)
            }
            (Some(turn), Some(agent), None) => Some(Translator::resume(agent, turn, [])),
            _ => None,
        };
        match turn {
            Some(turn) => self.resume_turn(turn, outcome).await,
            None => Ok(()),
        }
    }

    /// Continues a turn, or settles it if the last owner crashed after it logged the end.
    async fn resume_turn(&mut self, turn: String, outcome: Option<TurnOutcome>) -> Result<(), StoreError> {
        let Some(outcome) = outcome else {
            let prompt = self.services.store.unsettled_prompt(self.record.id, &turn).await?;
            let sender = prompt.as_ref().and_then(|prompt| prompt.sender_id.as_deref());
            self.services.gate.begin_turn(&self.record, &turn, sender).await?;
            self.transcript.prompted(&turn);
            self.turn = Some(turn);
            return Ok(());
        };
        self.services.gate.end_turn(&self.record, &turn, run_status(outcome)).await?;
        self.services.store.set_prompt_state(&self.owner, &turn, PromptState::Answered).await
    }

    /// Closes the open messages as interrupted when there is no turn to continue, because no agent will complete them.
    pub(in crate::hub) async fn tidy(&mut self) -> Result<(), StoreError> {
        if self.turn.is_some() {
            return Ok(());
        }
        match self.interrupt().await {
            Err(Over::Store(error)) => Err(error),
            Err(Over::Fenced) => Err(StoreError::Fenced),
            Ok(()) | Err(Over::Idle | Over::Deleted) => Ok(()),
        }
    }
}

/// The messages in a batch of the log, with their sequence numbers. Frames that this version cannot parse are skipped.
pub(in crate::hub) fn spoken(batch: &EventBatch) -> impl Iterator<Item = (i64, ServerMessage)> {
    let numbered = (batch.first_seq..).zip(batch.frames.lines());
    numbered.filter_map(|(seq, line)| Some((seq, Frame::parse(line).ok()?.message)))
}

/// The id of the message that an event belongs to.
pub(in crate::hub) fn about(said: &ServerMessage) -> Option<&str> {
    match said {
        ServerMessage::Message(message) => Some(&message.id),
        ServerMessage::Token { message_id, .. }
        | ServerMessage::TextPartComplete { message_id, .. }
        | ServerMessage::MessageComplete { message_id }
        | ServerMessage::MessageCancelled { message_id: Some(message_id) }
        | ServerMessage::ToolStart { message_id: Some(message_id), .. } => Some(message_id),
        _ => None,
    }
}
