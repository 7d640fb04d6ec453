//! The agent's history: read to find out what was missed while disconnected, and whether a turn is over.

use std::sync::Arc;
use std::time::Duration;

use opencode::api::ApiError;
use opencode::history::History;
use opencode::translate::Output;

use super::{Over, Session, millis};
use shares::Held;

/// The delay before another attempt when the agent's history could not be read.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Longer histories are parsed off the async workers.
const PARSED_AT_ONCE: usize = 64 * 1024;
const READ: &str = "read the history";

/// The agent's history, with the reservation for it in the session's share of memory.
pub(super) struct Memory {
    history: History,
    memory: Held,
}

impl Session {
    /// Starts to read what was missed while disconnected. This runs in the background, so a slow agent delays nobody.
    pub(super) fn catch_up(&mut self) {
        let (Some(agent), Some(translator), Some(turn), None) =
            (&self.agent, &self.translator, &self.turn, &self.reading)
        else {
            return;
        };
        if translator.is_busy() {
            let (client, session, turn) = (agent.client.clone(), agent.session.clone(), turn.clone());
            let (memory, party) = (Arc::clone(&self.services.memory), self.party());
            self.reading = Some(tokio::spawn(async move {
                let mut memory = memory.take(party, 0).map_err(|_| ApiError::NoMemory(READ))?;
                let mut allow = |bytes: usize| memory.grow(bytes as u64).is_ok();
                let history = client.history(&session, &turn, &mut allow).await?;
                Ok(Memory { history, memory })
            }));
        }
    }

    /// Handles the result of reading the agent's history.
    pub(super) async fn remembered(&mut self, read: Result<Memory, ApiError>) -> Result<(), Over> {
        self.reading = None;
        match read {
            Ok(read) => self.reconcile(read).await?,
            Err(error) => {
                tracing::warn!(session = %self.record.id, %error, "the agent's history cannot be read");
                self.settling = Some(Box::pin(tokio::time::sleep(ASK_AGAIN)));
            }
        }
        self.abort();
        self.after_turn().await
    }

    /// Broadcasts what was missed, and sends a prompt again that never arrived.
    async fn reconcile(&mut self, Memory { history, memory: _held }: Memory) -> Result<(), Over> {
        let now = millis(&self.services);
        // The abort was sent a while ago. If the agent had not started the turn by then, it will not start it now.
        let stopped = self.cancelled && self.aborts > 0 && self.aborting.is_none() && !history.busy;
        let (Some(translator), Some(turn)) = (&mut self.translator, self.turn.clone()) else { return Ok(()) };
        if history.has(&turn) {
            let out = self.compare(history, now).await;
            let cancelled =
                self.translator.as_mut().filter(|_| stopped).map(|translator| translator.cancel(now));
            self.take(out).await?;
            return self.take(cancelled.unwrap_or_default()).await;
        }
        if self.dispatch.is_some() {
            return Ok(());
        }
        let out = if self.cancelled {
            translator.cancel(now)
        } else if translator.has_refused() {
            translator.close(now)
        } else if let Some(prompt) = self.services.store.unsettled_prompt(self.record.id, &turn).await? {
            self.hand_over(prompt, None);
            return Ok(());
        } else {
            let lost = "The agent never got this prompt";
            self.translator.as_mut().map(|translator| translator.give_up(lost, now)).unwrap_or_default()
        };
        self.take(out).await
    }

    /// Computes what the history adds to what was already broadcast. A long history is processed off the async workers:
    /// the agent decides its length, and other sessions must not wait for it.
    async fn compare(&mut self, history: History, now: i64) -> Output {
        let Some(mut translator) = self.translator.take() else { return Output::default() };
        if history.bytes() <= PARSED_AT_ONCE {
            let out = translator.reconcile(&history, now);
            self.translator = Some(translator);
            return out;
        }
        let work = tokio::task::spawn_blocking(move || {
            let out = translator.reconcile(&history, now);
            (translator, out)
        });
        match work.await {
            Ok((translator, out)) => {
                self.translator = Some(translator);
                out
            }
            Err(error) => {
                tracing::error!(session = %self.record.id, %error, "the agent's history could not be compared");
                Output::default()
            }
        }
    }

    /// A turn seems to be over but the agent did not say so: asks its history.
    pub(super) async fn settle(&mut self) -> Result<(), Over> {
        self.settling = None;
        self.catch_up();
        self.after_turn().await
    }
}
