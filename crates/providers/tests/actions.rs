//! The table of actions as the wire format fixes it, exact requests, and how answers are read.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

use ledger::Redactor;
use policy::{Method, Risk};
use providers::{ApiError, PROVIDERS, Response, find};
use serde_json::{Value, json};
use url::Url;

/// Source, action, risk, and parameters with `*` at required ones.
const ACTIONS_ON_THE_WIRE: [(&str, &str, Risk, &str); 11] = [
    ("linear", "list_issues", Risk::Read, "after first projectId teamId"),
    ("linear", "get_issue", Risk::Read, "issueId*"),
    (
        "linear",
        "create_issue",
        Risk::Write,
        "assigneeId description labelIds priority projectId stateId teamId* title*",
    ),
    ("linear", "update_issue", Risk::Write, "assigneeId description issueId* priority stateId title"),
    ("linear", "add_comment", Risk::Write, "body* issueId*"),
    ("sentry", "list_issues", Risk::Read, "organization_slug* project_slug* query"),
    ("sentry", "get_issue", Risk::Read, "issue_id*"),
    ("sentry", "list_issue_events", Risk::Read, "issue_id*"),
    ("sentry", "get_event", Risk::Read, "event_id* issue_id*"),
    ("sentry", "update_issue", Risk::Write, "assignedTo issue_id* status"),
    ("slack", "post_message", Risk::Write, "channel* text* thread_ts"),
];

#[test]
fn linear_sentry_and_slack_have_exactly_the_actions_of_the_wire_format() {
    let mut found = Vec::new();
    for provider in PROVIDERS.iter().filter(|provider| provider.id != "github") {
        for action in provider.actions {
            let schema = action.schema();
            let required = schema["required"].as_array().unwrap();
            let mark = |name: &String| if required.contains(&json!(name)) { "*" } else { "" };
            let names = schema["properties"].as_object().unwrap().keys();
            let names: Vec<_> = names.map(|name| format!("{name}{}", mark(name))).collect();
            found.push((provider.id, action.name, action.risk, names.join(" ")));
        }
    }
    let wanted =
        ACTIONS_ON_THE_WIRE.iter().map(|(id, name, risk, params)| (*id, *name, *risk, (*params).to_owned()));
    assert_eq!(found, wanted.collect::<Vec<_>>());
}

#[test]
fn schemas_and_guides_keep_limits_and_descriptions() {
    for provider in &PROVIDERS {
        let guide = provider.guide(|_| true);
        for action in provider.actions {
            let schema = action.schema();
            assert_eq!(schema["additionalProperties"], false, "{}", action.name);
            for (name, param) in schema["properties"].as_object().unwrap() {
                let described = param["description"].as_str().is_some_and(|text| text.ends_with('.'));
                assert!(described, "{}.{}: {name}", provider.id, action.name);
                let limited =
                    ["maxLength", "maximum", "maxItems", "enum"].iter().any(|key| param.get(key).is_some());
                assert!(limited || param["type"] == "boolean", "{}.{}: {name}", provider.id, action.name);
                assert!(guide.contains(&format!("- `{name}`")), "{guide}");
            }
            assert!(guide.contains(&format!("### {} ({})", action.name, action.risk.as_str())), "{guide}");
        }
    }
    let list = find("linear").unwrap().action("list_issues").unwrap().schema();
    assert_eq!(
        (&list["properties"]["first"]["maximum"], &list["properties"]["first"]["default"]),
        (&json!(50), &json!(25))
    );
}

fn request(source: &str, action: &str, params: &Value) -> (Method, String, Option<Value>) {
    let provider = find(source).unwrap();
    let base = Url::parse(provider.base_url).unwrap();
    let request = provider.action(action).unwrap().request(&base, params).unwrap();
    (request.method, request.url.to_string(), request.body)
}

