//! The calls about databases that agents may query.

use proto::DatabaseId;
use proto::http::{
    ChangeDatabase, CreateDatabase, DatabaseCheck, DatabaseDetail, DatabaseEntry, DatabaseList,
};
use reqwest::Method;

use crate::client::{Client, ok, read};
use crate::error::Error;

impl Client {
    /// Lists the databases of the organization.
    pub async fn databases(&self) -> Result<DatabaseList, Error> {
        read(self.get(self.url(&["v1", "databases"]))).await
    }

    /// Adds a database.
    pub async fn add_database(&self, new: &CreateDatabase) -> Result<DatabaseEntry, Error> {
        read(self.post(&["v1", "databases"], None).json(new)).await
    }

    /// Checks whether a database could be added.
    pub async fn validate_database(&self, new: &CreateDatabase) -> Result<DatabaseCheck, Error> {
        read(self.post(&["v1", "databases", "validate"], None).json(new)).await
    }

    /// Returns a database with its actions, and whether it can be queried now.
    pub async fn database(&self, id: DatabaseId) -> Result<DatabaseDetail, Error> {
        read(self.get(self.url(&["v1", "databases", &id.to_string()]))).await
    }

    /// Changes a database.
    pub async fn change_database(
        &self,
        id: DatabaseId,
        change: &ChangeDatabase,
    ) -> Result<DatabaseEntry, Error> {
        let url = self.url(&["v1", "databases", &id.to_string()]);
        read(self.http.request(Method::PATCH, url).json(change)).await
    }

    /// Takes a database away from agents.
    pub async fn remove_database(&self, id: DatabaseId) -> Result<(), Error> {
        ok(self.http.request(Method::DELETE, self.url(&["v1", "databases", &id.to_string()]))).await
    }
}
