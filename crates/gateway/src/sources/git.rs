//! The tools behind which pushes and pull requests happen. `git` does the work; what is here connects it to the gate.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use policy::{ModeKey, Risk};
use proto::JsonObject;
use serde::Serialize;
use serde_json::{Value, json};

use super::platform::session_of;
use super::save_service_commands::store_failure;
use super::{Failure, Output, Outside, Tool, Work};
use crate::app::AppState;
use crate::gate::{Answered, Call, Gate, Permit};
use crate::git::{
    CREATE_PULL_REQUEST, GateCalls, Operation, PullError, PullRequestOutcome, Push, forward,
    open_pull_request, parameter_problem,
};

/// A push of a large repository takes long.
const PUSH_TIMEOUT: Duration = Duration::from_mins(30);
const PULL_REQUEST_TIMEOUT: Duration = Duration::from_mins(1);

/// The tool with this full name.
pub(super) fn find(name: &str) -> Option<Arc<dyn Tool>> {
    if name == CREATE_PULL_REQUEST {
        return Some(Arc::new(PullRequestTool));
    }
    let operation = Operation::ALL.into_iter().find(|operation| operation.tool() == name)?;
    Some(Arc::new(PushTool(operation)))
}

impl GateCalls for AppState {
    fn push(&self, call: Call, push: Push) -> BoxFuture<'_, Answered> {
        Gate::call_with(self, call, Box::new(PendingPush(Mutex::new(Some(push))))).boxed()
    }

    fn create_pull_request(&self, call: Call) -> BoxFuture<'_, Answered> {
        Gate::call(self, call).boxed()
    }
}

struct PushTool(Operation);

impl Tool for PushTool {
    fn risk(&self) -> Risk {
        if self.0 == Operation::Push { Risk::Write } else { Risk::Danger }
    }

    fn mode_key(&self) -> Option<ModeKey> {
        self.0.mode_key()
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

/// A push without a body, which somebody asked for over the API.
impl Outside for PushTool {
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(
        &'a self,
        _: &'a AppState,
        _: &'a Permit,
        _: &'a Call,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        let problem = "run `git push` in the session's sandbox: a push cannot be started over the API";
        async move { Err(Failure::Invalid(problem.to_owned())) }.boxed()
    }
}

/// A push with its body. The call owns it, and drops it when it ends.
struct PendingPush(Mutex<Option<Push>>);

impl Outside for PendingPush {
    /// Another push may have happened in between, and the body is gone.
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(
        &'a self,
        app: &'a AppState,
        permit: &'a Permit,
        _: &'a Call,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        let push = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        async move {
            let forwarded = || Failure::Refused("this push was forwarded before".to_owned());
            let push = push.ok_or_else(forwarded)?;
            let (refs, mut data) = (push.ref_count(), push.description());
            let outcome = forward(&app.git, permit, push).await;
            data.extend(object(&outcome));
            let text = outcome.text(refs);
            if outcome.is_success() {
                return Ok(Output { text, data: Some(data) });
            }
            let failure = if outcome.is_retryable() { Failure::Down(text) } else { Failure::Refused(text) };
            Err(Failure::Described(Box::new(failure), data))
        }
        .boxed()
    }
}

struct PullRequestTool;

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
    /// GitHub would refuse a second one, and nobody would learn that the first exists.
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(
        &'a self,
        app: &'a AppState,
        permit: &'a Permit,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        async move {
            let session = session_of(app, call).await?;
            let repos = app.store.session_repos(session.id).await.map_err(|error| store_failure(&error))?;
            let opened = open_pull_request(&app.git, permit, &repos, &call.parameters).await;
            let foreign = || Failure::Refused("this repository does not belong to the session".to_owned());
            let url = opened.ok_or_else(foreign)?.map_err(|error| pull_request_failure(&error))?;
            let text = format!("Pull request created: {url}");
            Ok(Output { text, data: Some(object(&PullRequestOutcome::Created { url })) })
        }
        .boxed()
    }
}

/// GitHub's own message stays with the run, for whoever asked: the operator chose which GitHub it is.
fn pull_request_failure(error: &PullError) -> Failure {
    let failure = match error {
        PullError::Refused(_) => Failure::Invalid(error.to_string()),
        PullError::Unreachable => Failure::Down(error.to_string()),
        PullError::Unknown => Failure::Late,
        other => Failure::Refused(other.to_string()),
    };
    Failure::Described(Box::new(failure), object(&PullRequestOutcome::of_error(error)))
}

fn object(outcome: &impl Serialize) -> JsonObject {
    match json!(outcome) {
        Value::Object(fields) => fields,
        _ => JsonObject::new(),
    }
}
