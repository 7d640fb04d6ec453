//! Who is asking, for which organization, for which session: decided in extractors, so that a route cannot forget it.
//!
//! A handler that wants a caller, a member or a session names the type; without a valid credential of that kind, and
//! without the right to the act that the router names for its route, it is never called. A credential is looked up on every request: what an operator revokes is dead at
//! once.

mod caller;
mod live;
mod model;
mod session;
mod ticket;

use axum::extract::{FromRequestParts as _, RawPathParams};
use axum::http::request::Parts;

use crate::app::AppState;

pub(super) use caller::from_allowed_origin;
pub use caller::{Caller, User, authenticate};
pub(crate) use live::keep_checking;
pub use live::{LiveCredential, LiveCredentials};
pub use model::{ModelCaller, ModelRefusal};
pub(super) use session::admit;
pub use session::{SessionAccess, SessionAttempt};
pub use ticket::UrlCaller;

/// The session id of a route with `{id}` in its path, as the client wrote it.
async fn session_in_path(parts: &mut Parts, app: &AppState) -> Option<String> {
    let params = RawPathParams::from_request_parts(parts, app).await.ok()?;
    params.iter().find(|(name, _)| *name == "id").map(|(_, value)| value.to_owned())
}
