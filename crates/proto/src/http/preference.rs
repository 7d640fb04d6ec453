//! Preferences of a user about the actions of their own sessions.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A user's choice whether the agents of their sessions may use a source of actions, or one of its actions.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ActionPreference {
    /// The source as the catalog names it: `linear`, `tools`, or `connector:` and the connector's id.
    #[schema(min_length = 1, max_length = 300)]
    pub source_id: String,
    /// One action of the source; all of them if absent.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 300)]
    pub action_id: Option<String>,
    pub enabled: bool,
}

/// What a user has disabled. Everything else is enabled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ActionPreferenceList {
    pub preferences: Vec<ActionPreference>,
}
