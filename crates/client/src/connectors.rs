//! The calls about connectors: remote MCP servers of an organization.

use proto::ConnectorId;
use proto::http::{
    ChangeConnector, ConnectorDetail, ConnectorEntry, ConnectorList, CreateConnector, ReviewConnector,
    ReviewReply,
};
use reqwest::Method;

use crate::client::{Client, ok, read};
use crate::error::Error;

impl Client {
    /// Lists the connectors of the organization.
    pub async fn connectors(&self) -> Result<ConnectorList, Error> {
        read(self.get(self.url(&["v1", "connectors"]))).await
    }

    /// Adds a connector.
    pub async fn add_connector(&self, new: &CreateConnector) -> Result<ConnectorEntry, Error> {
        read(self.post(&["v1", "connectors"], None).json(new)).await
    }

    /// Returns a connector with the tools that its server offers now.
    pub async fn connector(&self, id: ConnectorId) -> Result<ConnectorDetail, Error> {
        read(self.get(self.url(&["v1", "connectors", &id.to_string()]))).await
    }

    /// Changes a connector.
    pub async fn change_connector(
        &self,
        id: ConnectorId,
        change: &ChangeConnector,
    ) -> Result<ConnectorEntry, Error> {
        let url = self.url(&["v1", "connectors", &id.to_string()]);
        read(self.http.request(Method::PATCH, url).json(change)).await
    }

    /// Pins the definitions of tools that somebody has reviewed.
    pub async fn review_connector(
        &self,
        id: ConnectorId,
        review: &ReviewConnector,
    ) -> Result<ReviewReply, Error> {
        read(self.post(&["v1", "connectors", &id.to_string(), "review"], None).json(review)).await
    }

    /// Removes a connector.
    pub async fn remove_connector(&self, id: ConnectorId) -> Result<(), Error> {
        ok(self.http.request(Method::DELETE, self.url(&["v1", "connectors", &id.to_string()]))).await
    }
}
