//! A builder for one request to the router, and its answer.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::request::Builder;
use axum::http::{HeaderMap, Method, Request};
use http_body_util::BodyExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

use crate::document::assert_described;
use crate::harness::{TestGateway, within};

/// A request under construction.
pub(crate) struct Call {
    router: Router,
    request: Builder,
    body: Body,
    cookie: String,
}

/// The answer to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl TestGateway {
    pub(crate) fn call(&self, method: &str, path: &str) -> Call {
        let cookie = gateway::edge::cookie_name(&self.app.site.url);
        Call { cookie, ..Call::new(self.router.clone(), method, path) }
    }

    pub(crate) fn get(&self, path: &str) -> Call {
        self.call("GET", path)
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Call {
        self.call("POST", path).json(body)
    }
}

impl Call {
    pub(crate) fn new(router: Router, method: &str, path: &str) -> Self {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = Request::builder().method(method).uri(path);
        Self { router, request, body: Body::empty(), cookie: String::new() }
    }

    pub(crate) fn header(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.request = self.request.header(name, value.as_ref());
        self
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        self.header("authorization", format!("Bearer {token}"))
    }

    pub(crate) fn cookie(self, token: &str) -> Self {
        let cookie = format!("other=1; {}={token}", self.cookie);
        self.header("cookie", cookie)
    }

    pub(crate) fn json(self, body: &Value) -> Self {
        self.body(body.to_string()).header("content-type", "application/json")
    }

    pub(crate) fn body(mut self, body: impl Into<Body>) -> Self {
        self.body = body.into();
        self
    }

    pub(crate) async fn send(self) -> Answer {
        let request = self.request.body(self.body).unwrap();
        let (method, path) = (request.method().to_string(), request.uri().path().to_owned());
        let response = within(self.router.oneshot(request)).await.unwrap();
        let (parts, mut body) = response.into_parts();
        assert_described(&method, &path, parts.status.as_u16());
        let body = if path == "/v1/changes" && parts.status.is_success() {
            // It does not end; its beginning shows that it was opened.
            within(body.frame()).await.unwrap().unwrap().into_data().unwrap()
        } else {
            within(body.collect()).await.unwrap().to_bytes()
        };
        Answer { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) async fn status(self) -> u16 {
        self.send().await.status
    }
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Everything by which a client could tell two refusals apart.
    pub(crate) fn shown(&self) -> (u16, String, Option<String>) {
        (self.status, self.text(), self.header("content-type").map(str::to_owned))
    }
}
