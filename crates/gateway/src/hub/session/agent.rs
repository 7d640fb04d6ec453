//! Listening to the agent: the session broadcasts its events and carries out their effects, and starts another agent
//! when one is lost.

use std::time::Duration;

use agent::{AgentError, Effect, EventBatch, Output};
use proto::socket::{ServerMessage, WireStatus};

use super::super::feed::Feed;
use super::phase::BootPurpose;
use super::{End, Phase, Session, millis};
use crate::runtime::Agent;

/// The number of consecutive agents that may be lost, each within `STEADY_AFTER` after it started, before the session fails.
const MAX_LOST_AGENTS: u32 = 6;
const STEADY_AFTER: Duration = Duration::from_mins(1);
/// The delay before the second attempt to reconnect. Each further delay is twice as long.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(250);

/// The next events of the agent, or the error that ended its stream (`None` if it ended cleanly).
pub(super) type AgentEvents = Result<EventBatch, Option<AgentError>>;

impl Session {
    /// Handles the events that one read of the agent's stream returned.
    pub(super) async fn agent_events(&mut self, events: AgentEvents) -> Result<(), End> {
        let EventBatch { events, skipped } = match events {
            Ok(batch) => batch,
            Err(error) => return Box::pin(self.agent_lost(error)).await,
        };
        for error in &skipped {
            metrics::counter!("proliferate_agent_events_left_out_total").increment(1);
            tracing::debug!(session = %self.record.id, %error, "an event of the agent was skipped");
        }
        Box::pin(self.keep_secrets_whole()).await?;
        let Some(translator) = self.sandbox.translator() else { return Ok(()) };
        let mut all = Output::default();
        translator.observe(&events, millis(&self.services), &mut all);
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
                Effect::Title(title) => Box::pin(self.set_model_title(&title)).await?,
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

    async fn agent_lost(&mut self, error: Option<AgentError>) -> Result<(), End> {
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
        let mut is_reload = false;
        if let Some(turn) = self.turn.running_mut() {
            turn.abort_request();
            is_reload = turn.reload.stream_ended();
        }
        if let Some(message) = overuse {
            self.broadcast(vec![ServerMessage::Error { message }]).await?;
        }
        let losses = if is_reload { 0 } else { self.count_loss() };
        if losses > MAX_LOST_AGENTS {
            return self
                .fail(&format!("The agent was lost {MAX_LOST_AGENTS} times in a row: {reason}"))
                .await;
        }
        self.broadcast_status(WireStatus::Resuming, "Reconnecting to coding agent...").await?;
        let pause = if losses > 1 { FIRST_RETRY_DELAY * 2_u32.pow(losses - 2) } else { Duration::ZERO };
        self.launch(pause, purpose.unwrap_or(BootPurpose::Connect));
        Ok(())
    }

    /// Counts a lost agent. Returns how many were lost in a row.
    fn count_loss(&mut self) -> u32 {
        let steady = self.services.clock.elapsed().saturating_sub(self.failures.connected_at) > STEADY_AFTER;
        self.failures.losses = if steady { 1 } else { self.failures.losses + 1 };
        self.failures.losses
    }
}

/// Returns the next events of the agent, once the listeners have caught up.
pub(super) async fn next_events(agent: &mut Agent, feed: &Feed) -> AgentEvents {
    feed.caught_up().await;
    agent.events.next().await.map_err(Some)?.ok_or(None)
}
