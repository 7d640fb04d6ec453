//! Authentication and authorization: who calls, for which organization, and for which session. Extractors decide it, so
//! that no route can forget the check.
//!
//! A handler names the type that it needs: a caller, a member or a session. It is not called unless the request has a
//! valid credential of that kind, and the caller may do the act that the router assigns to the route. Every request
//! looks up its credential, so revoking one takes effect at once.

mod attempted;
mod caller;
mod live;
mod mcp;
mod model;
mod session;
mod ticket;

use axum::extract::{FromRequestParts as _, RawPathParams};
use axum::http::request::Parts;

use crate::app::AppState;

pub(super) use attempted::{Attempted, InsideSandbox};
use caller::authenticate;
pub(super) use caller::from_allowed_origin;
pub use caller::{Caller, User};
pub(crate) use live::keep_checking;
pub use live::{LiveCredential, LiveCredentials};
pub(super) use mcp::McpCaller;
pub use model::{ModelCaller, ModelRefusal};
pub(super) use session::admit;
pub use session::{SessionAccess, SessionAttempt};
pub use ticket::UrlCaller;

/// The `{id}` of the route's path, exactly as the client sent it.
async fn session_in_path(parts: &mut Parts, app: &AppState) -> Option<String> {
    let params = RawPathParams::from_request_parts(parts, app).await.ok()?;
    params.iter().find(|(name, _)| *name == "id").map(|(_, value)| value.to_owned())
}
