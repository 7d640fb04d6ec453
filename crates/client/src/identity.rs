//! The calls about who the caller is: the owner of the token, members, keys and device logins.

use proto::ApiKeyId;
use proto::http::{
    DeviceToken, Me, MemberList, PollDeviceLogin, StartDeviceLogin, StartedDeviceLogin, WaitingDeviceLogin,
};
use reqwest::Method;

use crate::client::{Client, ok, read};
use crate::error::Error;

impl Client {
    /// Returns the owner of the token.
    pub async fn me(&self) -> Result<Me, Error> {
        read(self.get(self.url(&["v1", "me"]))).await
    }

    /// Lists the members of the organization.
    pub async fn members(&self) -> Result<MemberList, Error> {
        read(self.get(self.url(&["v1", "members"]))).await
    }

    /// Revokes an API key.
    pub async fn delete_key(&self, key: ApiKeyId) -> Result<(), Error> {
        ok(self.http.request(Method::DELETE, self.url(&["v1", "keys", &key.to_string()]))).await
    }

    /// Starts the login of a device without a browser; `name` is shown to the person who approves it.
    pub async fn start_device_login(&self, name: &str) -> Result<StartedDeviceLogin, Error> {
        let body = StartDeviceLogin { client_name: name.to_owned() };
        read(self.post(&["v1", "device-logins"], None).json(&body)).await
    }

    /// Returns the key of a device whose login was approved.
    pub async fn poll_device_login(&self, device_code: &str) -> Result<DeviceToken, Error> {
        let body = PollDeviceLogin { device_code: device_code.to_owned() };
        read(self.post(&["v1", "device-logins", "token"], None).json(&body)).await
    }

    /// Returns the device login that waits with this code.
    pub async fn device_login(&self, user_code: &str) -> Result<WaitingDeviceLogin, Error> {
        read(self.get(self.url(&["v1", "device-logins", user_code]))).await
    }

    /// Approves or denies a device login.
    pub async fn decide_device_login(&self, user_code: &str, approve: bool) -> Result<(), Error> {
        let verb = if approve { "approve" } else { "deny" };
        ok(self.post(&["v1", "device-logins", user_code, verb], None)).await
    }
}
