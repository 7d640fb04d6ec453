//! Linear: issues and comments, over its GraphQL API. An error comes with status 200 or 400 and a list `errors`.

use policy::{Method, Risk};
use serde_json::{Map, Value, json};
use url::Url;

use crate::response::graphql_errors;
use crate::schema::{MAX_BODY_CHARS, id, integer, list, object, optional, required, text, with_default};
use crate::{Action, ApiError, InvalidParams, Params, Provider, Request, bearer};

/// The page size if the call has none.
const DEFAULT_PAGE_SIZE: u64 = 25;
/// Personal keys begin with this, and Linear wants them without `Bearer`.
const PERSONAL_KEY: &str = "lin_api_";
/// The fields of every issue in a result.
const ISSUE_FIELDS: &str = "id identifier title url priority createdAt updatedAt state { id name type } \
    assignee { id name email } team { id key name } project { id name }";

pub(crate) const PROVIDER: Provider = Provider {
    id: "linear",
    name: "Linear",
    base_url: "https://api.linear.app/graphql",
    actions: &[
        Action {
            name: "list_issues",
            description: "List issues, optionally of one team or project.",
            risk: Risk::Read,
            schema: list_issues_schema,
            request: list_issues,
            result: data,
        },
        Action {
            name: "get_issue",
            description: "Get an issue with its description, labels and comments.",
            risk: Risk::Read,
            schema: get_issue_schema,
            request: get_issue,
            result: data,
        },
        Action {
            name: "create_issue",
            description: "Create an issue in a team.",
            risk: Risk::Write,
            schema: create_issue_schema,
            request: create_issue,
            result: data,
        },
        Action {
            name: "update_issue",
            description: "Change fields of an issue.",
            risk: Risk::Write,
            schema: update_issue_schema,
            request: update_issue,
            result: data,
        },
        Action {
            name: "add_comment",
            description: "Add a comment to an issue.",
            risk: Risk::Write,
            schema: add_comment_schema,
            request: add_comment,
            result: data,
        },
    ],
    introduction: "Reads and changes issues in Linear. Ids are UUIDs; `get_issue` and `update_issue` also take an \
        identifier such as `ENG-123`. Descriptions and comments are Markdown.",
    headers: &[],
    authorization,
};

fn authorization(token: &str) -> String {
    if token.starts_with(PERSONAL_KEY) { token.to_owned() } else { bearer(token) }
}

fn priority() -> Value {
    integer("0 is no priority, 1 urgent, 2 high, 3 medium, 4 low.", 0, 4)
}

fn list_issues_schema() -> Value {
    object([
        optional("teamId", id("List only issues of this team.")),
        optional("projectId", id("List only issues of this project.")),
        optional("first", with_default(integer("How many issues to list.", 1, 50), DEFAULT_PAGE_SIZE)),
        optional("after", id("The `endCursor` of the previous page.")),
    ])
}

fn get_issue_schema() -> Value {
    object([required("issueId", id("Id or identifier of the issue, for example `ENG-123`."))])
}

fn create_issue_schema() -> Value {
    object([
        required("teamId", id("Id of the team.")),
        required("title", text("Title of the issue.", 512)),
        optional("description", text("Description in Markdown.", MAX_BODY_CHARS)),
        optional("assigneeId", id("Id of the user to assign.")),
        optional("stateId", id("Id of the workflow state.")),
        optional("priority", priority()),
        optional("labelIds", list("Ids of labels.", 50, &id("Id of a label."))),
        optional("projectId", id("Id of the project.")),
    ])
}

fn update_issue_schema() -> Value {
    object([
        required("issueId", id("Id or identifier of the issue, for example `ENG-123`.")),
        optional("title", text("The new title.", 512)),
        optional("description", text("The new description in Markdown.", MAX_BODY_CHARS)),
        optional("assigneeId", id("Id of the new assignee.")),
        optional("stateId", id("Id of the new workflow state.")),
        optional("priority", priority()),
    ])
}

