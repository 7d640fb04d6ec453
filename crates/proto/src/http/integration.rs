//! Integrations of an organization, and which of them the sessions of an automation use.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{IntegrationId, IntegrationProvider, IntegrationStatus, iso};

/// A connected vendor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct IntegrationEntry {
    pub id: IntegrationId,
    pub provider: IntegrationProvider,
    pub display_name: Option<String>,
    /// The name of the secret that holds the token.
    pub secret_key: String,
    pub status: IntegrationStatus,
    #[serde(with = "iso")]
    pub created_at: DateTime<Utc>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct IntegrationList {
    pub integrations: Vec<IntegrationEntry>,
}

/// A request to connect a vendor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddIntegration {
    pub provider: IntegrationProvider,
    /// The name of a platform secret of the organization that holds the token.
    #[schema(min_length = 1, max_length = 200)]
    pub secret_key: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 1, max_length = 100)]
    pub display_name: Option<String>,
}

/// A request to enable or disable an integration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangeIntegration {
    pub status: IntegrationStatus,
}

/// The integrations that sessions of an automation use; `null` means all that are active when a session is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutomationIntegrations {
    #[schema(max_items = 100)]
    pub integration_ids: Option<Vec<IntegrationId>>,
}
