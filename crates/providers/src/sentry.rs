//! Sentry: issues and their events.

use policy::{Method, Risk};
use serde_json::Value;
use url::Url;

use crate::schema::{choice, id, object, optional, required, text};
use crate::{Action, InvalidParams, Params, Provider, Request, bearer};

pub(crate) const PROVIDER: Provider = Provider {
    id: "sentry",
    name: "Sentry",
    base_url: "https://sentry.io/api/0",
    actions: &[
        Action {
            name: "list_issues",
            description: "List the issues of a project, most recent first.",
            risk: Risk::Read,
            schema: list_issues_schema,
            request: list_issues,
            result: |body| Ok(body.clone()),
        },
        Action {
            name: "get_issue",
            description: "Get an issue with its statistics.",
            risk: Risk::Read,
            schema: issue_schema,
            request: get_issue,
            result: |body| Ok(body.clone()),
        },
        Action {
            name: "list_issue_events",
            description: "List the events of an issue.",
            risk: Risk::Read,
            schema: issue_schema,
            request: list_issue_events,
            result: |body| Ok(body.clone()),
        },
        Action {
            name: "get_event",
            description: "Get one event of an issue, with its stack trace.",
            risk: Risk::Read,
            schema: get_event_schema,
            request: get_event,
            result: |body| Ok(body.clone()),
        },
        Action {
            name: "update_issue",
            description: "Change the status or the assignee of an issue.",
            risk: Risk::Write,
            schema: update_issue_schema,
            request: update_issue,
            result: |body| Ok(body.clone()),
        },
    ],
    introduction: "Reads errors that Sentry has collected, and changes the status of issues. Begin with `list_issues`; \
        `get_event` with `latest` as `event_id` shows the newest stack trace.",
    headers: &[],
    authorization: bearer,
};

fn list_issues_schema() -> Value {
    object([
        required("organization_slug", id("Slug of the organization.")),
        required("project_slug", id("Slug of the project.")),
        optional("query", text("Search in Sentry's syntax, for example `is:unresolved level:error`.", 1000)),
    ])
}

fn issue_schema() -> Value {
    object([required("issue_id", id("Id of the issue."))])
}

fn get_event_schema() -> Value {
    object([
        required("issue_id", id("Id of the issue.")),
        required("event_id", id("Id of the event, or `latest`, `oldest` or `recommended`.")),
    ])
}

fn update_issue_schema() -> Value {
    object([
        required("issue_id", id("Id of the issue.")),
        optional("status", choice("The new status.", &["resolved", "unresolved", "ignored"])),
        optional("assignedTo", id("The new assignee: a user name, an email address, or `team:<slug>`.")),
    ])
}

fn list_issues(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let (organization, project) = (params.text("organization_slug")?, params.text("project_slug")?);
    let request = Request::new(Method::Get, base, &["projects", organization, project, "issues"])?;
    Ok(request.with_slash().with_query(params, &["query"]))
}

fn get_issue(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    Ok(Request::new(Method::Get, base, &["issues", params.text("issue_id")?])?.with_slash())
}

fn list_issue_events(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    Ok(Request::new(Method::Get, base, &["issues", params.text("issue_id")?, "events"])?.with_slash())
}

fn get_event(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let (issue, event) = (params.text("issue_id")?, params.text("event_id")?);
    Ok(Request::new(Method::Get, base, &["issues", issue, "events", event])?.with_slash())
}

fn update_issue(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let request = Request::new(Method::Put, base, &["issues", params.text("issue_id")?])?;
    Ok(request.with_slash().with_body(params.only(&["status", "assignedTo"])))
}
