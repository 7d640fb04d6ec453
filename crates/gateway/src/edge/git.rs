//! `/git/…`: git's smart HTTP protocol for programs inside a sandbox. Errors are plain text, because git prints that.

use std::io;

use axum::body::Body;
use axum::extract::{OriginalUri, Request};
use axum::http::{Response, StatusCode, Uri};
use futures_util::{StreamExt as _, TryStreamExt as _};
use proto::ErrorCode;

use super::ApiError;
use super::auth::Caller;
use super::error::PlainText;
use crate::app::AppState;
use crate::git::{ForgeError, ProxyError, ProxyReply, ProxyRequest, ReadError};

/// Serves every request of git from a sandbox.
pub(super) async fn git(
    app: AppState,
    caller: Result<Caller, ApiError>,
    OriginalUri(uri): OriginalUri,
    request: Request,
) -> Result<Response<Body>, PlainText> {
    serve(&app, caller, &uri, request).await.map_err(PlainText)
}

async fn serve(
    app: &AppState,
    caller: Result<Caller, ApiError>,
    uri: &Uri,
    request: Request,
) -> Result<Response<Body>, ApiError> {
    let Caller::Sandbox(session) = caller? else {
        return Err(ApiError::forbidden("Only sandboxes may do this"));
    };
    let (parts, body) = request.into_parts();
    let disconnected = |_| io::Error::from(io::ErrorKind::ConnectionReset);
    let request = ProxyRequest {
        method: parts.method,
        target: uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        headers: parts.headers,
        body: body.into_data_stream().map_err(disconnected).boxed(),
    };
    let ProxyReply { headers, body } = app.git.proxy(&session, request).await?;
    let mut response = Response::new(Body::from_stream(body));
    *response.headers_mut() = headers;
    Ok(response)
}

impl From<ProxyError> for ApiError {
    fn from(error: ProxyError) -> Self {
        let text = error.to_string();
        match error {
            ProxyError::NoDirectory
            | ProxyError::OutsideRoots
            | ProxyError::TooManyFiles
            | ProxyError::NoRepository => Self::not_found(&text),
            ProxyError::BadPush(_) => Self::bad_request(text),
            ProxyError::ForgeUnavailable(cause) => Self::unavailable("The forge", cause),
            ProxyError::Store(error)
            | ProxyError::Read(ReadError::Store(error) | ReadError::Forge(ForgeError::Store(error))) => {
                error.into()
            }
            ProxyError::Read(ReadError::Forge(ForgeError::Vault(error))) => error.into(),
            ProxyError::Read(ReadError::Unavailable(_)) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, ErrorCode::Unavailable, text)
            }
            ProxyError::OtherRepository
            | ProxyError::LocalPush
            | ProxyError::CredentialRefused
            | ProxyError::TooManyPushes
            | ProxyError::PushRefused(_)
            | ProxyError::Read(ReadError::Forge(_) | ReadError::Denied(_)) => Self::forbidden(&text),
        }
    }
}
