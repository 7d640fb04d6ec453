//! Taking over a session from the database, wherever the last owner left it.

use std::sync::Arc;

use opencode::translate::Translator;
use proto::socket::{Frame, ServerMessage};
use proto::{PromptState, SessionId};
use store::{EventBatch, Owned, QueuedPrompt, Reach, StoreError};

use super::super::feed::Feed;
use super::super::presence::Watchers;
use super::super::room::Pulse;
use super::super::telemetry::Telemetry;
use super::super::transcript::Transcript;
use super::{Over, Session, millis};
use crate::app::AppState;

/// What is read of the log at once.
const PAGE: usize = 1024 * 1024;

impl Session {
    /// Becomes the owner. From now on nobody else's writes to this session count.
    pub(in crate::hub) async fn load(app: AppState, id: SessionId) -> Result<Self, StoreError> {
        let Owned { owner, record, head } = app.store.own_session(id, &app.instance).await?;
        let prompts = app.store.queued_prompts(id).await?;
        let mut session = Self {
            feed: Arc::new(Feed::new(head, app.clock.clone())),
            pulse: Arc::default(),
            // The next words reserve anew.
            reserved: head,
            transcript: Transcript::default(),
            telemetry: Telemetry::default(),
            watchers: Watchers::default(),
            agent: None,
            translator: None,
            boot: None,
            failures: 0,
            losses: 0,
            had_at: app.clock.elapsed(),
            queue: prompts.into(),
            turn: None,
            dispatch: None,
            cancelled: false,
            aborting: None,
            aborts: 0,
            reading: None,
            settling: None,
            expiry: None,
            moving: None,
            unsaved: 0,
            idle_since: app.clock.elapsed(),
            rested: head,
            told_waiting: 0,
            app,
            owner,
            record,
        };
        session.replay().await?;
        // Whoever watched before was told of these.
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

    /// Puts what the log says and the transcript does not have yet back into memory: open messages, and the words of
    /// a turn that ran.
    async fn replay(&mut self) -> Result<(), StoreError> {
        let Reach { seq: reached, complete } = self.app.store.transcript_reach(self.record.id).await?;
        let sent = |prompt: &&QueuedPrompt| prompt.state == PromptState::Dispatched;
        let sent: Vec<String> = self.queue.iter().filter(sent).map(|prompt| prompt.id.clone()).collect();
        // One that was marked and never said was never sent: it is the next one.
        let mut turn = sent.iter().find(|id| complete.contains(*id)).cloned();
        let (mut place, mut words, now) = (0, None, millis(&self.app));
        loop {
            let page = self.app.store.events_after(self.record.id, place, PAGE).await?;
            let Some(last) = page.last() else { break };
            place = last.last_seq;
            for (seq, message) in page.iter().flat_map(spoken) {
                if seq > reached && about(&message).is_none_or(|id| !complete.contains(id)) {
                    self.transcript.apply(&message, seq, now);
                }
                if let Some(begun) = about(&message).and_then(|id| sent.iter().find(|sent| *sent == id)) {
                    turn = Some(begun.clone());
                    words = Some(Words::default());
                } else if let Some(words) = &mut words {
                    words.add(message);
                }
            }
        }
        if let Some(turn) = &turn {
            let prompt = self.app.store.unsettled_prompt(self.record.id, turn).await?;
            let sender = prompt.as_ref().and_then(|prompt| prompt.sender_id.as_deref());
            self.app.gate.begin_turn(&self.record, turn, sender).await?;
        }
        self.queue.retain(|prompt| turn.as_ref() != Some(&prompt.id));
        if let (Some(turn), Some(agent)) = (&turn, &self.record.agent_session_id) {
            self.translator = Some(Translator::resume(agent, turn, &words.unwrap_or_default().0));
        }
        self.turn = turn;
        Ok(())
    }

    /// Nobody will say more of what is open when there is no turn to go on with.
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

/// What a turn has said, with tokens that follow each other joined: a long turn is many of them.
#[derive(Default)]
struct Words(Vec<ServerMessage>);

impl Words {
    fn add(&mut self, message: ServerMessage) {
        if let (
            Some(ServerMessage::Token { message_id, part_id, token }),
            ServerMessage::Token { message_id: of, part_id: part, token: more },
        ) = (self.0.last_mut(), &message)
            && message_id == of
            && part_id == part
        {
            token.push_str(more);
            return;
        }
        self.0.push(message);
    }
}

/// What a batch of the log says, with its numbers. A frame of a later version says nothing to this one.
fn spoken(batch: &EventBatch) -> impl Iterator<Item = (i64, ServerMessage)> {
    let numbered = (batch.first_seq..).zip(batch.frames.lines());
    numbered.filter_map(|(seq, line)| Some((seq, Frame::parse(line).ok()?.message)))
}

/// The message that something is said of.
fn about(said: &ServerMessage) -> Option<&str> {
    match said {
        ServerMessage::Message(message) => Some(&message.id),
        ServerMessage::Token { message_id, .. }
        | ServerMessage::TextPartComplete { message_id, .. }
        | ServerMessage::MessageComplete { message_id }
        | ServerMessage::ToolStart { message_id: Some(message_id), .. } => Some(message_id),
        _ => None,
    }
}
