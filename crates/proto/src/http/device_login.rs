//! Logging in a device without a browser: it shows a code, and a member approves it elsewhere.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{ApiKeyId, OrgId, UserId, iso};

/// A device asks for a login.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartDeviceLogin {
    /// The name of the device, shown to the person who approves; also the name of its API key.
    #[schema(min_length = 1, max_length = 80)]
    pub client_name: String,
}

/// The codes of a new device login. The device code is a secret of the device; people see the user code.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartedDeviceLogin {
    pub user_code: String,
    pub device_code: String,
    /// The page on which a logged-in person approves the login.
    pub verification_url: String,
    /// Seconds until the codes expire.
    pub expires_in: u64,
    /// Seconds between two polls.
    pub interval: u64,
}

/// A device asks whether its login was approved.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PollDeviceLogin {
    pub device_code: String,
}

/// The API key of a device whose login was approved. It is shown only once.
#[derive(Clone, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceToken {
    pub token: String,
    pub key_id: ApiKeyId,
    pub user: DeviceUser,
    pub org: DeviceOrg,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceUser {
    pub id: UserId,
    pub email: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceOrg {
    pub id: OrgId,
    pub name: String,
}

/// A device login that waits for an answer, as the person who approves it sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WaitingDeviceLogin {
    pub user_code: String,
    pub client_name: String,
    #[serde(with = "iso")]
    pub created_at: DateTime<Utc>,
    #[serde(with = "iso")]
    pub expires_at: DateTime<Utc>,
}
