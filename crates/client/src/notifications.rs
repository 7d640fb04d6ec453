//! The calls about notifications: the webhook that an organization gets notifications at when something waits for a person.

use proto::http::{NotificationTest, Notifications, SetNotifications};
use reqwest::Method;

use crate::client::{Client, ok, read};
use crate::error::Error;

const PATH: [&str; 2] = ["v1", "notifications"];

impl Client {
    /// Where notifications go, and how many were not delivered.
    pub async fn notifications(&self) -> Result<Notifications, Error> {
        read(self.get(self.url(&PATH))).await
    }

    /// Sets where notifications go. The answer has the secret that signs them if the gateway has just generated it.
    pub async fn set_notifications(&self, new: &SetNotifications) -> Result<Notifications, Error> {
        read(self.http.request(Method::PUT, self.url(&PATH)).json(new)).await
    }

    /// Ends notifications.
    pub async fn remove_notifications(&self) -> Result<(), Error> {
        ok(self.http.request(Method::DELETE, self.url(&PATH))).await
    }

    /// Sends a test message.
    pub async fn test_notifications(&self) -> Result<NotificationTest, Error> {
        read(self.post(&["v1", "notifications", "test"], None)).await
    }
}
