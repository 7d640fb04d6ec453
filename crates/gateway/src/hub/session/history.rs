//! The agent's history: read to find out what was missed while disconnected, and whether a turn is over.

use std::sync::Arc;
use std::time::Duration;

use agent::{AgentError, History, Output};

use super::phase::Phase;
use super::turn::{Request, Turn};
use super::{End, Session, millis};
use shares::Held;

/// The delay before another attempt when the agent's history could not be read.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// The delay before a second look at an idle agent that has not answered its prompt: one that has just stored the prompt
/// is about to start.
const ABOUT_TO_START: Duration = Duration::from_secs(1);
/// Longer histories are parsed off the async workers.
const PARSED_AT_ONCE: usize = 64 * 1024;
const READ_HISTORY: &str = "read the history";

/// The agent's history, with the reservation for it in the session's share of memory.
pub(super) struct HistoryRead {
    history: History,
    memory: Held,
}

impl Session {
    /// Starts to read what was missed while disconnected. This runs in the background, so a slow agent delays nobody.
    pub(super) fn read_history(&mut self) {
        let party = self.party();
        let (Phase::Connected(connection), Turn::Running(turn)) = (&self.sandbox, &mut self.turn) else {
            return;
        };
        if turn.history.is_none() && connection.translator.is_busy() {
            let (client, session) = (connection.agent.client.clone(), connection.agent.session.id.clone());
            let (prompt, memory) = (turn.prompt.clone(), Arc::clone(&self.services.memory));
            turn.history = Some(tokio::spawn(async move {
                let mut memory = memory.take(party, 0).map_err(|_| AgentError::NoMemory(READ_HISTORY))?;
                let mut allow = |bytes: usize| memory.grow(bytes as u64).is_ok();
                let history = client.history(&session, &prompt, &mut allow).await?;
                Ok(HistoryRead { history, memory })
            }));
        }
    }

    /// Handles the result of reading the agent's history.
    pub(super) async fn history_read(&mut self, read: Result<HistoryRead, AgentError>) -> Result<(), End> {
        match read {
            Ok(read) => self.reconcile(read).await?,
            Err(error) => {
                tracing::warn!(session = %self.record.id, %error, "the agent's history cannot be read");
                self.turn.timer().set(RETRY_DELAY);
            }
        }
        self.send_abort();
        self.after_turn().await
    }

    /// Broadcasts what was missed, and sends a prompt again that never arrived or that the agent died with.
    async fn reconcile(
        &mut self,
        HistoryRead { mut history, memory: _held }: HistoryRead,
    ) -> Result<(), End> {
        let now = millis(&self.services);
        let Turn::Running(turn) = &self.turn else { return Ok(()) };
        let prompt = turn.prompt.clone();
        let (is_sending, is_aborting) =
            (matches!(turn.request, Request::Prompt(_)), matches!(turn.request, Request::Abort(_)));
        let is_cancelled = turn.cancellation.is_some();
        // The abort was sent a while ago. If the agent had not started the turn by then, it will not start it now.
        let was_aborted = turn.cancellation.as_ref().is_some_and(|cancellation| cancellation.aborts > 0);
        let has_stopped = was_aborted && !is_aborting && !history.busy;
        let Some(translator) = self.sandbox.translator() else { return Ok(()) };
        let is_abandoned = translator.is_abandoned(&history) && !is_cancelled;
        if self.seems_abandoned_first(is_abandoned) {
            return Ok(());
        }
        if history.has(&prompt) && !is_abandoned {
            let requests = std::mem::take(&mut history.requests);
            self.keep_secrets_whole().await?;
            let out = self.compare(history, now).await;
            let cancelled =
                self.sandbox.translator().filter(|_| has_stopped).map(|translator| translator.cancel(now));
            self.apply(out).await?;
            let pending = self.sandbox.translator().map(|translator| translator.pending(&requests));
            self.apply(pending.unwrap_or_default()).await?;
            return self.apply(cancelled.unwrap_or_default()).await;
        }
        let Some(translator) = self.sandbox.translator().filter(|_| !is_sending) else { return Ok(()) };
        let out = if is_cancelled {
            translator.cancel(now)
        } else if translator.has_refused() {
            translator.close(now)
        } else if let Some(prompt) = self.services.store.unsettled_prompt(self.record.id, &prompt).await? {
            self.dispatch(prompt, None);
            return Ok(());
        } else {
            let lost = "The agent never got this prompt";
            self.sandbox.translator().map(|translator| translator.give_up(lost, now)).unwrap_or_default()
        };
        self.apply(out).await
    }

    /// Whether a turn seems abandoned for the first time. Then the history is read again before the prompt is sent again.
    fn seems_abandoned_first(&mut self, is_abandoned: bool) -> bool {
        let Some(turn) = self.turn.running_mut() else { return false };
        turn.seems_abandoned = is_abandoned && !turn.seems_abandoned;
        if turn.seems_abandoned {
            turn.check.set(ABOUT_TO_START);
        }
        turn.seems_abandoned
    }

    /// Computes what the history adds to what was already broadcast. A long history is processed off the async workers:
    /// the agent decides its length, and other sessions must not wait for it.
    async fn compare(&mut self, history: History, now: i64) -> Output {
        let Phase::Connected(connection) = &mut self.sandbox else { return Output::default() };
        if history.bytes() <= PARSED_AT_ONCE {
            return connection.translator.reconcile(&history, now);
        }
        // If the comparison panics, the turn ends with what was broadcast so far.
        let fresh = self.services.runtime.translator(&connection.agent.session.id);
        let mut translator = std::mem::replace(&mut connection.translator, fresh);
        let work = tokio::task::spawn_blocking(move || {
            let out = translator.reconcile(&history, now);
            (translator, out)
        });
        match work.await {
            Ok((translator, out)) => {
                connection.translator = translator;
                out
            }
            Err(error) => {
                tracing::error!(session = %self.record.id, %error, "the agent's history could not be compared");
                Output::default()
            }
        }
    }
}
