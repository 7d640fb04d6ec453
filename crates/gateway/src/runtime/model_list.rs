//! The list of models of a running agent. The list was made when the agent started, and providers add models later.

use std::sync::Arc;

use agent::{AgentClient, AgentError};
use parking_lot::Mutex;
use sandboxd::protocol::Place;
use store::Owner;

use super::Runtime;
use super::agent::Agent;
use super::launch::AGENT_READY_TIMEOUT;
use super::prepare::AGENT_DIR;
use super::sandbox_handle::RunningSandbox;
use crate::llm::AgentModel;

/// The list of one agent.
pub(crate) struct ModelList {
    runtime: Arc<Runtime>,
    /// `None` if somebody else runs the agent.
    sandbox: Option<RunningSandbox>,
}

/// The reload of an agent for the model of one turn. A turn has at most one, because a second would not help.
#[derive(Clone, Default)]
pub(crate) struct ModelReload(Arc<Mutex<ReloadState>>);

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum ReloadState {
    #[default]
    None,
    /// The event stream is about to end.
    Begun,
    StreamEnded,
}

impl ModelReload {
    fn begin(&self) {
        *self.0.lock() = ReloadState::Begun;
    }

    fn has_begun(&self) -> bool {
        *self.0.lock() != ReloadState::None
    }

    /// The agent's event stream has ended. Returns whether the reload explains that, which it does only once.
    pub(crate) fn stream_ended(&self) -> bool {
        let mut state = self.0.lock();
        let explains = *state == ReloadState::Begun;
        if explains {
            *state = ReloadState::StreamEnded;
        }
        explains
    }
}

impl ModelList {
    pub(crate) fn of(runtime: &Arc<Runtime>, agent: &Agent, owner: Owner) -> Self {
        let sandbox = agent.handle.as_ref().map(|handle| handle.owned_by(owner));
        Self { runtime: runtime.clone(), sandbox }
    }

    /// Adds a model that the agent does not know. The agent then reads its files again, which ends its event stream, so no
    /// turn may be running. The caller is usually aborted then, and calls this once more with the next connection.
    pub(crate) async fn add(
        self,
        client: &dyn AgentClient,
        model: &AgentModel,
        reload: &ModelReload,
    ) -> Result<(), AgentError> {
        let name = model.qualified_id();
        // An agent that cannot say which models it knows may know this one. If not, its answer says so.
        if !model.is_listed_by_provider() || client.knows_model(&name).await.unwrap_or(true) {
            return Ok(());
        }
        if reload.has_begun() || self.write(model).await.is_none() {
            return Err(AgentError::UnknownModel(name));
        }
        reload.begin();
        client.reload().await?;
        client.wait_until_ready(AGENT_READY_TIMEOUT).await?;
        let knows = client.knows_model(&name).await.unwrap_or(true);
        if knows { Ok(()) } else { Err(AgentError::UnknownModel(name)) }
    }

    /// Writes the list anew. Returns `None` if the agent has none that we could write.
    async fn write(self, model: &AgentModel) -> Option<()> {
        let Self { runtime, sandbox } = self;
        let running = sandbox?;
        let home = runtime.sandboxes.home(&running.sandbox).to_string_lossy().into_owned();
        let models = runtime.llm.chat_models(model).await;
        let entry = runtime.settings.agent_type.model_list(&format!("{home}/{AGENT_DIR}"), &models)?;
        let path = entry.path.strip_prefix(&home)?.trim_start_matches('/').to_owned();
        let session = running.owner.session();
        let written = async {
            let inside = running.connect(&runtime.sandboxes).await.map_err(|error| error.to_string())?;
            let written = inside.supervisor.write_file(Place::home(path), entry.contents, Some(0o644)).await;
            written.map_err(|error| error.to_string())
        };
        match written.await {
            Ok(_) => Some(()),
            Err(error) => {
                tracing::warn!(%session, error, "the list of an agent's models was not written");
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_explains_one_end_of_the_stream_and_is_not_repeated() {
        let reload = ModelReload::default();
        assert!(!reload.has_begun() && !reload.stream_ended());
        reload.begin();
        assert!(reload.clone().stream_ended());
        assert!(reload.has_begun() && !reload.stream_ended());
    }
}
