//! The tools for reads at a forge, pushes and pull requests. The `git` module does the work; this one connects it to the gate.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, Failure, Output, Outside, Permit, Tool, ToolScope, Work};
use policy::{ModeKey, Policy, Risk, ToolFacts};
use serde_json::Value;

use super::platform::{session_of, store_failure};
use super::{Found, Source};
use crate::git::{
    CREATE_PULL_REQUEST, FETCH_TOOL, GitService, Operation, PullError, PullRequestOutcome, object,
    open_pull_request, parameter_problem,
};

/// The timeout of a push, which takes long for a large repository.
const PUSH_TIMEOUT: Duration = Duration::from_mins(30);
const PULL_REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
/// Longer than the longest clone at a session's start.
const FETCH_TIMEOUT: Duration = Duration::from_mins(15);

/// The source of git's tools. Git calls the gate, which calls this source, so the reference back
/// is weak.
pub(crate) struct GitSource(pub(crate) Weak<GitService>);

impl Source for GitSource {
    fn claims(&self, _: &Policy, name: &str) -> bool {
        known(name).is_some()
    }

    fn find<'a>(&'a self, _: &'a Policy, _: ToolScope, name: &'a str) -> Found<'a> {
        let tool: Option<Arc<dyn Tool>> = if name == CREATE_PULL_REQUEST {
            Some(Arc::new(PullRequestTool(self.0.clone())))
        } else if name == FETCH_TOOL {
            Some(Arc::new(FetchTool))
        } else {
            operation(name).map(|operation| Arc::new(PushTool(operation)) as Arc<dyn Tool>)
        };
        async { Ok(tool) }.boxed()
    }
}

fn operation(name: &str) -> Option<Operation> {
    Operation::ALL.into_iter().find(|operation| operation.tool() == name)
}

/// The facts about a tool of this source that policy needs.
pub(super) fn known(name: &str) -> Option<ToolFacts> {
    if name == CREATE_PULL_REQUEST {
        return Some(ToolFacts { risk: Risk::Write, writes: None, mode_key: None });
    }
    if name == FETCH_TOOL {
        return Some(ToolFacts { risk: Risk::Read, writes: None, mode_key: None });
    }
    let tool = PushTool(operation(name)?);
    Some(ToolFacts { risk: tool.risk(), writes: None, mode_key: tool.mode_key() })
}

struct PushTool(Operation);

impl Tool for PushTool {
    fn risk(&self) -> Risk {
        if self.0 == Operation::Push { Risk::Write } else { Risk::Danger }
    }

    fn mode_key(&self) -> Option<ModeKey> {
        self.0.mode_key()
    }

    /// Pushes need their caller, because only git has the pack.
    fn needs_caller(&self) -> bool {
        true
    }

    fn refs(&self, parameters: &Value) -> Vec<String> {
        let updates = parameters["updates"].as_array().into_iter().flatten();
        updates.filter_map(|update| update["ref"].as_str()).map(str::to_owned).collect()
    }

    fn timeout(&self) -> Duration {
        PUSH_TIMEOUT
    }

    /// An action mode allows one operation, so a push must not combine it with another one.
    fn check(&self, parameters: &Value) -> Result<(), String> {
        let mut updates = parameters["updates"].as_array().into_iter().flatten();
        if updates.all(|update| update["operation"] == self.0.tool()) {
            return Ok(());
        }
        Err("push deletions, forced updates, tags and ordinary updates separately".to_owned())
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

/// A push that was requested over the API, which has no pack data. It is always refused.
impl Outside for PushTool {
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(&'a self, _: &'a Permit, _: &'a CallRequest) -> BoxFuture<'a, Result<Output, Failure>> {
        let problem = "run `git push` in the session's sandbox: a push cannot be started over the API";
        async move { Err(Failure::Invalid(problem.to_owned())) }.boxed()
    }
}

struct FetchTool;

impl Tool for FetchTool {
    fn risk(&self) -> Risk {
        Risk::Read
    }

    fn timeout(&self) -> Duration {
        FETCH_TIMEOUT
    }

    fn check(&self, _: &Value) -> Result<(), String> {
        Ok(())
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

/// A fetch that was requested over the API, where nobody reads the pack. It is always refused.
impl Outside for FetchTool {
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(&'a self, _: &'a Permit, _: &'a CallRequest) -> BoxFuture<'a, Result<Output, Failure>> {
        let problem = "run `git fetch` in the session's sandbox: a fetch cannot be started over the API";
        async move { Err(Failure::Invalid(problem.to_owned())) }.boxed()
    }
}

struct PullRequestTool(Weak<GitService>);

impl Tool for PullRequestTool {
    fn risk(&self) -> Risk {
        Risk::Write
    }

    fn timeout(&self) -> Duration {
        PULL_REQUEST_TIMEOUT
    }

    fn check(&self, parameters: &Value) -> Result<(), String> {
        parameter_problem(parameters).map_or(Ok(()), |problem| Err(problem.to_owned()))
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

impl Outside for PullRequestTool {
    /// Not safe to replay: GitHub would refuse a second pull request, and the caller would not learn that the first
    /// one exists.
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        call: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        async move {
            let stopping = || Failure::Down("the gateway is stopping".to_owned());
            let git = self.0.upgrade().ok_or_else(stopping)?;
            let session = session_of(&git.store, call).await?;
            let repos = git.store.session_repos(session.id).await.map_err(|error| store_failure(&error))?;
            let opened = open_pull_request(&git, permit, &repos, &call.target.parameters).await;
            let foreign = || Failure::Refused("this repository does not belong to the session".to_owned());
            let url = opened.ok_or_else(foreign)?.map_err(|error| pull_request_failure(&error))?;
            let text = format!("Pull request created: {url}");
            Ok(Output { text, data: Some(object(&PullRequestOutcome::Created { url })) })
        }
        .boxed()
    }
}

/// GitHub's own message stays in the run for the caller to read. It is trusted because the operator chose the GitHub
/// server.
fn pull_request_failure(error: &PullError) -> Failure {
    let failure = match error {
        PullError::Refused(_) => Failure::Invalid(error.to_string()),
        PullError::Unreachable => Failure::Down(error.to_string()),
        PullError::Unknown => Failure::Late,
        other => Failure::Refused(other.to_string()),
    };
    Failure::Described(Box::new(failure), object(&PullRequestOutcome::of_error(error)))
}
