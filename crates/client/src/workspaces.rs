//! The calls about what sessions work on and what they cost: repositories, configurations and usage.

use proto::http::{
    AddRepo, ChangeConfiguration, ConfigurationEntry, ConfigurationList, CreateConfiguration, RepoEntry,
    RepoList, UsageQuery, UsageReport,
};
use proto::{ConfigurationId, RepoId};
use reqwest::Method;

use crate::client::{Client, append_query, ok, read};
use crate::error::Error;

impl Client {
    /// Lists the repositories of the organization.
    pub async fn repos(&self) -> Result<RepoList, Error> {
        read(self.get(self.url(&["v1", "repos"]))).await
    }

    /// Adds a repository.
    pub async fn add_repo(&self, new: &AddRepo) -> Result<RepoEntry, Error> {
        read(self.post(&["v1", "repos"], None).json(new)).await
    }

    /// Removes a repository.
    pub async fn remove_repo(&self, id: RepoId) -> Result<(), Error> {
        ok(self.http.request(Method::DELETE, self.url(&["v1", "repos", &id.to_string()]))).await
    }

    /// Lists the configurations that sessions can start from, without their repositories.
    pub async fn configurations(&self) -> Result<ConfigurationList, Error> {
        read(self.get(self.url(&["v1", "configurations"]))).await
    }

    /// Returns a configuration with its repositories.
    pub async fn configuration(&self, id: ConfigurationId) -> Result<ConfigurationEntry, Error> {
        read(self.get(self.url(&["v1", "configurations", &id.to_string()]))).await
    }

    /// Creates a configuration.
    pub async fn add_configuration(&self, new: &CreateConfiguration) -> Result<ConfigurationEntry, Error> {
        read(self.post(&["v1", "configurations"], None).json(new)).await
    }

    /// Changes the name or the repositories of a configuration.
    pub async fn change_configuration(
        &self,
        id: ConfigurationId,
        change: &ChangeConfiguration,
    ) -> Result<ConfigurationEntry, Error> {
        let url = self.url(&["v1", "configurations", &id.to_string()]);
        read(self.http.request(Method::PATCH, url).json(change)).await
    }

    /// Removes a configuration.
    pub async fn remove_configuration(&self, id: ConfigurationId) -> Result<(), Error> {
        ok(self.http.request(Method::DELETE, self.url(&["v1", "configurations", &id.to_string()]))).await
    }

    /// One page of the organization's model usage.
    pub async fn usage(&self, query: &UsageQuery) -> Result<UsageReport, Error> {
        let mut url = self.url(&["v1", "usage"]);
        append_query(&mut url, query);
        read(self.get(url)).await
    }
}
