//! The catalog of actions: what sources offer to agents, with schemas, risks and guides. A source that cannot be
//! described now is left out, and the others are not affected.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use gate::{Definition, SourceError, ToolScope};
use ledger::Hash;
use policy::{ModeKey, ModeKeyError, Policy, Risk};
use providers::Provider;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Registry;

/// The id of the source of the tools in `tools.yaml`.
pub(crate) const HTTP_TOOLS: &str = "tools";
/// Within this time every source must have described itself. It is longer than the timeout of listing a connector's tools.
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(20);

/// The result of [`Source::describe`](super::Source::describe): one entry for each source of actions. One kind of
/// source may have many, such as connectors, and each of them may fail alone.
pub(crate) type Described<'a> = BoxFuture<'a, Vec<Result<CatalogSource, SourceError>>>;

/// One source of actions, as an agent sees it.
#[derive(Clone)]
pub(crate) struct CatalogSource {
    /// The name that agents call it by, and the first part of its mode keys: `linear`, `connector:<uuid>`, `db:<uuid>`.
    /// It contains no slash.
    pub(crate) id: String,
    /// The row of the integration, for providers.
    pub(crate) integration_id: Option<Uuid>,
    pub(crate) display_name: Option<String>,
    pub(crate) guide: Guide,
    pub(crate) actions: Vec<CatalogAction>,
}

/// How a source is explained to agents.
#[derive(Clone)]
pub(crate) enum Guide {
    OfVendor(&'static Provider),
    /// Written from the actions, with a note at the end.
    Generated {
        title: String,
        note: String,
    },
}

impl CatalogSource {
    /// The guide in Markdown, with the actions that the source has here.
    pub(crate) fn guide_text(&self) -> String {
        match &self.guide {
            Guide::OfVendor(provider) => {
                provider.guide(|action| self.actions.iter().any(|shown| shown.name == action.name))
            }
            Guide::Generated { title, note } => generated_guide(title, &self.actions) + note,
        }
    }
}

/// One action of a source.
#[derive(Clone, Debug)]
pub(crate) struct CatalogAction {
    /// The second part of its mode key.
    pub(crate) name: String,
    pub(crate) description: String,
    /// The complete JSON Schema that [`Tool::check`](gate::Tool::check) validates parameters against.
    pub(crate) params: Arc<Value>,
    pub(crate) risk: Risk,
    /// The same as the tool's own [`Tool::definition`](gate::Tool::definition).
    pub(crate) definition: Definition,
}

/// The name under which the gate finds an action's tool, which is also the name that lanes match: `sourceId:actionId`.
/// Tools of `tools.yaml` keep their own names, because `/v1/tool-calls` knows them by these.
pub(crate) fn tool_name(source: &str, action: &str) -> String {
    if source == HTTP_TOOLS { action.to_owned() } else { format!("{source}:{action}") }
}

/// The mode key of an action: `sourceId:actionId`. A tool's [`Tool::mode_key`](gate::Tool::mode_key) must be this one.
pub(crate) fn mode_key(source: &str, action: &str) -> Result<ModeKey, ModeKeyError> {
    ModeKey::new(source, action)
}

/// The hash of a raw definition. Every part that an agent or a reviewer sees belongs into it, descriptions included, so
/// that no change goes unnoticed.
pub(crate) fn definition_hash(raw: &Value) -> Hash {
    // A schema may contain fractions, which have no canonical form in the ledger.
    ledger::payload_hash(raw).unwrap_or_else(|_| ledger::sha256(sort_keys(raw).to_string().as_bytes()))
}

/// The value with the keys of all objects in order.
fn sort_keys(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields.iter().map(|(key, value)| (key, sort_keys(value))).collect();
            json!(fields)
        }
        Value::Array(items) => items.iter().map(sort_keys).collect(),
        other => other.clone(),
    }
}

/// A guide with a heading for each action, its risk, its description and its parameters.
fn generated_guide(title: &str, actions: &[CatalogAction]) -> String {
    let mut guide = format!("# {title}\n");
    for action in actions {
        let _ = write!(
            guide,
            "\n## {} ({})\n\n{}\n",
            action.name,
            action.risk.as_str(),
            action.description.trim()
        );
        for line in parameters(&action.params) {
            let _ = write!(guide, "\n{line}");
        }
        guide.push('\n');
    }
    guide
}

