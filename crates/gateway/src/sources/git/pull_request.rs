//! `git.create_pull_request`: opens a pull request for a branch that was pushed, at the forge of one of the session's
//! repositories.

use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use policy::Risk;
use proto::JsonObject;
use serde_json::{Value, json};

use super::super::platform::session_of;
use super::super::save_service_commands::store_failure;
use super::super::{Failure, Output, Outside, Tool, Work};
use crate::app::AppState;
use crate::gate::{Call, Permit};
use crate::runtime::{NewPull, PullError, is_branch, one_form, open_pull, place};

pub(crate) const PULL_REQUEST: &str = "git.create_pull_request";
/// The longest title and text that GitHub takes.
const MAX_TITLE: usize = 256;
const MAX_BODY: usize = 65_536;

pub(crate) struct PullRequest;

/// What is wrong with the parameters of one.
pub(crate) fn problem(parameters: &Value) -> Option<&'static str> {
    let text = |field: &str| parameters.get(field).and_then(Value::as_str);
    let fits = |text: &str, most| text.chars().count() <= most;
    match (text("title"), text("body")) {
        (Some(title), Some(body))
            if !title.trim().is_empty() && fits(title, MAX_TITLE) && fits(body, MAX_BODY) => {}
        _ => {
            return Some(
                "A pull request needs a title of at most 256 and a text of at most 65536 characters",
            );
        }
    }
    if !["head", "base"].iter().all(|field| text(field).is_some_and(is_branch)) {
        return Some("This is no name for a branch");
    }
    let extra = parameters.as_object().is_none_or(|fields| fields.len() > 5);
    if text("repository").and_then(one_form).is_none() || extra {
        return Some("A pull request has repository, title, body, head and base");
    }
    None
}

impl Tool for PullRequest {
    fn risk(&self) -> Risk {
        Risk::Write
    }

    fn timeout(&self) -> Duration {
        Duration::from_mins(1)
    }

    fn check(&self, parameters: &Value) -> Result<(), String> {
        problem(parameters).map_or(Ok(()), |problem| Err(problem.to_owned()))
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

impl Outside for PullRequest {
    /// A second one would be refused, and nobody would know that the first was made.
    fn replay_safe(&self) -> bool {
        false
    }

    fn execute<'a>(
        &'a self,
        app: &'a AppState,
        _: &'a Permit,
        call: &'a Call,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        async move {
            let session = session_of(app, call).await?;
            let repos = app.store.session_repos(session.id).await.map_err(|error| store_failure(&error))?;
            let text = |field: &str| call.parameters[field].as_str().unwrap_or_default();
            let wanted = one_form(text("repository"));
            let repo = repos.iter().find(|placed| place(&placed.repo) == wanted);
            let foreign = || Failure::Refused("this is no repository of the session".to_owned());
            let new =
                NewPull { title: text("title"), body: text("body"), head: text("head"), base: text("base") };
            let made = open_pull(app, &repo.ok_or_else(foreign)?.repo, &new).await;
            let url = made.map_err(failed)?;
            let mut data = JsonObject::new();
            data.insert("url".to_owned(), json!(url));
            Ok(Output { text: format!("Pull request created: {url}"), data: Some(data) })
        }
        .boxed()
    }
}

/// GitHub's own words are for whoever asked and stay with the run: the operator chose which GitHub it is.
fn failed(error: PullError) -> Failure {
    match error {
        PullError::Refused(_) => Failure::Invalid(error.to_string()),
        PullError::Unreachable => Failure::Down(error.to_string()),
        PullError::Unknown => Failure::Late,
        other => Failure::Refused(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_pull_request_is_asked_for() {
        let right =
            json!({"repository": "https://h/o/r", "title": "t", "body": "", "head": "work", "base": "main"});
        assert_eq!(problem(&right), None);
        for (field, wrong) in [
            ("repository", json!("o/r")),
            ("title", json!(" ")),
            ("title", json!("x".repeat(257))),
            ("body", json!("x".repeat(65_537))),
            ("body", Value::Null),
            ("head", json!("--upload-pack=x")),
            ("base", json!("a..b")),
            ("draft", json!(true)),
        ] {
            let mut changed = right.clone();
            changed[field] = wrong;
            assert!(problem(&changed).is_some(), "{changed}");
        }
        assert!(problem(&json!([])).is_some());
    }
}
