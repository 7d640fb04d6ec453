//! GitHub: issues, pull requests, checks and file contents, over its REST API.

mod results;
mod schemas;

use policy::{Method, Risk};
use url::Url;

use crate::{Action, InvalidParams, Params, Provider, Request, bearer};

pub(crate) const PROVIDER: Provider = Provider {
    id: "github",
    name: "GitHub",
    base_url: "https://api.github.com",
    actions: &[
        Action {
            name: "list_issues",
            description: "List the issues of a repository, newest first. Pull requests are marked as such.",
            risk: Risk::Read,
            schema: schemas::list_issues,
            request: list_issues,
            result: results::issues,
        },
        Action {
            name: "get_issue",
            description: "Get an issue.",
            risk: Risk::Read,
            schema: schemas::issue,
            request: get_issue,
            result: results::issue,
        },
        Action {
            name: "create_issue",
            description: "Create an issue.",
            risk: Risk::Write,
            schema: schemas::create_issue,
            request: create_issue,
            result: results::issue,
        },
        Action {
            name: "update_issue",
            description: "Change the title, body, state, labels or assignees of an issue.",
            risk: Risk::Write,
            schema: schemas::update_issue,
            request: update_issue,
            result: results::issue,
        },
        Action {
            name: "comment_on_issue",
            description: "Add a comment to an issue.",
            risk: Risk::Write,
            schema: schemas::comment_on_issue,
            request: comment_on_issue,
            result: results::comment,
        },
        Action {
            name: "list_comments",
            description: "List the comments of an issue, or of the conversation of a pull request, oldest first.",
            risk: Risk::Read,
            schema: schemas::list_comments,
            request: list_comments,
            result: results::comments,
        },
        Action {
            name: "list_pull_requests",
            description: "List the pull requests of a repository, newest first.",
            risk: Risk::Read,
            schema: schemas::list_pull_requests,
            request: list_pull_requests,
            result: results::pull_requests,
        },
        Action {
            name: "get_pull_request",
            description: "Get a pull request.",
            risk: Risk::Read,
            schema: schemas::pull_request,
            request: get_pull_request,
            result: results::pull_request,
        },
        Action {
            name: "create_pull_request",
            description: "Open a pull request for a branch that is already on GitHub.",
            risk: Risk::Write,
            schema: schemas::create_pull_request,
            request: create_pull_request,
            result: results::pull_request,
        },
        Action {
            name: "comment_on_pull_request",
            description: "Add a comment to the conversation of a pull request.",
            risk: Risk::Write,
            schema: schemas::comment_on_pull_request,
            request: comment_on_pull_request,
            result: results::comment,
        },
        Action {
            name: "list_pull_request_files",
            description: "List the files that a pull request changes, with their patches.",
            risk: Risk::Read,
            schema: schemas::pull_request_page,
            request: list_pull_request_files,
            result: results::files,
        },
        Action {
            name: "list_checks",
            description: "List the check runs of a commit, branch or tag.",
            risk: Risk::Read,
            schema: schemas::list_checks,
            request: list_checks,
            result: results::checks,
        },
        Action {
            name: "get_file_contents",
            description: "Get the text of a file, or the entries of a directory.",
            risk: Risk::Read,
            schema: schemas::get_file_contents,
            request: get_file_contents,
            result: results::contents,
        },
    ],
    introduction: "Works with issues, pull requests, checks and files of the repositories that the connected token may \
        use. Every action names its repository by `owner` and `repo`. To push commits use git as usual.",
    headers: &[
        ("accept", "application/vnd.github+json"),
        ("x-github-api-version", "2022-11-28"),
        ("user-agent", "proliferate-gateway"),
    ],
    authorization: bearer,
};

const PAGE_PARAMETERS: [&str; 2] = ["per_page", "page"];

/// A request for a path below a repository.
fn in_repo(method: Method, base: &Url, params: &Params<'_>, rest: &[&str]) -> Result<Request, InvalidParams> {
    let repo = ["repos", params.text("owner")?, params.text("repo")?];
    Request::new(method, base, &[&repo, rest].concat())
}

fn list_issues(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let query = ["state", "labels", "assignee", "since", "per_page", "page"];
    Ok(in_repo(Method::Get, base, params, &["issues"])?.with_query(params, &query))
}

fn get_issue(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    in_repo(Method::Get, base, params, &["issues", &params.number("issue_number")?])
}

fn create_issue(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let body = params.only(&["title", "body", "labels", "assignees"]);
    Ok(in_repo(Method::Post, base, params, &["issues"])?.with_body(body))
}

fn update_issue(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let body = params.only(&["title", "body", "state", "state_reason", "labels", "assignees"]);
    let request = in_repo(Method::Patch, base, params, &["issues", &params.number("issue_number")?])?;
    Ok(request.with_body(body))
}

fn comment_on_issue(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    comment(base, params, &params.number("issue_number")?)
}

fn list_comments(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let issue = params.number("issue_number")?;
    let request = in_repo(Method::Get, base, params, &["issues", &issue, "comments"])?;
    Ok(request.with_query(params, &["since", "per_page", "page"]))
}

fn list_pull_requests(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let query = ["state", "head", "base", "per_page", "page"];
    Ok(in_repo(Method::Get, base, params, &["pulls"])?.with_query(params, &query))
}

fn get_pull_request(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    in_repo(Method::Get, base, params, &["pulls", &params.number("pull_number")?])
}

fn create_pull_request(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let body = params.only(&["title", "head", "base", "body", "draft"]);
    Ok(in_repo(Method::Post, base, params, &["pulls"])?.with_body(body))
}

fn comment_on_pull_request(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    comment(base, params, &params.number("pull_number")?)
}

/// To GitHub every pull request is an issue, and its conversation is the issue's.
fn comment(base: &Url, params: &Params<'_>, number: &str) -> Result<Request, InvalidParams> {
    let request = in_repo(Method::Post, base, params, &["issues", number, "comments"])?;
    Ok(request.with_body(params.only(&["body"])))
}

fn list_pull_request_files(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let request = in_repo(Method::Get, base, params, &["pulls", &params.number("pull_number")?, "files"])?;
    Ok(request.with_query(params, &PAGE_PARAMETERS))
}

fn list_checks(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let request = in_repo(Method::Get, base, params, &["commits", params.text("ref")?, "check-runs"])?;
    Ok(request.with_query(params, &["check_name", "status", "per_page", "page"]))
}

/// The path of a file has several segments; each is encoded alone, and none may be `..`.
fn get_file_contents(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let path = params.text("path")?.trim_matches('/');
    let segments: Vec<_> = ["contents"].into_iter().chain(path.split('/')).collect();
    let segments = if path.is_empty() { &segments[..1] } else { &segments };
    Ok(in_repo(Method::Get, base, params, segments)?.with_query(params, &["ref"]))
}
