//! Taking over a session from the database, wherever the last owner left it.

use std::sync::Arc;

use opencode::translate::Translator;
use proto::socket::{Frame, ServerMessage};
use proto::{PromptState, SessionId};
use store::{Owned, QueuedPrompt, Store, StoreError};

use super::super::feed::Feed;
use super::super::telemetry::Telemetry;
use super::super::transcript::Transcript;
use super::{Over, Session, millis};
use crate::app::AppState;

/// What is read of the log to find out what a turn has said; longer turns go on from the agent's memory alone.
const LOG: usize = 64 * 1024 * 1024;

impl Session {
    /// Becomes the owner. From now on nobody else's writes to this session count.
    pub(in crate::hub) async fn load(app: AppState, id: SessionId) -> Result<Self, StoreError> {
        let Owned { owner, record, head, reserved: _ } = app.store.own_session(id, &app.instance).await?;
        let prompts = app.store.queued_prompts(id).await?;
        let mut session = Self {
            feed: Arc::new(Feed::new(head, app.clock.clone())),
            // The next words reserve anew: what the last owner had reserved and used may not all be known.
            reserved: head,
            transcript: Transcript::default(),
            telemetry: Telemetry::default(),
            watchers: 0,
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
            idle_since: app.clock.elapsed(),
            app,
            owner,
            record,
        };
        session.replay().await?;
        Ok(session)
    }

    pub(in crate::hub) fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Puts what the log says and the transcript does not have yet back into memory: open messages, and the words of
    /// a turn that ran.
    async fn replay(&mut self) -> Result<(), StoreError> {
        let stored = self.app.store.transcript(self.record.id).await?;
        let done: std::collections::HashSet<String> = stored
            .messages
            .into_iter()
            .filter(|message| message.is_complete)
            .map(|message| message.id)
            .collect();
        let said = logged(&self.app.store, self.record.id).await?;
        let now = millis(&self.app);
        for (seq, message) in &said {
            let known = about(message).is_some_and(|id| done.contains(id));
            if *seq > stored.seq && !known {
                self.transcript.apply(message, *seq, now);
            }
        }
        // One that was marked and never said was never sent: it is the next one.
        let was_said = |id: &str| {
            done.contains(id)
                || said.iter().any(|(_, message)| matches!(message, ServerMessage::Message(m) if m.id == id))
        };
        let runs = |prompt: &QueuedPrompt| prompt.state == PromptState::Dispatched && was_said(&prompt.id);
        self.turn = self.queue.iter().find(|prompt| runs(prompt)).map(|prompt| prompt.id.clone());
        if let Some(turn) = &self.turn {
            self.app.gate.begin_turn(&self.record, turn).await?;
        }
        self.queue.retain(|prompt| !runs(prompt));
        if let (Some(turn), Some(agent)) = (&self.turn, &self.record.agent_session_id) {
            let of_turn = said.iter().map(|(_, message)| message).skip_while(
                |message| !matches!(message, ServerMessage::Message(message) if message.id == *turn),
            );
            self.translator = Some(Translator::resume(agent, turn, of_turn));
        }
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

/// Everything that is in the log, with its numbers.
async fn logged(store: &Store, session: SessionId) -> Result<Vec<(i64, ServerMessage)>, StoreError> {
    let mut said = Vec::new();
    for batch in store.events_after(session, 0, LOG).await? {
        for (seq, line) in (batch.first_seq..).zip(batch.frames.lines()) {
            // A frame of a later version says nothing to this one.
            if let Ok(frame) = Frame::parse(line) {
                said.push((seq, frame.message));
            }
        }
    }
    Ok(said)
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
