//! Authentication of MCP clients: an API key with the scope `mcp`, or the token of a sandbox for its own session.

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use proto::http::KeyScope;

use super::super::ApiError;
use super::caller::{act, bearer, from_allowed_origin, require_caller};
use super::{Caller, authenticate};
use crate::actions::ActionCaller;
use crate::app::AppState;
use crate::identity::{CredentialKind, hash};

/// A caller of `POST /mcp`. No other extractor accepts a key with the scope `mcp`, so that no other route can be opened
/// with one.
pub(crate) struct McpCaller(pub(crate) ActionCaller);

impl FromRequestParts<AppState> for McpCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        // A page of another site that reaches us under a name of its own (DNS rebinding) still sends its origin.
        if parts.headers.contains_key(header::ORIGIN) && !from_allowed_origin(&parts.headers, app) {
            return Err(ApiError::forbidden("This origin may not call the gateway"));
        }
        let token = bearer(&parts.headers).ok_or_else(ApiError::missing_authorization)?.to_owned();
        let caller = if CredentialKind::of(&token) == Some(CredentialKind::ApiKey) {
            of_key(app, &token).await?
        } else {
            let caller = authenticate(app, &token, None).await?;
            caller.must(act(parts)?, true).map_err(|_| needs_scope())?;
            let Caller::Sandbox(session) = caller else { return Err(needs_scope()) };
            ActionCaller::Session(session)
        };
        // Bodies are read after this; their memory counts against this party's share.
        parts.extensions.insert(caller.party());
        Ok(Self(caller))
    }
}

async fn of_key(app: &AppState, token: &str) -> Result<ActionCaller, ApiError> {
    let owner = require_caller(app.store.key_owner(&hash(token)).await?)?;
    if owner.scope != KeyScope::Mcp {
        return Err(needs_scope());
    }
    let (id, org) = (owner.key, owner.member.org_id);
    let span = tracing::Span::current();
    span.record("caller", format!("key {id}"));
    span.record("org", tracing::field::display(org));
    Ok(ActionCaller::Key { id, org })
}

fn needs_scope() -> ApiError {
    ApiError::forbidden(
        "MCP clients need an API key with the scope mcp: `proliferate keys create --name NAME --scope mcp`",
    )
}
