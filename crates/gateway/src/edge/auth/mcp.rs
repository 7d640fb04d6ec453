//! Authentication of MCP clients: an API key with the scope `mcp`, or the token of a sandbox for its own session.

use axum::extract::FromRequestParts;
use axum::http::header;
use axum::http::request::Parts;
use proto::http::KeyScope;
use store::UserCredential;

use super::super::ApiError;
use super::super::attempts::{record_refusal, record_refused_act};
use super::caller::{act, bearer, from_allowed_origin, require_caller};
use super::{Caller, User, authenticate};
use crate::access::Act;
use crate::actions::ActionCaller;
use crate::app::AppState;
use crate::identity::{CredentialKind, hash};

/// A caller of `POST /mcp`. No other extractor accepts a key with the scope `mcp`, so that no other route can be opened
/// with one.
pub(crate) struct McpCaller(pub(crate) ActionCaller);

/// The owner of a valid credential, whether it opens this route or not.
enum Identified {
    Action(ActionCaller),
    Other(Caller),
}

impl FromRequestParts<AppState> for McpCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &AppState) -> Result<Self, ApiError> {
        // A page of another site that reaches us under a name of its own (DNS rebinding) still sends its origin.
        let foreign = parts.headers.contains_key(header::ORIGIN) && !from_allowed_origin(&parts.headers, app);
        let foreign = foreign.then(|| ApiError::forbidden("This origin may not call the gateway"));
        let identified = match (identify(parts, app).await, foreign) {
            (Ok(identified), None) => identified,
            (Ok(identified), Some(refusal)) => return Err(identified.refuse(app, refusal).await),
            (Err(_), Some(refusal)) | (Err(refusal), None) => return Err(refusal),
        };
        match identified {
            Identified::Action(caller) => {
                // Bodies are read after this; their memory counts against this party's share.
                parts.extensions.insert(caller.party());
                Ok(Self(caller))
            }
            other @ Identified::Other(_) => Err(other.refuse(app, needs_scope()).await),
        }
    }
}

impl Identified {
    /// Records a refusal in the ledger, and returns it.
    async fn refuse(&self, app: &AppState, refusal: ApiError) -> ApiError {
        match self {
            Self::Action(caller) => record_refusal(app, &caller.attempt("mcp"), refusal).await,
            Self::Other(caller) => record_refused_act(app, caller, Act::UseMcp, refusal).await,
        }
    }
}

async fn identify(parts: &Parts, app: &AppState) -> Result<Identified, ApiError> {
    let token = bearer(&parts.headers).ok_or_else(ApiError::missing_authorization)?;
    if CredentialKind::of(token) == Some(CredentialKind::ApiKey) {
        return of_key(app, token).await;
    }
    let caller = authenticate(app, token, None, None).await?;
    Ok(match caller {
        Caller::Sandbox(session) if caller.must(act(parts)?, true).is_ok() => {
            Identified::Action(ActionCaller::Session(session))
        }
        other => Identified::Other(other),
    })
}

async fn of_key(app: &AppState, token: &str) -> Result<Identified, ApiError> {
    let key = hash(token);
    let owner = require_caller(app.store.key_owner(&key).await?)?;
    if owner.scope != KeyScope::Mcp {
        let caller = Caller::User(User::new(owner.member, UserCredential::ApiKey(key)));
        caller.note();
        return Ok(Identified::Other(caller));
    }
    let (id, org) = (owner.key, owner.member.org_id);
    let span = tracing::Span::current();
    span.record("caller", format!("key {id}"));
    span.record("org", tracing::field::display(org));
    Ok(Identified::Action(ActionCaller::Key { id, org }))
}

fn needs_scope() -> ApiError {
    ApiError::forbidden(
        "MCP clients need an API key with the scope mcp: `proliferate keys create --name NAME --scope mcp`",
    )
}
