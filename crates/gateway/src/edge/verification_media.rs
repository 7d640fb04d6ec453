//! `GET /proliferate/{id}/verification-media`: the files that the agent uploaded as evidence. Whoever may watch the
//! session may see them. A key that is not of this session is refused, whether it exists elsewhere or not.

use axum::Json;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use gate::ArtifactReading;
use proto::SessionId;
use proto::http::{ErrorBody, MediaFile, MediaFiles, MediaQuery, MediaUrl};
use store::EvidenceFile;

use super::ApiError;
use super::auth::SessionAccess;
use super::contract::identity;
use super::params::Query;
use crate::app::AppState;

/// The most files in a listing; an upload has fewer.
const MAX_LISTED_FILES: i64 = 1000;
/// The longest key or prefix.
const MAX_KEY_BYTES: usize = 600;

/// Lists the files under a prefix, or returns the address of a file or its bytes.
#[utoipa::path(get, path = "/proliferate/{id}/verification-media", tag = "sessions",
    params(("id" = SessionId, Path), MediaQuery),
    responses((status = 200, description = "`MediaFiles` for `prefix`, `MediaUrl` for `key`, the bytes with `stream=true`",
        body = MediaFiles), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn media(
    app: AppState,
    access: SessionAccess,
    Query(query): Query<MediaQuery>,
) -> Result<Response, ApiError> {
    let session = access.session.id;
    match (query.key, query.prefix) {
        (Some(key), _) => {
            check(session, "key", &key)?;
            let found = app.store.evidence_file(session, &key).await?.ok_or_else(unknown)?;
            if query.stream == Some(true) {
                content(&app, &access, found).await
            } else {
                Ok(url(&app, session, &key))
            }
        }
        (None, Some(prefix)) => {
            check(session, "prefix", &prefix)?;
            let files = app.store.evidence(session, &prefix, MAX_LISTED_FILES).await?;
            let files = files.into_iter().map(|file| entry(file, &prefix)).collect();
            Ok(Json(MediaFiles { files }).into_response())
        }
        (None, None) => Err(ApiError::bad_request("Missing prefix or key parameter")),
    }
}

fn unknown() -> ApiError {
    ApiError::not_found("There is no such file in this session")
}

/// Refuses a key or prefix that no file of this session can have.
fn check(session: SessionId, field: &str, key: &str) -> Result<(), ApiError> {
    let directory = format!("sessions/{session}/verification/");
    let plain = key.len() <= MAX_KEY_BYTES && !key.contains(char::is_control);
    if plain && key.starts_with(&directory) {
        return Ok(());
    }
    let expected = format!(
        "{field} must start with {directory}, and have at most {MAX_KEY_BYTES} bytes and no control characters"
    );
    Err(ApiError::bad_request(&expected))
}

fn entry(file: EvidenceFile, prefix: &str) -> MediaFile {
    MediaFile {
        name: file.key.rsplit('/').next().unwrap_or_default().to_owned(),
        path: file.key.strip_prefix(prefix).unwrap_or(&file.key).to_owned(),
        content_type: file.content_type,
        size: u64::try_from(file.byte_size).unwrap_or_default(),
        last_modified: file.created_at,
        key: file.key,
    }
}

/// The address of a file. It needs the caller's own credential, like every route of ours.
fn url(app: &AppState, session: SessionId, key: &str) -> Response {
    let mut url = app.site.url.clone();
    url.set_path(&format!("/proliferate/{session}/verification-media"));
    url.query_pairs_mut().append_pair("key", key).append_pair("stream", "true");
    Json(MediaUrl { url: url.to_string() }).into_response()
}

/// The bytes of a file. The read is recorded first, like that of every artifact.
async fn content(app: &AppState, access: &SessionAccess, file: EvidenceFile) -> Result<Response, ApiError> {
    let org = access.session.org_id;
    let found = app.store.artifact(org, &file.artifact_id).await?.ok_or_else(unknown)?;
    let case = access.session.id.to_string();
    let reading = ArtifactReading {
        caller: identity(&access.caller).caller(org),
        artifact_id: &file.artifact_id,
        case: Some(&case),
        found: Some(&found),
    };
    app.gate.record_reading(&reading).await?;
    let content = app.store.artifact_content(org, &file.artifact_id).await?.ok_or_else(unknown)?;
    if !gate::is_named_right(org, &found) || !gate::is_content_of(&found, &content) {
        return Err(ApiError::changed_artifact(&file.artifact_id));
    }
    let content_type = HeaderValue::from_str(&file.content_type)
        .unwrap_or(HeaderValue::from_static("application/octet-stream"));
    // The content is untrusted, so a browser must not treat it as a page of ours.
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, HeaderValue::from_static("private, max-age=3600")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'")),
    ];
    Ok((headers, content).into_response())
}
