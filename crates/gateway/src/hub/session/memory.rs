//! The agent's memory: asked for what was missed while nobody listened, and whether a turn is over.

use std::time::Duration;

use opencode::api::ApiError;
use opencode::history::History;
use store::QueuedPrompt;

use super::{Over, Session, millis};

/// When the agent's memory could not be read, it is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_secs(5);

impl Session {
    /// Asks what was missed while nobody listened. An agent that does not answer holds nobody up.
    pub(super) fn catch_up(&mut self) {
        let (Some(agent), Some(translator), Some(turn), None) =
            (&self.agent, &self.translator, &self.turn, &self.reading)
        else {
            return;
        };
        if translator.is_busy() {
            let (client, session, turn) = (agent.client.clone(), agent.session.clone(), turn.clone());
            self.reading = Some(tokio::spawn(async move { client.history(&session, &turn).await }));
        }
    }

    /// What the agent remembers is here.
    pub(super) async fn remembered(&mut self, read: Result<History, ApiError>) -> Result<(), Over> {
        self.reading = None;
        match read {
            Ok(history) => self.reconcile(&history).await?,
            Err(error) => {
                tracing::warn!(session = %self.record.id, %error, "the agent's history cannot be read");
                self.settling = Some(Box::pin(tokio::time::sleep(ASK_AGAIN)));
            }
        }
        self.abort();
        self.after_turn().await
    }

    /// Says what was missed, and hands a prompt over again that never arrived.
    async fn reconcile(&mut self, history: &History) -> Result<(), Over> {
        let now = millis(&self.app);
        // It was told some time ago: if it had not begun by then, it does not begin now.
        let stopped = self.cancelled && self.aborts > 0 && self.aborting.is_none() && !history.busy;
        let (Some(translator), Some(turn)) = (&mut self.translator, self.turn.clone()) else { return Ok(()) };
        if history.has(&turn) {
            let entries = history.entries().unwrap_or_default();
            let out = translator.reconcile(&entries, history.busy, now);
            let left = stopped.then(|| translator.cancel(now));
            self.take(out).await?;
            return self.take(left.unwrap_or_default()).await;
        }
        if self.dispatch.is_some() {
            return Ok(());
        }
        let out = if self.cancelled {
            translator.cancel(now)
        } else if translator.has_refused() {
            translator.close(now)
        } else if let Some(prompt) = self.unsettled(&turn).await? {
            self.hand_over(prompt);
            return Ok(());
        } else {
            let lost = "The agent never got this prompt";
            self.translator.as_mut().map(|translator| translator.give_up(lost, now)).unwrap_or_default()
        };
        self.take(out).await
    }

    pub(super) async fn unsettled(&self, id: &str) -> Result<Option<QueuedPrompt>, Over> {
        let prompts = self.app.store.queued_prompts(self.record.id).await?;
        Ok(prompts.into_iter().find(|prompt| prompt.id == id))
    }

    /// A turn seems to be over and did not say so: the agent's own memory tells.
    pub(super) async fn settle(&mut self) -> Result<(), Over> {
        self.settling = None;
        self.catch_up();
        self.after_turn().await
    }
}
