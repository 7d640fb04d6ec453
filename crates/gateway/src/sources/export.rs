//! `export.bundle`: the list of a case's artifacts, to be given to someone outside. The lane decides who may export;
//! reading the listed artifacts is recorded like any other read.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, EXPORT_TOOL, Failure, Output, Outside, Permit, Tool, ToolScope, Work, reference};
use policy::{Policy, Risk};
use proto::JsonObject;
use serde_json::{Value, json};
use store::Store;

use super::platform::store_failure;
use super::{Found, Source};

/// The maximum number of artifacts in a bundle. A larger export is refused instead of being cut, so that nobody
/// mistakes a part for the complete list.
const MAX_ARTIFACTS: usize = 10_000;

/// The source of the `export.bundle` tool.
#[derive(Clone)]
pub(crate) struct ExportSource {
    store: Store,
}

impl ExportSource {
    pub(crate) fn new(store: Store) -> Self {
        Self { store }
    }
}

impl Source for ExportSource {
    fn claims(&self, _: &Policy, name: &str) -> bool {
        name == EXPORT_TOOL
    }

    fn find<'a>(&'a self, _: &'a Policy, _: ToolScope, name: &'a str) -> Found<'a> {
        let tool = (name == EXPORT_TOOL).then(|| Arc::new(self.clone()) as Arc<dyn Tool>);
        async { Ok(tool) }.boxed()
    }
}

impl Tool for ExportSource {
    fn risk(&self) -> Risk {
        Risk::Danger
    }

    fn timeout(&self) -> Duration {
        Duration::from_secs(30)
    }

    fn flags(&self) -> &[&'static str] {
        &["external_export"]
    }

    fn check(&self, parameters: &Value) -> Result<(), String> {
        match parameters.as_object() {
            Some(object) if object.is_empty() => Ok(()),
            _ => Err("parameters: none are known to this tool".to_owned()),
        }
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

impl Outside for ExportSource {
    fn replay_safe(&self) -> bool {
        true
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        call: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        async move {
            let case =
                call.case.as_deref().ok_or_else(|| Failure::Invalid("case_id is needed".to_owned()))?;
            let limit = i64::try_from(MAX_ARTIFACTS + 1).unwrap_or(i64::MAX);
            let found = self.store.artifacts(permit.org(), case, limit).await;
            let found = found.map_err(|error| store_failure(&error))?;
            if found.len() > MAX_ARTIFACTS {
                let many = format!(
                    "the case has more than {MAX_ARTIFACTS} artifacts, which is all that a bundle names"
                );
                return Err(Failure::Refused(many));
            }
            let odd = || Failure::Refused("an artifact of the case cannot be referred to".to_owned());
            let references: Vec<_> = found.iter().map(reference).collect::<Option<_>>().ok_or_else(odd)?;
            let mut data = JsonObject::new();
            data.insert("case_id".to_owned(), json!(case));
            data.insert("artifacts".to_owned(), json!(references));
            Ok(Output { text: format!("{} artifacts", references.len()), data: Some(data) })
        }
        .boxed()
    }
}
