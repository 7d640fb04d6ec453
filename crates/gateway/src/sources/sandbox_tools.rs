//! The tools that change a session's sandbox and bring their own effect, which has the connection into it:
//! `start_services`, `run_command` and `write_file`. Members call them at a session, and the gateway calls the first on its
//! own.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Outside, Permit, Tool, Work};
use policy::Risk;
use serde_json::Value;

const TOOL_NAMES: [&str; 3] = ["start_services", "run_command", "write_file"];
/// Longer than the test runs of all commands together. Effects may have a timeout of their own.
const CALL_TIMEOUT: Duration = Duration::from_mins(3);

pub(super) fn is_sandbox_tool(name: &str) -> bool {
    TOOL_NAMES.contains(&name)
}

pub(super) struct SandboxTool;

impl Tool for SandboxTool {
    fn risk(&self) -> Risk {
        super::platform::RISK
    }

    fn timeout(&self) -> Duration {
        CALL_TIMEOUT
    }

    fn check(&self, _: &Value) -> Result<(), String> {
        Ok(())
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

/// A call over the API, which has no connection into a sandbox. It is always refused.
impl Outside for SandboxTool {
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(&'a self, _: &'a Permit, _: &'a CallRequest) -> BoxFuture<'a, Result<Output, Failure>> {
        let problem = "this is done over the session's own routes and stream, not over the API of tools";
        async move { Err(Failure::Invalid(problem.to_owned())) }.boxed()
    }
}
