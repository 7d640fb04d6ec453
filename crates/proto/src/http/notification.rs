//! The webhook that an organization gets notifications at when something waits for a person.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{UserId, iso};

/// Where notifications go. Without a secret the gateway keeps the present one, or generates one and shows it once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SetNotifications {
    /// The address that gets a POST request for each notification, such as an incoming webhook of Slack.
    #[schema(min_length = 1, max_length = 2000)]
    pub url: String,
    /// The secret that signs the requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(min_length = 16, max_length = 200)]
    pub secret: Option<String>,
}

/// Hides the address, which may contain a credential, and the secret.
impl fmt::Debug for SetNotifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetNotifications").finish_non_exhaustive()
    }
}

/// The setting of an organization, and how its notifications fare.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Notifications {
    /// The origin of the address. The rest of it is not shown.
    pub origin: String,
    /// What began to wait earlier was not reported.
    #[serde(with = "iso")]
    pub since: DateTime<Utc>,
    pub changed_by: Option<UserId>,
    /// How many were not delivered yet.
    pub pending: u64,
    /// How many were given up.
    pub failed: u64,
    pub last_error: Option<String>,
    /// The secret that signs requests: only in the answer to the request that made the gateway generate it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Hides the secret.
impl fmt::Debug for Notifications {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifications").field("origin", &self.origin).finish_non_exhaustive()
    }
}

/// The outcome of a test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NotificationTest {
    pub ok: bool,
    pub error: Option<String>,
}
