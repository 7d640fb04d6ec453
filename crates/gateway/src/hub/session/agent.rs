//! Listening to the agent: the session broadcasts its events and carries out their effects, and starts another agent
//! when one is lost.

use std::time::Duration;

use bytes::Bytes;
use opencode::api::ApiError;
use opencode::event::Event;
use opencode::translate::{Effect, Output};
use proto::socket::{ServerMessage, WireStatus};

use super::super::feed::Feed;
use super::phase::BootPurpose;
use super::{End, Phase, Session, millis};
use crate::runtime::Agent;

/// The maximum number and size of events handled together. Usually they are what one read of the stream returned.
const MAX_EVENTS: usize = 512;
const MAX_EVENT_BYTES: usize = 1024 * 1024;
/// The number of consecutive agents that may be lost, each within `STEADY` after it started, before the session fails.
const LOSSES: u32 = 6;
const STEADY: Duration = Duration::from_mins(1);
/// The delay before the second attempt to reconnect. Each further delay is twice as long.
const PAUSE: Duration = Duration::from_millis(250);

/// The next events of the agent, or the error that ended its stream (`None` if it ended cleanly).
pub(super) type AgentEvents = Result<Vec<Bytes>, Option<ApiError>>;

impl Session {
    /// Handles the events that one read of the agent's stream returned.
    pub(super) async fn agent_events(&mut self, events: AgentEvents) -> Result<(), End> {
        let events = match events {
            Ok(events) => events,
            Err(error) => return Box::pin(self.agent_lost(error)).await,
        };
        let Some(translator) = self.sandbox.translator() else { return Ok(()) };
        let now = millis(&self.services);
        let mut all = Output { messages: Vec::with_capacity(events.len()), effects: Vec::new() };
        for data in &events {
            // The agent may send events that we do not know. They are ignored.
            let Ok(event) = Event::parse(data) else { continue };
            translator.observe_into(&event, now, &mut all);
        }
        self.apply(all).await?;
        if !self.turn.is_running() {
            // The agent speaks without a turn. Prune the log now and then, so that this output does not accumulate.
            Box::pin(self.prune_if_long()).await?;
        }
        if self.agent_is_busy() { Ok(()) } else { Box::pin(self.after_turn()).await }
    }

    /// Broadcasts the messages that the translator produced, and carries out their effects.
    pub(super) async fn apply(&mut self, out: Output) -> Result<(), End> {
        for effect in &out.effects {
            if let Effect::Interrupted { message } = effect {
                self.stream.transcript.mark_interrupted(message);
            }
        }
        self.broadcast(out.messages).await?;
        for effect in out.effects {
            if self.sandbox.agent().is_none() {
                break;
            }
            match effect {
                Effect::Settle { after } => self.turn.timer().set(after),
                Effect::Ask(question) => Box::pin(self.ask(question)).await?,
                Effect::Reject { request, kind } => self.reject_request(request, kind),
                Effect::Settled { request } => Box::pin(self.settled_by_agent(&request)).await?,
                Effect::Interrupted { .. } => {}
            }
        }
        Ok(())
    }

    /// The reason why the gateway ended the session's sandbox for using too many resources, if it did.
    pub(super) async fn overuse_reason(&self) -> Option<String> {
        let id = crate::runtime::sandbox_of(&self.record).ok()?;
        self.services.runtime.sandboxes.provider.stop_reason(&id).await
    }

    async fn agent_lost(&mut self, error: Option<ApiError>) -> Result<(), End> {
        let overuse = self.overuse_reason().await;
        let reason = error.map_or_else(|| "the agent ended its stream".to_owned(), |error| error.to_string());
        let reason = overuse.clone().unwrap_or(reason);
        tracing::warn!(session = %self.record.id, reason, "the agent was lost");
        let purpose = match &mut self.sandbox {
            Phase::Connected(connection) => connection.retiring.take().map(BootPurpose::Retire),
            _ => None,
        };
        self.sandbox.disconnect();
        // A request to this agent that fails later must not fail the turn with the next one. Its history shows whether
        // the request arrived.
        if let Some(turn) = self.turn.running_mut() {
            turn.abort_request();
        }
        if let Some(message) = overuse {
            self.broadcast(vec![ServerMessage::Error { message }]).await?;
        }
        let steady = self.services.clock.elapsed().saturating_sub(self.failures.connected_at) > STEADY;
        self.failures.losses = if steady { 1 } else { self.failures.losses + 1 };
        let losses = self.failures.losses;
        if losses > LOSSES {
            return self.fail(&format!("The agent was lost {LOSSES} times in a row: {reason}")).await;
        }
        self.broadcast_status(WireStatus::Resuming, "Reconnecting to coding agent...").await?;
        let pause = if losses > 1 { PAUSE * 2_u32.pow(losses - 2) } else { Duration::ZERO };
        self.launch(pause, purpose.unwrap_or(BootPurpose::Connect));
        Ok(())
    }
}

/// Returns the next events of the agent: everything that one read returned, once the listeners have caught up.
pub(super) async fn next_events(agent: &mut Agent, feed: &Feed) -> AgentEvents {
    feed.caught_up().await;
    let first = loop {
        match agent.events.next().await {
            Ok(Some(first)) => break first,
            Ok(None) => return Err(None),
            Err(error @ ApiError::Event(_)) => skip_event(&error),
            Err(error) => return Err(Some(error)),
        }
    };
    let mut bytes = first.len();
    let mut events = vec![first];
    while events.len() < MAX_EVENTS
        && bytes < MAX_EVENT_BYTES
        && let Some(event) = agent.events.next_buffered()
    {
        match event {
            Ok(event) => {
                bytes += event.len();
                events.push(event);
            }
            Err(error) => skip_event(&error),
        }
    }
    Ok(events)
}

/// Counts an event that could not be read. Only this event is lost; the stream continues.
fn skip_event(error: &ApiError) {
    metrics::counter!("proliferate_agent_events_left_out_total").increment(1);
    tracing::debug!(%error, "an event of the agent was skipped");
}
