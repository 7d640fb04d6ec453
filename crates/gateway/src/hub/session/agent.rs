//! Listening to the agent: the session broadcasts its events and carries out their effects, and starts another agent
//! when one is lost.

use std::time::Duration;

use bytes::Bytes;
use opencode::api::ApiError;
use opencode::event::Event;
use opencode::translate::{Effect, Output};
use proto::socket::{ServerMessage, WireStatus};

use super::super::feed::Feed;
use super::{Over, Session, millis};
use crate::runtime::Agent;

/// The maximum number and size of events handled together. Usually they are what one read of the stream returned.
const TOGETHER: usize = 512;
const TOGETHER_BYTES: usize = 1024 * 1024;
/// The number of consecutive agents that may be lost, each within `STEADY` after it started, before the session fails.
const LOSSES: u32 = 6;
const STEADY: Duration = Duration::from_mins(1);
/// The delay before the second attempt to reconnect. Each further delay is twice as long.
const PAUSE: Duration = Duration::from_millis(250);

/// The next events of the agent, or the error that ended its stream (`None` if it ended cleanly).
pub(super) type Heard = Result<Vec<Bytes>, Option<ApiError>>;

impl Session {
    /// Handles the events that one read of the agent's stream returned.
    pub(super) async fn agent_said(&mut self, heard: Heard) -> Result<(), Over> {
        let events = match heard {
            Ok(events) => events,
            Err(error) => return Box::pin(self.lost(error)).await,
        };
        let Some(translator) = &mut self.translator else { return Ok(()) };
        let now = millis(&self.services);
        let mut all = Output { messages: Vec::with_capacity(events.len()), effects: Vec::new() };
        for data in &events {
            // The agent may send events that we do not know. They are ignored.
            let Ok(event) = Event::parse(data) else { continue };
            translator.observe_into(&event, now, &mut all);
        }
        self.take(all).await?;
        if self.turn.is_none() {
            // The agent speaks without a turn. Prune the log now and then, so that this output does not accumulate.
            Box::pin(self.rest_at_times()).await?;
        }
        if self.works() { Ok(()) } else { Box::pin(self.after_turn()).await }
    }

    /// Broadcasts the messages that the translator produced, and carries out their effects.
    pub(super) async fn take(&mut self, out: Output) -> Result<(), Over> {
        for effect in &out.effects {
            if let Effect::Interrupted { message } = effect {
                self.transcript.mark_interrupted(message);
            }
        }
        self.say(out.messages).await?;
        for effect in out.effects {
            let Some(agent) = &self.agent else { break };
            let (client, session) = (agent.client.clone(), self.record.id);
            match effect {
                Effect::Settle { after } => self.settling = Some(Box::pin(tokio::time::sleep(after))),
                Effect::RejectPermission { request } => {
                    tokio::spawn(async move {
                        if let Err(error) = client.reject_permission(&request).await {
                            tracing::warn!(%session, %error, "a permission could not be refused");
                        }
                    });
                }
                Effect::RejectQuestion { request } => {
                    tokio::spawn(async move {
                        if let Err(error) = client.reject_question(&request).await {
                            tracing::warn!(%session, %error, "a question could not be refused");
                        }
                    });
                }
                Effect::Interrupted { .. } => {}
            }
        }
        Ok(())
    }

    /// Disconnects from the agent. A running turn continues, and its output can be read from the agent's history
    /// later.
    pub(super) fn disconnect(&mut self) {
        self.agent = None;
        if let Some(translator) = &mut self.translator {
            translator.stream_lost();
        }
    }

    /// The reason why the gateway ended the session's sandbox for using too many resources, if it did.
    pub(super) async fn ended_for(&self) -> Option<String> {
        let id = crate::runtime::sandbox_of(&self.record).ok()?;
        self.services.runtime.sandboxes.provider.stop_reason(&id).await
    }

    async fn lost(&mut self, error: Option<ApiError>) -> Result<(), Over> {
        let overuse = self.ended_for().await;
        let reason = error.map_or_else(|| "the agent ended its stream".to_owned(), |error| error.to_string());
        let reason = overuse.clone().unwrap_or(reason);
        tracing::warn!(session = %self.record.id, reason, "the agent was lost");
        self.disconnect();
        if let Some(message) = overuse {
            self.say(vec![ServerMessage::Error { message }]).await?;
        }
        let steady = self.services.clock.elapsed().saturating_sub(self.had_at) > STEADY;
        self.losses = if steady { 1 } else { self.losses + 1 };
        if self.losses > LOSSES {
            return self.fail(&format!("The agent was lost {LOSSES} times in a row: {reason}")).await;
        }
        self.say_status(WireStatus::Resuming, "Reconnecting to coding agent...").await?;
        let pause = if self.losses > 1 { PAUSE * 2_u32.pow(self.losses - 2) } else { Duration::ZERO };
        self.launch(pause);
        Ok(())
    }
}

/// Returns the next events of the agent: everything that one read returned, once the listeners have caught up. Waits
/// forever if there is no agent or if `wait` is set.
pub(super) async fn next(agent: &mut Option<Agent>, feed: &Feed, wait: bool) -> Heard {
    let Some(agent) = agent.as_mut().filter(|_| !wait) else { return std::future::pending().await };
    feed.caught_up().await;
    let first = loop {
        match agent.events.next().await {
            Ok(Some(first)) => break first,
            Ok(None) => return Err(None),
            Err(error @ ApiError::Event(_)) => left_out(&error),
            Err(error) => return Err(Some(error)),
        }
    };
    let mut bytes = first.len();
    let mut events = vec![first];
    while events.len() < TOGETHER
        && bytes < TOGETHER_BYTES
        && let Some(event) = agent.events.next_buffered()
    {
        match event {
            Ok(event) => {
                bytes += event.len();
                events.push(event);
            }
            Err(error) => left_out(&error),
        }
    }
    Ok(events)
}

/// Counts an event that could not be read. Only this event is lost; the stream continues.
fn left_out(error: &ApiError) {
    metrics::counter!("proliferate_agent_events_left_out_total").increment(1);
    tracing::debug!(%error, "an event of the agent was left out");
}
