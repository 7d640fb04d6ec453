//! The calls about preferences: which actions the agents of one's own sessions have.

use proto::http::{ActionPreference, ActionPreferenceList};
use reqwest::Method;

use crate::client::{Client, ok, read};
use crate::error::Error;

impl Client {
    /// Lists what the caller has disabled.
    pub async fn preferences(&self) -> Result<ActionPreferenceList, Error> {
        read(self.get(self.url(&["v1", "preferences"]))).await
    }

    /// Disables a source of actions, or one action, for the sessions that the caller creates, or enables it again.
    pub async fn set_preference(&self, preference: &ActionPreference) -> Result<(), Error> {
        ok(self.http.request(Method::PUT, self.url(&["v1", "preferences"])).json(preference)).await
    }
}
