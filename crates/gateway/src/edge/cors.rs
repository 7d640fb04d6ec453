//! CORS: which web origins may call the gateway. A preflight request gets 204 before any credential is checked.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};

use crate::app::AppState;

const ALLOWED_METHODS: HeaderValue = HeaderValue::from_static("GET, POST, PUT, PATCH, DELETE, OPTIONS");
const ALLOWED_HEADERS: HeaderValue = HeaderValue::from_static(
    "Content-Type, Authorization, Accept, Idempotency-Key, X-Request-Id, Mcp-Protocol-Version, Mcp-Method, Mcp-Name",
);
const MAX_AGE: HeaderValue = HeaderValue::from_static("86400");

pub(super) async fn cors(State(app): State<AppState>, request: Request, next: Next) -> Response {
    let origin = request.headers().get(header::ORIGIN).cloned();
    let is_preflight = request.method() == Method::OPTIONS;
    let mut response =
        if is_preflight { StatusCode::NO_CONTENT.into_response() } else { next.run(request).await };
    let headers = response.headers_mut();
    // A cache must not give one origin's answer to another.
    headers.append(header::VARY, HeaderValue::from_static("Origin"));
    let allowed =
        origin.filter(|origin| app.site.origins.iter().any(|allowed| allowed.as_str().as_bytes() == origin));
    if let Some(origin) = allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, ALLOWED_METHODS);
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, ALLOWED_HEADERS);
        if is_preflight {
            headers.insert(header::ACCESS_CONTROL_MAX_AGE, MAX_AGE);
        }
    }
    response
}
