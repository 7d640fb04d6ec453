//! The JSON Schemas of GitHub's actions.

use serde_json::{Value, json};

use crate::schema::{
    MAX_BODY_CHARS, Param, choice, flag, id, integer, list, object, optional, required, text, with_default,
};

/// The largest number that JSON keeps exactly.
const LARGEST_NUMBER: u64 = (1 << 53) - 1;

fn owner() -> Param {
    required("owner", name("Owner of the repository: a user or an organization."))
}

fn repo() -> Param {
    required("repo", name("Name of the repository, without its owner."))
}

fn name(description: &str) -> Value {
    json!({
        "type": "string", "description": description, "minLength": 1, "maxLength": 100,
        "pattern": "^[A-Za-z0-9._-]+$",
    })
}

fn issue_number() -> Param {
    required("issue_number", integer("Number of the issue.", 1, LARGEST_NUMBER))
}

fn pull_number() -> Param {
    required("pull_number", integer("Number of the pull request.", 1, LARGEST_NUMBER))
}

fn per_page() -> Param {
    optional("per_page", with_default(integer("Entries per page.", 1, 100), 30))
}

fn page() -> Param {
    optional("page", with_default(integer("Page to get, from 1.", 1, 10_000), 1))
}

fn since(description: &str) -> Param {
    let time = json!({"type": "string", "format": "date-time", "maxLength": 40, "description": description});
    optional("since", time)
}

fn state() -> Param {
    optional(
        "state",
        with_default(choice("List only those in this state.", &["open", "closed", "all"]), "open"),
    )
}

fn title(description: &str) -> Value {
    text(description, 256)
}

fn labels(description: &str) -> Param {
    optional("labels", list(description, 100, &text("Name of a label.", 50)))
}

fn assignees(description: &str) -> Param {
    optional("assignees", list(description, 10, &text("Login of a user.", 100)))
}

fn comment() -> Param {
    required("body", text("The comment in Markdown.", MAX_BODY_CHARS))
}

pub(super) fn list_issues() -> Value {
    object([
        owner(),
        repo(),
        state(),
        optional("labels", text("Names of labels, separated by commas; all must match.", 1000)),
        optional("assignee", id("Login of an assignee, `none`, or `*` for any.")),
        since("List only issues that were updated after this time, for example 2026-01-31T00:00:00Z."),
        per_page(),
        page(),
    ])
}

pub(super) fn issue() -> Value {
    object([owner(), repo(), issue_number()])
}

pub(super) fn create_issue() -> Value {
    object([
        owner(),
        repo(),
        required("title", title("Title of the issue.")),
        optional("body", text("Body in Markdown.", MAX_BODY_CHARS)),
        labels("Names of labels."),
        assignees("Logins of assignees."),
    ])
}

pub(super) fn update_issue() -> Value {
    object([
        owner(),
        repo(),
        issue_number(),
        optional("title", title("The new title.")),
        optional("body", text("The new body in Markdown.", MAX_BODY_CHARS)),
        optional("state", choice("The new state.", &["open", "closed"])),
        optional(
            "state_reason",
            choice("Why the state changes.", &["completed", "not_planned", "duplicate", "reopened"]),
        ),
        labels("Names of labels; they replace the present ones."),
        assignees("Logins of assignees; they replace the present ones."),
    ])
}

pub(super) fn comment_on_issue() -> Value {
    object([owner(), repo(), issue_number(), comment()])
}

pub(super) fn list_comments() -> Value {
    object([
        owner(),
        repo(),
        required("issue_number", integer("Number of the issue or pull request.", 1, LARGEST_NUMBER)),
        since("List only comments that were updated after this time, for example 2026-01-31T00:00:00Z."),
        per_page(),
        page(),
    ])
}

pub(super) fn list_pull_requests() -> Value {
    object([
        owner(),
        repo(),
        state(),
        optional("head", text("List only those from this branch, as `user:branch`.", 300)),
        optional("base", text("List only those into this branch.", 255)),
        per_page(),
        page(),
    ])
}

pub(super) fn pull_request() -> Value {
    object([owner(), repo(), pull_number()])
}

pub(super) fn create_pull_request() -> Value {
    object([
        owner(),
        repo(),
        required("title", title("Title of the pull request.")),
        required("head", text("Branch with the changes; `user:branch` if it is in a fork.", 300)),
        required("base", text("Branch that the changes go into.", 255)),
        optional("body", text("Body in Markdown.", MAX_BODY_CHARS)),
        optional("draft", flag("Whether to open it as a draft.")),
    ])
}

pub(super) fn comment_on_pull_request() -> Value {
    object([owner(), repo(), pull_number(), comment()])
}

pub(super) fn pull_request_page() -> Value {
    object([owner(), repo(), pull_number(), per_page(), page()])
}

pub(super) fn list_checks() -> Value {
    object([
        owner(),
        repo(),
        required("ref", text("Commit, or the name of a branch or tag.", 255)),
        optional("check_name", id("List only checks of this name.")),
        optional(
            "status",
            choice("List only checks in this state.", &["queued", "in_progress", "completed"]),
        ),
        per_page(),
        page(),
    ])
}

pub(super) fn get_file_contents() -> Value {
    object([
        owner(),
        repo(),
        required("path", text("Path of the file or directory; `/` is the root.", 4096)),
        optional("ref", text("Commit, branch or tag; the default branch if absent.", 255)),
    ])
}
