//! Middleware that gives every request an id, one log line and two metrics. They name the route and never the URL,
//! which may contain a token.

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use tracing::Instrument as _;
use tracing::field::Empty;

use super::ApiError;
use super::error::Reason;
use crate::app::AppState;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const MAX_REQUEST_ID: usize = 64;

pub(super) async fn observe(State(app): State<AppState>, mut request: Request, next: Next) -> Response {
    let id = request_id(&app, &request);
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let method = request.method().clone();
    let route = request.extensions().get::<MatchedPath>().map_or("none", MatchedPath::as_str).to_owned();
    let span = tracing::info_span!("request", id = id.to_str().unwrap_or_default(), %method, route, caller = Empty, org = Empty);
    let started = app.clock.elapsed();
    let mut response = next.run(request).instrument(span.clone()).await;
    let took = app.clock.elapsed().saturating_sub(started);
    let status = response.status().as_u16();
    // `as_micros` returns a u128, which the JSON log would write as text.
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    let reason = response.extensions().get::<Reason>().map_or("", |reason| reason.0.as_str());
    span.in_scope(|| match status {
        500.. => tracing::error!(status, micros, reason, "answered"),
        400.. => tracing::info!(status, micros, reason, "answered"),
        _ => tracing::debug!(status, micros, "answered"),
    });
    metrics::histogram!("proliferate_http_request_seconds", "route" => route.clone())
        .record(took.as_secs_f64());
    let labels = [("route", route), ("method", label(&method).to_owned()), ("status", status.to_string())];
    metrics::counter!("proliferate_http_requests_total", &labels).increment(1);
    response.headers_mut().insert(REQUEST_ID, id);
    add_security_headers(&mut response);
    response
}

/// The method as a metric label. Clients can invent methods, and each would create a new time series.
fn label(method: &Method) -> &str {
    match *method {
        Method::GET
        | Method::HEAD
        | Method::POST
        | Method::PUT
        | Method::PATCH
        | Method::DELETE
        | Method::OPTIONS => method.as_str(),
        _ => "other",
    }
}

/// Adds the security headers of every response: a browser must not guess content types, send our URLs as referrer,
/// frame our pages, or cache responses.
fn add_security_headers(response: &mut Response) {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
}

/// The request id that the caller sent, if it is safe to log; otherwise a new one.
fn request_id(app: &AppState, request: &Request) -> HeaderValue {
    let is_plain = |id: &&HeaderValue| {
        let id = id.as_bytes();
        !id.is_empty()
            && id.len() <= MAX_REQUEST_ID
            && id.iter().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(b))
    };
    request.headers().get(REQUEST_ID).filter(is_plain).cloned().unwrap_or_else(|| {
        let id = app.rng.uuid(app.clock.now()).to_string();
        HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static("none"))
    })
}

/// Answers 500 if a handler panics. The server keeps running.
pub(super) fn panicked(_: Box<dyn std::any::Any + Send>) -> Response {
    ApiError::internal("a handler panicked").into_response()
}

/// The answer for a path without a route. No credential is looked up before it.
pub(super) async fn not_found() -> ApiError {
    ApiError::not_found("Not found")
}

pub(super) async fn method_not_allowed() -> ApiError {
    ApiError::method_not_allowed()
}
