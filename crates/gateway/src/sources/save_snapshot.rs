//! `save_snapshot`: the agent saves the files of its sandbox. In a setup session, the configuration's sessions start
//! from this snapshot.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Outside, Permit};
use proto::socket::SnapshotTarget;
use proto::{AgentMode, JsonObject};
use serde_json::{Value, json};
use store::Store;

use super::live_sandboxes::LiveSandboxes;
use super::platform::{Implementation, PlatformTool, ToolHost, session_with, store_failure};
use crate::runtime::SnapshotError;

pub(super) static TOOL: PlatformTool = PlatformTool {
    name: "save_snapshot",
    aliases: &[],
    argument_aliases: &[],
    version: 1,
    description: "Save the state of this sandbox: its files, installed dependencies and build results. Later \
        sessions start from it. Call it when the work is in a state worth coming back to.",
    guidance: |mode| match mode {
        AgentMode::Setup => {
            "saves the state of this sandbox, from which all later sessions of the project start. Call it at the end, \
            once everything is installed and has been seen to run; always before you say that the setup is done."
        }
        AgentMode::Coding | AgentMode::Automation | AgentMode::Scratch => {
            "saves the state of this sandbox, so that the session can continue from it later."
        }
    },
    schema,
    place: ToolHost::Gateway {
        timeout: Duration::from_secs(110),
        implement: |platform| {
            let (store, sandboxes) = (platform.store.clone(), platform.sandboxes.clone());
            Implementation::Outside(Box::new(SaveSnapshot { store, sandboxes }))
        },
    },
};

struct SaveSnapshot {
    store: Store,
    sandboxes: Arc<dyn LiveSandboxes>,
}

fn schema() -> Value {
    let message = json!({"type": "string", "maxLength": 1000, "format": "lines",
        "description": "What this state is, in a few words"});
    json!({
        "type": "object",
        "properties": {"message": message},
        "required": [],
        "additionalProperties": false,
    })
}

impl Outside for SaveSnapshot {
    /// Safe to replay: a call that has made its snapshot makes no second one.
    fn replay_safe(&self) -> bool {
        true
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        call: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        async move {
            let session = session_with(&self.store, call, &TOOL).await?;
            let made = self.store.snapshot_of_run(permit.org(), permit.run_id()).await;
            if let Some(made) = made.map_err(|error| store_failure(&error))? {
                return Ok(output(&made.id, made.target));
            }
            let saved = self
                .sandboxes
                .save_snapshot(permit, session.id)
                .await
                .map_err(|error| snapshot_failure(&error))?;
            Ok(output(saved.id.as_str(), saved.target))
        }
        .boxed()
    }
}

fn output(id: &str, target: SnapshotTarget) -> Output {
    let target = target.as_str();
    let mut data = JsonObject::new();
    data.insert("snapshotId".to_owned(), json!(id));
    data.insert("target".to_owned(), json!(target));
    Output { text: format!("Snapshot saved to {target}: {id}"), data: Some(data) }
}

fn snapshot_failure(error: &SnapshotError) -> Failure {
    match error {
        SnapshotError::Store(error) => store_failure(error),
        other => Failure::Refused(format!("Snapshot failed: {other}")),
    }
}
