//! The calls about integrations: the vendors that an organization has connected.

use proto::IntegrationId;
use proto::http::{AddIntegration, ChangeIntegration, IntegrationEntry, IntegrationList};
use reqwest::Method;

use crate::client::{Client, ok, read};
use crate::error::Error;

impl Client {
    /// Lists the integrations of the organization.
    pub async fn integrations(&self) -> Result<IntegrationList, Error> {
        read(self.get(self.url(&["v1", "integrations"]))).await
    }

    /// Connects a vendor.
    pub async fn add_integration(&self, new: &AddIntegration) -> Result<IntegrationEntry, Error> {
        read(self.post(&["v1", "integrations"], None).json(new)).await
    }

    /// Enables or disables an integration.
    pub async fn change_integration(
        &self,
        id: IntegrationId,
        change: &ChangeIntegration,
    ) -> Result<(), Error> {
        let url = self.url(&["v1", "integrations", &id.to_string()]);
        ok(self.http.request(Method::PATCH, url).json(change)).await
    }

    /// Removes an integration.
    pub async fn remove_integration(&self, id: IntegrationId) -> Result<(), Error> {
        ok(self.http.request(Method::DELETE, self.url(&["v1", "integrations", &id.to_string()]))).await
    }
}
