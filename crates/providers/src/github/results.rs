//! Results of GitHub's actions: the fields that an agent needs. The full objects consist mostly of URLs, and stored
//! results are cut after 10 KiB.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::ApiError;

/// Fields to keep, as JSON pointers without the first slash; the last part is the name in the result, except that
/// `user/login` becomes `user`.
const ISSUE_FIELDS: [&str; 11] = [
    "number",
    "title",
    "state",
    "state_reason",
    "body",
    "html_url",
    "user/login",
    "comments",
    "created_at",
    "updated_at",
    "closed_at",
];
const PULL_REQUEST: [&str; 17] = [
    "number",
    "title",
    "state",
    "draft",
    "merged",
    "mergeable",
    "body",
    "html_url",
    "user/login",
    "head/ref",
    "head/sha",
    "base/ref",
    "additions",
    "deletions",
    "changed_files",
    "created_at",
    "updated_at",
];
const COMMENT_FIELDS: [&str; 5] = ["id", "html_url", "body", "user/login", "created_at"];
const FILE_FIELDS: [&str; 7] =
    ["filename", "previous_filename", "status", "additions", "deletions", "changes", "patch"];
const CHECK_FIELDS: [&str; 8] = [
    "name",
    "status",
    "conclusion",
    "started_at",
    "completed_at",
    "html_url",
    "output/title",
    "output/summary",
];
const ENTRY_FIELDS: [&str; 4] = ["name", "path", "type", "size"];

pub(super) fn issue(body: &Value) -> Result<Value, ApiError> {
    one(body, issue_result)
}

pub(super) fn issues(body: &Value) -> Result<Value, ApiError> {
    each(body, issue_result)
}

pub(super) fn pull_request(body: &Value) -> Result<Value, ApiError> {
    one(body, |item| pick(item, &PULL_REQUEST))
}

pub(super) fn pull_requests(body: &Value) -> Result<Value, ApiError> {
    each(body, |item| pick(item, &PULL_REQUEST))
}

pub(super) fn comment(body: &Value) -> Result<Value, ApiError> {
    one(body, |item| pick(item, &COMMENT_FIELDS))
}

pub(super) fn comments(body: &Value) -> Result<Value, ApiError> {
    each(body, |item| pick(item, &COMMENT_FIELDS))
}

pub(super) fn files(body: &Value) -> Result<Value, ApiError> {
    each(body, |item| pick(item, &FILE_FIELDS))
}

pub(super) fn checks(body: &Value) -> Result<Value, ApiError> {
    let runs = each(&body["check_runs"], |item| pick(item, &CHECK_FIELDS))?;
    Ok(json!({"total_count": body["total_count"], "check_runs": runs}))
}

/// A directory is a list of entries. The text of a file is decoded; GitHub sends none for files over 1 MB.
pub(super) fn contents(body: &Value) -> Result<Value, ApiError> {
    if body.is_array() {
        return each(body, |item| pick(item, &ENTRY_FIELDS));
    }
    let mut file = pick(body, &ENTRY_FIELDS);
    file["sha"] = body["sha"].clone();
    if body["encoding"] == "base64" {
        let encoded = body["content"].as_str().unwrap_or_default();
        let encoded: String = encoded.split_ascii_whitespace().collect();
        let text = STANDARD.decode(encoded).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        match text {
            Some(text) => file["content"] = text.into(),
            None => file["binary"] = true.into(),
        }
    }
    Ok(file)
}

fn issue_result(item: &Value) -> Value {
    let mut issue = pick(item, &ISSUE_FIELDS);
    issue["labels"] = names(&item["labels"], "name");
    issue["assignees"] = names(&item["assignees"], "login");
    issue["is_pull_request"] = item.get("pull_request").is_some().into();
    issue
}

fn names(list: &Value, field: &str) -> Value {
    let all = list.as_array().into_iter().flatten();
    all.filter_map(|item| item[field].as_str().or(item.as_str())).collect()
}

fn one(body: &Value, shape: impl Fn(&Value) -> Value) -> Result<Value, ApiError> {
    if body.is_object() {
        Ok(shape(body))
    } else {
        Err(ApiError::Failed("the answer is not an object".to_owned()))
    }
}

fn each(list: &Value, shape: impl Fn(&Value) -> Value) -> Result<Value, ApiError> {
    let Some(items) = list.as_array() else {
        return Err(ApiError::Failed("the answer is not a list".to_owned()));
    };
    Ok(items.iter().map(shape).collect())
}

fn pick(value: &Value, fields: &[&str]) -> Value {
    let name = |field: &str| field.strip_suffix("/login").unwrap_or(field).replace('/', "_");
    let found = fields.iter().filter_map(|field| Some((name(field), value.pointer(&format!("/{field}"))?)));
    Value::Object(found.map(|(name, value)| (name, value.clone())).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_have_the_fields_that_an_agent_needs() {
        let found = issues(&json!([{
            "number": 7, "title": "t", "user": {"login": "ada", "id": 1}, "node_id": "x",
            "labels": [{"name": "bug"}, "old"], "assignees": [{"login": "bo"}], "pull_request": {},
        }]));
        let right = json!([{
            "number": 7, "title": "t", "user": "ada", "labels": ["bug", "old"], "assignees": ["bo"],
            "is_pull_request": true,
        }]);
        assert_eq!(found.unwrap(), right);
        assert!(issues(&json!({"message": "moved"})).is_err());
        let pull =
            pull_request(&json!({"head": {"ref": "a", "sha": "1", "repo": {}}, "base": {"ref": "main"}}));
        assert_eq!(pull.unwrap(), json!({"head_ref": "a", "head_sha": "1", "base_ref": "main"}));
    }

    #[test]
    fn the_text_of_a_file_is_decoded() {
        let file = |content: &str| {
            contents(&json!({"name": "a", "type": "file", "encoding": "base64", "content": content})).unwrap()
        };
        assert_eq!(file("aGVs\nbG8=\n")["content"], "hello");
        assert_eq!(file("/w==")["binary"], true);
        let directory = contents(&json!([{"name": "src", "type": "dir", "url": "x"}])).unwrap();
        assert_eq!(directory, json!([{"name": "src", "type": "dir"}]));
    }
}
