//! Checks the requests of every action against what the vendors publish: GitHub's OpenAPI document, and the types of
//! the SDKs of Sentry, Slack and Linear. `schemas/extract.mjs` has written the files.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]
#![expect(clippy::panic, reason = "helpers of tests may fail like tests")]

mod graphql;
mod samples;

use policy::Method;
use providers::{Provider, Request, find};
use serde_json::{Value, json};
use url::Url;

fn vendor_schema(vendor: &str) -> Value {
    let text = match vendor {
        "github" => include_str!("../schemas/github.json"),
        "sentry" => include_str!("../schemas/sentry.json"),
        "slack" => include_str!("../schemas/slack.json"),
        _ => include_str!("../schemas/linear.json"),
    };
    serde_json::from_str(text).unwrap()
}

/// Every request that the samples of an action make, with the action's name.
fn requests(provider: &Provider) -> Vec<(&'static str, Request)> {
    let base = Url::parse(provider.base_url).unwrap();
    let all = provider.actions.iter().flat_map(|action| {
        let schema = action.schema();
        let validator = jsonschema::validator_for(&schema).unwrap();
        let base = &base;
        samples::samples(&schema).into_iter().map(move |sample| {
            assert!(validator.is_valid(&sample), "{}: {sample}", action.name);
            (action.name, action.request(base, &sample).unwrap())
        })
    });
    all.collect()
}

#[test]
fn requests_to_github_fit_its_openapi_document() {
    check_rest("github", |path| path);
}

/// Sentry publishes the routes of issues below their organization. The ones without it are older names of the same
/// routes, which the published document has dropped; all but that prefix is checked.
#[test]
fn requests_to_sentry_fit_the_types_of_its_client() {
    check_rest("sentry", |path| path.replace("/organizations/{organization_id_or_slug}", ""));
}

#[test]
fn requests_to_slack_fit_the_types_of_its_client() {
    check_rest("slack", |path| format!("/api{path}"));
}

fn check_rest(vendor: &str, route: impl Fn(String) -> String) {
    let document = vendor_schema(vendor);
    let operations = document["operations"].as_array().unwrap();
    let mut used = vec![false; operations.len()];
    for (action, request) in requests(find(vendor).unwrap()) {
        let found = operations.iter().position(|operation| {
            let path = route(operation["path"].as_str().unwrap().to_owned());
            operation["method"] == method(&request) && fits(&path, request.url.path())
        });
        let Some(at) = found else {
            panic!("{vendor} has no operation for {action}: {} {}", method(&request), request.url)
        };
        used[at] = true;
        check_query(action, &operations[at]["query"], &request);
        check_body(action, &operations[at]["body"], &request);
    }
    assert!(used.iter().all(|used| *used), "an operation was extracted that no action uses: {used:?}");
}

fn method(request: &Request) -> &'static str {
    match request.method {
        Method::Get => "GET",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Patch => "PATCH",
        Method::Delete => "DELETE",
    }
}

/// Whether a path is an instance of a template. Only `{path}` stands for several segments.
fn fits(template: &str, path: &str) -> bool {
    if let Some(start) = template.strip_suffix("{path}") {
        let depth = start.matches('/').count();
        let head: Vec<_> = path.split('/').take(depth).collect();
        return fits(start, &format!("{}/", head.join("/"))) && path.split('/').count() > depth;
    }
    let (left, right): (Vec<_>, Vec<_>) = (template.split('/').collect(), path.split('/').collect());
    let same = |(left, right): (&&str, &&str)| left == right || (left.starts_with('{') && !right.is_empty());
    left.len() == right.len() && left.iter().zip(&right).all(same)
}

fn check_query(action: &str, published: &Value, request: &Request) {
    for (name, value) in request.url.query_pairs() {
        let schema = published.get(name.as_ref());
        let schema = schema.unwrap_or_else(|| panic!("{action} sends the unpublished parameter {name}"));
        let number = schema["type"] == "integer" || schema["type"] == "number";
        let value = if number { value.parse::<i64>().unwrap().into() } else { Value::from(value.as_ref()) };
        assert!(jsonschema::is_valid(schema, &value), "{action}: {name}={value} does not fit {schema}");
    }
}

fn check_body(action: &str, published: &Value, request: &Request) {
    let Some(body) = &request.body else {
        assert!(published.is_null(), "{action} must send a body");
        return;
    };
    let mut schema = published.clone();
    schema["additionalProperties"] = json!(false);
    let problems: Vec<_> = jsonschema::validator_for(&schema)
        .unwrap()
        .iter_errors(body)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(problems.is_empty(), "{action} sends {body}: {problems:?}");
}

#[test]
fn requests_to_linear_fit_the_schema_of_its_client() {
    let schema = graphql::Schema(vendor_schema("linear"));
    for (action, request) in requests(find("linear").unwrap()) {
        let body = request.body.unwrap();
        let problems = schema.check(body["query"].as_str().unwrap(), &body["variables"]);
        assert!(problems.is_empty(), "{action} sends {body}: {problems:?}");
    }
}

#[test]
fn the_check_of_graphql_finds_mistakes() {
    let schema = graphql::Schema(vendor_schema("linear"));
    let check = |query: &str, variables: Value| schema.check(query, &variables).join(", ");
    let right = "query X($id: String!) { issue(id: $id) { title team { id } } }";
    assert_eq!(check(right, json!({"id": "1"})), "");
    for (wrong, variables, problem) in [
        ("query X { issue { title } }", json!({}), "Query.issue needs id"),
        ("query X($id: String!) { issue(id: $id) { titel } }", json!({"id": "1"}), "Issue has no titel"),
        ("query X($id: String!) { issue(id: $id) { team } }", json!({"id": "1"}), "Issue.team needs fields"),
        ("query X($id: Int!) { issue(id: $id) { id } }", json!({"id": 1}), "$id is Int!, not String!"),
        ("query X($id: String!) { issue(id: $id) { id } }", json!({"id": 1}), "id is not String"),
        ("query X($id: String!) { issue(id: $id, x: $id) { id } }", json!({"id": "1"}), "no argument x"),
        ("query X($id: String!) { issue(id: $id) { id } }", json!({}), "id is missing"),
        (
            "mutation X($input: IssueCreateInput!) { issueCreate(input: $input) { success } }",
            json!({"input": {"title": "t", "labelIds": "x", "prio": 1}}),
            "teamId is missing",
        ),
    ] {
        let found = check(wrong, variables);
        assert!(found.contains(problem), "{wrong}: {found}");
    }
}
