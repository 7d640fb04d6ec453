//! Requests of the agent that wait for a person: questions and permissions.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use serde_json::{Value, json};

use super::turn::Turn;
use super::{FakeAgent, Shared, not_found};

pub(super) fn routes() -> axum::Router<Arc<Shared>> {
    axum::Router::new()
        .route("/question", get(questions))
        .route("/permission", get(permissions))
        .route("/question/{id}/reply", post(reply))
        .route("/question/{id}/reject", post(reply))
        .route("/permission/{id}/reply", post(reply))
}

impl Turn {
    /// Asks a question with the options `A` and `B`, and waits.
    pub fn ask(&self, id: &str) {
        self.ask_to_choose(id, ["A", "B"]);
    }

    /// Asks a question with these options, and waits.
    pub fn ask_to_choose(&self, id: &str, labels: [&str; 2]) {
        let options = labels.map(|label| json!({ "label": label, "description": label.to_lowercase() }));
        let questions = json!([{ "question": "Which?", "header": "Pick", "options": options }]);
        let request = json!({ "id": id, "sessionID": self.session, "questions": questions });
        self.request("question.asked", id, &request);
    }

    /// Asks for a permission for what the pattern describes, and waits.
    pub fn ask_permission(&self, id: &str, permission: &str, pattern: &str) {
        let request = json!({ "id": id, "sessionID": self.session, "permission": permission,
            "patterns": [pattern], "metadata": {}, "always": [] });
        self.request("permission.asked", id, &request);
    }

    fn request(&self, kind: &str, id: &str, request: &Value) {
        self.state.change(|inner| {
            inner.requests.insert(id.to_owned(), request.clone());
            inner.emit(&json!({ "type": kind, "properties": request }));
        });
    }
}

impl FakeAgent {
    /// Adds a request without an event, like one that was made while nobody listened.
    pub fn add_request(&self, id: &str, request: &Value) {
        self.state.change(|inner| inner.requests.insert(id.to_owned(), request.clone()));
    }

    /// Forgets all requests, like a restart of its process.
    pub fn forget_requests(&self) {
        self.state.change(|inner| inner.requests.clear());
    }
}

async fn questions(State(state): State<Arc<Shared>>) -> Json<Value> {
    listed(&state, "questions")
}

async fn permissions(State(state): State<Arc<Shared>>) -> Json<Value> {
    listed(&state, "permission")
}

fn listed(state: &Shared, key: &str) -> Json<Value> {
    let inner = state.inner();
    Json(inner.requests.values().filter(|request| request.get(key).is_some()).cloned().collect())
}

async fn reply(State(state): State<Arc<Shared>>, Path(id): Path<String>) -> Response {
    let found = state.change(|inner| inner.requests.remove(&id));
    let Some(request) = found else { return not_found() };
    let kind = if request.get("questions").is_some() { "question.replied" } else { "permission.replied" };
    let properties = json!({ "sessionID": request["sessionID"], "requestID": id });
    state.inner().emit(&json!({ "type": kind, "properties": properties }));
    Json(true).into_response()
}