#[test]
fn requests_are_exact() {
    let sentry = request(
        "sentry",
        "list_issues",
        &json!({"organization_slug": "a", "project_slug": "b/../c", "query": "is:unresolved x&y"}),
    );
    let url = "https://sentry.io/api/0/projects/a/b%2F..%2Fc/issues/?query=is%3Aunresolved+x%26y";
    assert_eq!(sentry, (Method::Get, url.to_owned(), None));
    let update = request("sentry", "update_issue", &json!({"issue_id": "7", "status": "resolved"}));
    let url = "https://sentry.io/api/0/issues/7/".to_owned();
    assert_eq!(update, (Method::Put, url, Some(json!({"status": "resolved"}))));
    let slack = request("slack", "post_message", &json!({"channel": "#dev", "text": "hi"}));
    let url = "https://slack.com/api/chat.postMessage".to_owned();
    assert_eq!(slack, (Method::Post, url, Some(json!({"channel": "#dev", "text": "hi"}))));
    let (method, url, body) = request("linear", "list_issues", &json!({"teamId": "t\"}"}));
    assert_eq!((method, url.as_str()), (Method::Post, "https://api.linear.app/graphql"));
    assert_eq!(body.unwrap()["variables"], json!({"first": 25, "filter": {"team": {"id": {"eq": "t\"}"}}}}));
    let file = request(
        "github",
        "get_file_contents",
        &json!({"owner": "o", "repo": "r", "path": "/a b/c#d.rs", "ref": "x/y"}),
    );
    let url = "https://api.github.com/repos/o/r/contents/a%20b/c%23d.rs?ref=x%2Fy".to_owned();
    assert_eq!(file, (Method::Get, url, None));
    let checks = request("github", "list_checks", &json!({"owner": "o", "repo": "r", "ref": "feature/x"}));
    assert_eq!(checks.1, "https://api.github.com/repos/o/r/commits/feature%2Fx/check-runs");
    let comments = request(
        "github",
        "list_comments",
        &json!({"owner": "o", "repo": "r", "issue_number": 7, "since": "2026-01-31T00:00:00Z", "page": 2}),
    );
    let url = "https://api.github.com/repos/o/r/issues/7/comments?page=2&since=2026-01-31T00%3A00%3A00Z";
    assert_eq!(comments, (Method::Get, url.to_owned(), None));
    let root = request("github", "get_file_contents", &json!({"owner": "o", "repo": "r", "path": "/"}));
    assert_eq!(root.1, "https://api.github.com/repos/o/r/contents");
}

#[test]
fn a_path_that_would_leave_the_repository_is_refused() {
    let base = Url::parse("https://api.github.com").unwrap();
    let contents = find("github").unwrap().action("get_file_contents").unwrap();
    for path in ["../../../user", "a/../b", "a//b", "./a"] {
        let params = json!({"owner": "o", "repo": "r", "path": path});
        assert!(contents.request(&base, &params).is_err(), "{path}");
    }
    for (owner, repo) in [("..", "r"), ("o", "."), ("", "r")] {
        let params = json!({"owner": owner, "repo": repo, "path": "a"});
        assert!(contents.request(&base, &params).is_err(), "{owner}/{repo}");
    }
}

#[test]
fn personal_keys_of_linear_are_sent_as_they_are() {
    let linear = find("linear").unwrap();
    assert_eq!(linear.authorization("lin_api_abc"), "lin_api_abc");
    assert_eq!(linear.authorization("lin_oauth_abc"), "Bearer lin_oauth_abc");
    for id in ["sentry", "slack", "github"] {
        assert_eq!(find(id).unwrap().authorization("abc"), "Bearer abc");
    }
}

fn read(source: &str, action: &str, status: u16, body: &Value) -> Result<Value, ApiError> {
    let provider = find(source).unwrap();
    let redactor = Redactor::new(["canary-token"]).unwrap();
    let body = body.to_string();
    let response = Response { status, retry_after: None, body: body.as_bytes(), redactor: &redactor };
    provider.read(provider.action(action).unwrap(), &response)
}

#[test]
fn answers_become_results_or_error_texts() {
    let posted =
        read("slack", "post_message", 200, &json!({"ok": true, "ts": "1.2", "channel": "C1", "message": {}}));
    assert_eq!(posted.unwrap(), json!({"ts": "1.2", "channel": "C1"}));
    let refused = read("slack", "post_message", 200, &json!({"ok": false, "error": "channel_not_found"}));
    assert_eq!(refused.unwrap_err(), ApiError::Refused("Slack API error: channel_not_found".to_owned()));
    let limited = read("slack", "post_message", 200, &json!({"ok": false, "error": "ratelimited"}));
    assert_eq!(limited.unwrap_err(), ApiError::RateLimited("Slack API error: ratelimited".to_owned()));
    let data = read("linear", "get_issue", 200, &json!({"data": {"issue": {"id": "1"}}}));
    assert_eq!(data.unwrap(), json!({"issue": {"id": "1"}}));
    let errors =
        json!({"data": null, "errors": [{"message": "Entity not found"}, {"message": "canary-token"}]});
    let error = read("linear", "get_issue", 200, &errors).unwrap_err().to_string();
    assert_eq!(error, "Linear API error: Entity not found; [REDACTED]");
    let unchanged =
        read("linear", "create_issue", 200, &json!({"data": {"issueCreate": {"success": false}}}));
    assert!(matches!(unchanged.unwrap_err(), ApiError::Refused(_)));
    assert!(matches!(read("linear", "get_issue", 200, &json!([])).unwrap_err(), ApiError::Failed(_)));
    let comments = json!([{"id": 1, "body": "hi", "user": {"login": "ada", "id": 2}, "node_id": "x"}]);
    let comments = read("github", "list_comments", 200, &comments);
    assert_eq!(comments.unwrap(), json!([{"id": 1, "body": "hi", "user": "ada"}]));
    let missing = read("sentry", "get_issue", 404, &json!({"detail": "gone"})).unwrap_err().to_string();
    assert_eq!(missing, "Sentry API 404: {\"detail\":\"gone\"}");
}