fn add_comment_schema() -> Value {
    object([
        required("issueId", id("Id of the issue.")),
        required("body", text("The comment in Markdown.", MAX_BODY_CHARS)),
    ])
}

fn list_issues(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let mut variables = params.only(&["first", "after"]);
    variables.entry("first").or_insert(DEFAULT_PAGE_SIZE.into());
    let mut filter = Map::new();
    for (field, name) in [("team", "teamId"), ("project", "projectId")] {
        if let Some(id) = params.optional_text(name) {
            filter.insert(field.to_owned(), json!({"id": {"eq": id}}));
        }
    }
    if !filter.is_empty() {
        variables.insert("filter".to_owned(), filter.into());
    }
    let query = format!(
        "query ListIssues($first: Int, $after: String, $filter: IssueFilter) {{ \
        issues(first: $first, after: $after, filter: $filter) {{ \
        nodes {{ {ISSUE_FIELDS} }} pageInfo {{ hasNextPage endCursor }} }} }}"
    );
    graphql(base, query, variables)
}

fn get_issue(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let query = format!(
        "query GetIssue($id: String!) {{ issue(id: $id) {{ {ISSUE_FIELDS} description \
        labels {{ nodes {{ id name }} }} \
        comments {{ nodes {{ id body createdAt user {{ id name }} }} pageInfo {{ hasNextPage }} }} }} }}"
    );
    graphql(base, query, object_of([("id", params.text("issueId")?.into())]))
}

fn create_issue(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let fields =
        ["teamId", "title", "description", "assigneeId", "stateId", "priority", "labelIds", "projectId"];
    let query = format!(
        "mutation CreateIssue($input: IssueCreateInput!) {{ \
        issueCreate(input: $input) {{ success issue {{ {ISSUE_FIELDS} }} }} }}"
    );
    graphql(base, query, object_of([("input", params.only(&fields).into())]))
}

fn update_issue(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let fields = ["title", "description", "assigneeId", "stateId", "priority"];
    let query = format!(
        "mutation UpdateIssue($id: String!, $input: IssueUpdateInput!) {{ \
        issueUpdate(id: $id, input: $input) {{ success issue {{ {ISSUE_FIELDS} }} }} }}"
    );
    let id = params.text("issueId")?.into();
    graphql(base, query, object_of([("id", id), ("input", params.only(&fields).into())]))
}

fn add_comment(base: &Url, params: &Params<'_>) -> Result<Request, InvalidParams> {
    let query = "mutation AddComment($input: CommentCreateInput!) { \
        commentCreate(input: $input) { success comment { id url body createdAt } } }";
    let input = params.only(&["issueId", "body"]).into();
    graphql(base, query.to_owned(), object_of([("input", input)]))
}

fn object_of<const N: usize>(fields: [(&str, Value); N]) -> Map<String, Value> {
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Values travel as variables, so they cannot change the query.
fn graphql(base: &Url, query: String, variables: Map<String, Value>) -> Result<Request, InvalidParams> {
    let body = object_of([("query", query.into()), ("variables", variables.into())]);
    Ok(Request::new(Method::Post, base, &[])?.with_body(body))
}

fn data(body: &Value) -> Result<Value, ApiError> {
    let messages: Vec<_> =
        graphql_errors(body).map(|error| error["message"].as_str().unwrap_or("no message")).collect();
    if !messages.is_empty() {
        return Err(ApiError::Refused(messages.join("; ")));
    }
    let data = body.get("data").cloned().unwrap_or_default();
    let Some(fields) = data.as_object() else {
        return Err(ApiError::Failed("the answer has no data".to_owned()));
    };
    if fields.values().any(|payload| payload["success"] == false) {
        return Err(ApiError::Refused("the change was not made".to_owned()));
    }
    Ok(data)
}
