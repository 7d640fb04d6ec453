//! The models that an endpoint of the Chat Completions API lists, cached.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use agent::ChatModel;
use axum::http::Method;
use clock::Clock;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Mutex;

use super::AT_ONCE;
use super::backend::Upstream;

/// How long a list counts as current.
const LIST_LIFETIME: Duration = Duration::from_mins(5);
/// The minimum time between two requests for the list.
const MIN_REQUEST_INTERVAL: Duration = Duration::from_secs(5);
/// How long the endpoint may take to answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of the list in bytes and in models. What exceeds them is an error, or left out.
const MAX_BODY: usize = 4 * 1024 * 1024;
const MAX_MODELS: usize = 1_000;
/// The maximum length of a model's name.
const MAX_NAME: usize = 200;

/// The cached list of one endpoint.
pub(super) struct ModelList {
    upstream: Upstream,
    clock: Clock,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    models: Option<Arc<[ChatModel]>>,
    read_at: Duration,
    /// The time and the error of the last attempt, if it failed.
    failure: Option<(Duration, String)>,
}

impl ModelList {
    pub(super) fn new(upstream: Upstream, clock: Clock) -> Self {
        Self { upstream, clock, state: Mutex::default() }
    }

    /// The listed models. If the endpoint cannot be read, the last known list; the error if there is none.
    pub(super) async fn models(&self) -> Result<Arc<[ChatModel]>, String> {
        self.read(LIST_LIFETIME).await
    }

    /// The first listed model that satisfies `is_wanted`. A model that is missing from an older list may be new.
    pub(super) async fn find(
        &self,
        is_wanted: impl Fn(&ChatModel) -> bool,
    ) -> Result<Option<ChatModel>, String> {
        let found = self.read(LIST_LIFETIME).await?.iter().find(|model| is_wanted(model)).cloned();
        if found.is_some() {
            return Ok(found);
        }
        Ok(self.read(MIN_REQUEST_INTERVAL).await?.iter().find(|model| is_wanted(model)).cloned())
    }

    /// Holding the lock while the list is read makes concurrent callers share one request.
    async fn read(&self, max_age: Duration) -> Result<Arc<[ChatModel]>, String> {
        let mut state = self.state.lock().await;
        let now = self.clock.elapsed();
        if let Some(models) = state.models.as_ref().filter(|_| now.saturating_sub(state.read_at) < max_age) {
            return Ok(models.clone());
        }
        let paused =
            state.failure.as_ref().is_some_and(|(at, _)| now.saturating_sub(*at) < MIN_REQUEST_INTERVAL);
        if !paused {
            match fetch(&self.upstream).await {
                Ok(models) => {
                    *state = State { models: Some(models.into()), read_at: now, failure: None };
                }
                Err(error) => {
                    tracing::warn!(%error, "the list of models cannot be read");
                    state.failure = Some((now, error));
                }
            }
        }
        let failure = || state.failure.as_ref().map(|(_, error)| error.clone()).unwrap_or_default();
        state.models.clone().ok_or_else(failure)
    }
}

/// Requests the list. Errors name neither the key nor the address.
async fn fetch(upstream: &Upstream) -> Result<Vec<ChatModel>, String> {
    let request = upstream.request(Method::GET, "/v1/models").timeout(REQUEST_TIMEOUT);
    let mut answer = request.send().await.map_err(|error| error.without_url().to_string())?;
    if !answer.status().is_success() {
        return Err(format!("the endpoint answers {}", answer.status()));
    }
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|error| error.without_url().to_string())? {
        if body.len() + chunk.len() > MAX_BODY {
            return Err(format!("the list has more than {MAX_BODY} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    let list = if body.len() <= AT_ONCE {
        parse(&body)
    } else {
        tokio::task::spawn_blocking(move || parse(&body)).await.map_err(|error| error.to_string())?
    };
    // The error of an invalid list quotes it.
    list.map_err(|error| upstream.hidden.removed_from(error.as_bytes()))
}

/// Parses the list, without names that no model can have.
fn parse(body: &[u8]) -> Result<Vec<ChatModel>, String> {
    #[derive(Deserialize)]
    struct List {
        data: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        #[serde(default)]
        id: Value,
        // Two names for the context window.
        #[serde(default)]
        context_length: Value,
        #[serde(default)]
        max_model_len: Value,
        #[serde(default)]
        top_provider: Value,
    }
    let list: List = serde_json::from_slice(body).map_err(|error| format!("the list is invalid: {error}"))?;
    let mut names = HashSet::new();
    let models = list.data.into_iter().filter_map(|entry| {
        let name = entry.id.as_str().filter(|name| is_name(name))?.to_owned();
        let context = entry.context_length.as_u64().or_else(|| entry.max_model_len.as_u64());
        let output = entry.top_provider["max_completion_tokens"].as_u64();
        let positive = |tokens: Option<u64>| tokens.filter(|tokens| *tokens > 0);
        names.insert(name.clone()).then(|| ChatModel {
            name,
            context: positive(context),
            output: positive(output),
        })
    });
    Ok(models.take(MAX_MODELS).collect())
}

pub(super) fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len()) && !name.chars().any(|c| c.is_control() || c.is_whitespace())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn names(list: &Value) -> Result<Vec<String>, String> {
        parse(list.to_string().as_bytes()).map(|models| models.into_iter().map(|model| model.name).collect())
    }

    #[test]
    fn a_list_is_read_with_limits_and_without_impossible_names() {
        let list = json!({"data": [{"id": "a/b:7", "context_length": 9, "top_provider": {"max_completion_tokens": 3}},
            {"id": "v", "max_model_len": 8}, {"id": "a/b:7"}, {"id": 7}, {}, {"id": ""}, {"id": "a b"}, {"id": "x\u{0}"},
            {"id": "x".repeat(MAX_NAME + 1)}, {"id": "z", "context_length": -1, "top_provider": null}]});
        let model = |name: &str, context, output| ChatModel { name: name.to_owned(), context, output };
        let expected =
            vec![model("a/b:7", Some(9), Some(3)), model("v", Some(8), None), model("z", None, None)];
        assert_eq!(parse(list.to_string().as_bytes()), Ok(expected));
        let many: Vec<_> = (0..MAX_MODELS + 9).map(|at| json!({"id": format!("m{at}")})).collect();
        assert_eq!(names(&json!({"data": many})).unwrap().len(), MAX_MODELS);
        for invalid in [json!([]), json!({"data": 1}), json!({"models": []})] {
            assert!(names(&invalid).is_err(), "{invalid}");
        }
    }
}
