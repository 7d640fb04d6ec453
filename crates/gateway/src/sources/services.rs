//! The services of a session's app as tools of the gate: `start_service`, `stop_service`, `restart_service` and
//! `test_services`. People reach them over HTTP, agents by the command line in their sandbox.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, EntryPoint, Failure, Output, Outside, Permit, Tool, ToolScope, Work};
use policy::{Policy, Risk};
use proto::JsonObject;
use proto::http::{StartService, TestServices};
use proto::socket::AutoStartMode;
use sandboxd::ClientError;
use serde::Deserialize as _;
use serde_json::{Value, json};

use super::{Found, LiveSandboxes, Source};
use crate::runtime::{ConnectedSandbox, auto_start, services};

pub(super) const RISK: Risk = Risk::Write;
/// Ten commands are tested for ten seconds each.
const CALL_TIMEOUT: Duration = Duration::from_secs(150);

pub(crate) struct ServicesSource(pub(crate) Arc<dyn LiveSandboxes>);

/// The operation of a tool on services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceAct {
    Start,
    Stop,
    Restart,
    Test,
}

impl ServiceAct {
    const ALL: [Self; 4] = [Self::Start, Self::Stop, Self::Restart, Self::Test];

    pub(crate) const fn tool(self) -> &'static str {
        match self {
            Self::Start => "start_service",
            Self::Stop => "stop_service",
            Self::Restart => "restart_service",
            Self::Test => "test_services",
        }
    }
}

pub(super) fn find(name: &str) -> Option<ServiceAct> {
    ServiceAct::ALL.into_iter().find(|act| act.tool() == name)
}

impl Source for ServicesSource {
    fn claims(&self, _: &Policy, name: &str) -> bool {
        find(name).is_some()
    }

    fn find<'a>(&'a self, _: &'a Policy, _: ToolScope, name: &'a str) -> Found<'a> {
        let bind = |act| Arc::new(ServiceTool { act, sandboxes: self.0.clone() }) as Arc<dyn Tool>;
        let tool = find(name).map(bind);
        async { Ok(tool) }.boxed()
    }
}

struct ServiceTool {
    act: ServiceAct,
    sandboxes: Arc<dyn LiveSandboxes>,
}

impl Tool for ServiceTool {
    fn risk(&self) -> Risk {
        RISK
    }

    fn timeout(&self) -> Duration {
        CALL_TIMEOUT
    }

    /// The routes of sessions have checked the parameters, and no other entry point is accepted.
    fn check(&self, _: &Value) -> Result<(), String> {
        Ok(())
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

impl Outside for ServiceTool {
    /// A service that is started twice runs once.
    fn replay_safe(&self) -> bool {
        true
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        call: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        async move {
            // The routes of a session decide who may steer its services; `/v1/tool-calls` does not know the session.
            let session = call.caller.session.filter(|_| call.entry_point == EntryPoint::Callback);
            let session = session
                .ok_or_else(|| Failure::Refused("Only a session's own routes can do this".to_owned()))?;
            let inside = self.sandboxes.enter(permit, session).await.map_err(Failure::Down)?;
            let data = self.perform(permit, &inside, &call.target.parameters).await?;
            Ok(Output { text: format!("{} done", self.act.tool()), data: Some(data) })
        }
        .boxed()
    }
}

impl ServiceTool {
    async fn perform(
        &self,
        permit: &Permit,
        inside: &ConnectedSandbox,
        parameters: &Value,
    ) -> Result<JsonObject, Failure> {
        let (supervisor, name) = (&inside.supervisor, parameters["name"].as_str().unwrap_or_default());
        let invalid = |_| Failure::Invalid("Invalid arguments".to_owned());
        let entry = match self.act {
            ServiceAct::Start => {
                let service = StartService::deserialize(parameters).map_err(invalid)?;
                services::start(permit, supervisor, service).await.map_err(|error| failure(&error))?
            }
            ServiceAct::Restart => {
                services::restart(permit, supervisor, name).await.map_err(|error| failure(&error))?
            }
            ServiceAct::Stop => {
                services::stop(permit, supervisor, name).await.map_err(|error| failure(&error))?;
                None
            }
            ServiceAct::Test => {
                let TestServices { commands } = TestServices::deserialize(parameters).map_err(invalid)?;
                let entries = auto_start::run(permit, supervisor, commands, AutoStartMode::Test).await;
                return Ok(JsonObject::from_iter([("entries".to_owned(), json!(entries))]));
            }
        };
        Ok(entry.map(|entry| ("service".to_owned(), json!(entry))).into_iter().collect())
    }
}

fn failure(error: &ClientError) -> Failure {
    match error {
        ClientError::Refused(refusal) => Failure::Refused(refusal.message.clone()),
        _ => Failure::Down("the sandbox's supervisor does not answer".to_owned()),
    }
}
