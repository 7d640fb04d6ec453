//! The environment and the services of a session's app.

use proto::SessionId;
use proto::http::{
    EnvChangeReply, EnvState, ExposePort, ServiceEntry, ServiceList, ServiceLog, StartService, SubmitEnv,
    SubmitEnvReply,
};
use reqwest::Method;

use crate::client::{Client, ok, read};
use crate::error::Error;

impl Client {
    /// Which files and variables the session's sandbox gets. Values are never returned.
    pub async fn env(&self, session: SessionId) -> Result<EnvState, Error> {
        read(self.get(self.url(&["proliferate", &session.to_string(), "env"]))).await
    }

    /// Submits values for the session, which are kept encrypted and written into its sandbox.
    pub async fn submit_env(&self, session: SessionId, values: &SubmitEnv) -> Result<SubmitEnvReply, Error> {
        read(self.post(&["proliferate", &session.to_string(), "env"], None).json(values)).await
    }

    /// Writes the session's environment into its running sandbox.
    pub async fn env_apply(&self, session: SessionId) -> Result<EnvChangeReply, Error> {
        read(self.post(&["proliferate", &session.to_string(), "env", "apply"], None)).await
    }

    /// Removes all secrets from the files of the session's running sandbox.
    pub async fn env_scrub(&self, session: SessionId) -> Result<EnvChangeReply, Error> {
        read(self.post(&["proliferate", &session.to_string(), "env", "scrub"], None)).await
    }

    pub async fn services(&self, session: SessionId) -> Result<ServiceList, Error> {
        read(self.get(self.url(&["proliferate", &session.to_string(), "services"]))).await
    }

    /// Starts a service. It replaces one of the same name.
    pub async fn start_service(
        &self,
        session: SessionId,
        service: &StartService,
    ) -> Result<ServiceEntry, Error> {
        read(self.post(&["proliferate", &session.to_string(), "services"], None).json(service)).await
    }

    pub async fn stop_service(&self, session: SessionId, name: &str) -> Result<(), Error> {
        let url = self.url(&["proliferate", &session.to_string(), "services", name]);
        ok(self.http.request(Method::DELETE, url)).await
    }

    pub async fn restart_service(&self, session: SessionId, name: &str) -> Result<ServiceEntry, Error> {
        read(self.post(&["proliferate", &session.to_string(), "services", name, "restart"], None)).await
    }

    /// The newest output of a service.
    pub async fn service_log(&self, session: SessionId, name: &str) -> Result<ServiceLog, Error> {
        read(self.get(self.url(&["proliferate", &session.to_string(), "services", name, "logs"]))).await
    }

    /// Stores which port the app listens on.
    pub async fn expose_port(&self, session: SessionId, port: u16) -> Result<(), Error> {
        ok(self.post(&["proliferate", &session.to_string(), "expose"], None).json(&ExposePort { port })).await
    }
}