/// One bullet for each parameter of a schema: `- name (type, required): description`.
fn parameters(schema: &Value) -> Vec<String> {
    let required = schema["required"].as_array();
    let is_required = |name: &str| required.is_some_and(|names| names.iter().any(|found| found == name));
    let bullet = |(name, schema): (&String, &Value)| {
        let kind = schema["type"].as_str().unwrap_or(if schema["enum"].is_array() { "enum" } else { "any" });
        let required = if is_required(name) { ", required" } else { "" };
        let description = schema["description"].as_str().map(|text| format!(": {text}")).unwrap_or_default();
        format!("- {name} ({kind}{required}){description}")
    };
    schema["properties"].as_object().into_iter().flatten().map(bullet).collect()
}

/// The actions that a scope can use now, and the sources that failed to answer.
#[derive(Default)]
pub(crate) struct Catalog {
    pub(crate) sources: Vec<CatalogSource>,
    pub(crate) failed: Vec<SourceError>,
}

impl Registry {
    /// Describes all sources, in the order of their registration. A source without actions is left out.
    pub(crate) async fn catalog(&self, policy: &Policy, scope: ToolScope) -> Catalog {
        let describe = self
            .sources
            .iter()
            .map(|source| tokio::time::timeout(DESCRIBE_TIMEOUT, source.describe(policy, scope)));
        let mut catalog = Catalog::default();
        for described in join_all(describe).await {
            let late = |_| {
                let problem = "it did not describe its actions in time".to_owned();
                vec![Err(SourceError { source_id: "a source".to_owned(), problem })]
            };
            for source in described.unwrap_or_else(late) {
                match source {
                    Ok(source) if source.actions.is_empty() => {}
                    Ok(source) => catalog.sources.push(source),
                    Err(error) => catalog.failed.push(error),
                }
            }
        }
        for error in &catalog.failed {
            let (kind, _) = error.source_id.split_once(':').unwrap_or((&error.source_id, ""));
            metrics::counter!("proliferate_action_sources_failed_total", "kind" => kind.to_owned())
                .increment(1);
            tracing::warn!(%error, org = %scope.org, "a source is missing from the catalog of actions");
        }
        catalog
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_change_of_a_definition_changes_its_hash_and_the_order_of_keys_does_not() {
        let raw =
            json!({"name": "a", "schema": {"properties": {"n": {"multipleOf": 0.5, "description": "x"}}}});
        let hash = definition_hash(&raw);
        let parsed: Value = serde_json::from_str(
            r#"{"schema":{"properties":{"n":{"description":"x","multipleOf":0.5}}},"name":"a"}"#,
        )
        .unwrap();
        assert_eq!(definition_hash(&parsed), hash);
        for (pointer, value) in [
            ("/name", json!("b")),
            ("/schema/properties/n/description", json!("y")),
            ("/schema/properties/n/multipleOf", json!(0.25)),
        ] {
            let mut other = raw.clone();
            *other.pointer_mut(pointer).unwrap() = value;
            assert_ne!(definition_hash(&other), hash, "{pointer}");
        }
    }

    #[test]
    fn a_generated_guide_names_each_action_and_parameter() {
        let action = CatalogAction {
            name: "post".to_owned(),
            description: "Posts a note.".to_owned(),
            params: Arc::new(json!({"required": ["text"], "properties": {
                "text": {"type": "string", "description": "The note"}, "kind": {"enum": ["a"]}}})),
            risk: Risk::Write,
            definition: Definition { hash: definition_hash(&json!({})), review: gate::Review::NotNeeded },
        };
        let guide = generated_guide("Notes", &[action]);
        for part in [
            "# Notes\n",
            "\n## post (write)\n",
            "Posts a note.",
            "- text (string, required): The note",
            "- kind (enum)",
        ] {
            assert!(guide.contains(part), "{part}: {guide}");
        }
    }
}
