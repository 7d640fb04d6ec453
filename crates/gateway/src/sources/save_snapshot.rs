//! `save_snapshot`: the agent saves the files of its sandbox. In a setup session, the configuration's sessions start
//! from this snapshot.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Outside, Permit};
use proto::{JsonObject, SessionId};
use serde_json::{Value, json};
use store::Store;

use super::platform::{Implementation, PlatformTool, session_of};
use crate::runtime::{Saved, SnapshotError};

const LONGEST: usize = 1000;

pub(super) const TOOL: PlatformTool = PlatformTool {
    name: "save_snapshot",
    description: "Save the state of this sandbox: its files, installed dependencies and build results. Later \
        sessions start from it. Call it when the work is in a state worth coming back to.",
    schema,
    only_setup: false,
    timeout: Duration::from_secs(110),
    check,
    implement: |platform| {
        let (store, snapshots) = (platform.store.clone(), platform.snapshots.clone());
        Implementation::Outside(Box::new(SaveSnapshot { store, snapshots }))
    },
};

/// Saves the files of a live session. The implementation is in a layer above this one.
pub(crate) trait SnapshotSaver: Send + Sync {
    fn save<'a>(
        &'a self,
        permit: &'a Permit,
        session: SessionId,
    ) -> BoxFuture<'a, Result<Saved, SnapshotError>>;
}

struct SaveSnapshot {
    store: Store,
    snapshots: Arc<dyn SnapshotSaver>,
}

fn schema() -> Value {
    json!({
        "type": "object",
        "properties": {
            "message": {"type": "string", "maxLength": LONGEST, "description": "What this state is, in a few words"},
        },
        "required": [],
        "additionalProperties": false,
    })
}

fn check(parameters: &Value) -> Result<(), String> {
    let unknown = parameters.as_object().is_some_and(|fields| fields.keys().any(|name| name != "message"));
    if unknown {
        return Err("Invalid arguments: the only one is message".to_owned());
    }
    let fits = |value: &Value| value.as_str().is_some_and(|text| text.chars().count() <= LONGEST);
    if parameters.get("message").is_none_or(fits) {
        Ok(())
    } else {
        Err(format!("Invalid arguments: message must be a text of at most {LONGEST} characters"))
    }
}

impl Outside for SaveSnapshot {
    /// Not safe to replay: a second run would make a second snapshot, and nothing would refer to the first.
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        call: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        async move {
            let session = session_of(&self.store, call).await?;
            let saved = self.snapshots.save(permit, session.id).await.map_err(|error| failed(&error))?;
            let target = saved.target.as_str();
            let mut data = JsonObject::new();
            data.insert("snapshotId".to_owned(), json!(saved.id.to_string()));
            data.insert("target".to_owned(), json!(target));
            Ok(Output { text: format!("Snapshot saved to {target}: {}", saved.id), data: Some(data) })
        }
        .boxed()
    }
}

fn failed(error: &SnapshotError) -> Failure {
    match error {
        SnapshotError::Store(error) => super::save_service_commands::store_failure(error),
        other => Failure::Refused(format!("Snapshot failed: {other}")),
    }
}
