//! `start_services`: runs the commands that start an app's services. Members call it at a session, and the gateway calls it
//! on its own; both bring the effect, which has the connection into the sandbox.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Outside, Permit, Tool, Work};
use policy::Risk;
use serde_json::Value;

pub(super) const NAME: &str = "start_services";
/// Longer than the test runs of all commands together.
const TIMEOUT: Duration = Duration::from_mins(3);

pub(super) struct StartServicesTool;

impl Tool for StartServicesTool {
    fn risk(&self) -> Risk {
        super::platform::RISK
    }

    fn timeout(&self) -> Duration {
        TIMEOUT
    }

    fn check(&self, _: &Value) -> Result<(), String> {
        Ok(())
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

/// A call over the API, which has no connection into a sandbox. It is always refused.
impl Outside for StartServicesTool {
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(&'a self, _: &'a Permit, _: &'a CallRequest) -> BoxFuture<'a, Result<Output, Failure>> {
        let problem = "services are started over the session's stream, not over the API";
        async move { Err(Failure::Invalid(problem.to_owned())) }.boxed()
    }
}
