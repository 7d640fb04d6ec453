//! `/proliferate/{id}/files`: a member copies files into and out of the sandbox of a session.

use axum::Json;
use axum::body::Body as ResponseBody;
use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use chrono::DateTime;
use futures_util::stream;
use proto::http::{ErrorBody, FileEntry, FileKind, FileListing, FileQuery};
use sandboxd::protocol::{Kind, MAX_FILE, Place, Stat};
use sandboxd::{ClientError, Sandboxd};

use super::ApiError;
use super::auth::SessionAccess;
use super::body::read;
use super::params::Query;
use super::sandbox::{inside, member, place, record_access, supervisor_error};
use crate::app::AppState;
use crate::runtime::FileWrite;
use crate::sessions;

/// The most bytes of one file that a member sends. It is in memory until it is complete, because it replaces the old file
/// at once.
const MAX_UPLOAD: usize = 32 * 1024 * 1024;
/// A file is read in pieces of this size, so that a large one takes little memory.
const CHUNK_BYTES: u64 = 1024 * 1024;
const MAX_ENTRIES: usize = 10_000;
const FILE_MODE_HEADER: HeaderName = HeaderName::from_static("x-file-mode");

/// Lists a directory, or shows one file.
#[utoipa::path(get, path = "/proliferate/{id}/files", tag = "sandboxes",
    params(("id" = proto::SessionId, Path), FileQuery),
    responses((status = 200, body = FileListing), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn list(
    app: AppState,
    access: SessionAccess,
    Query(query): Query<FileQuery>,
) -> Result<Json<FileListing>, ApiError> {
    let place = place(&query.path)?;
    let supervisor = inside(&app, access.session.id).await?.supervisor;
    record_access(&app, &access, "list_files").await?;
    let stat = supervisor.stat(place.clone()).await.map_err(|error| supervisor_error(&error))?;
    if stat.kind != Kind::Directory {
        let name = query.path.rsplit('/').next().unwrap_or_default().to_owned();
        let (kind, entries) = (kind_of(stat.kind), vec![entry(name, stat)]);
        return Ok(Json(FileListing { kind, entries, truncated: false }));
    }
    let listing = supervisor.list(place, MAX_ENTRIES).await.map_err(|error| supervisor_error(&error))?;
    let entries = listing.entries.into_iter().map(|one| entry(one.name, one.stat)).collect();
    Ok(Json(FileListing { kind: FileKind::Directory, entries, truncated: listing.truncated }))
}

/// Returns the content of a file; the header `x-file-mode` has its permissions.
#[utoipa::path(get, path = "/proliferate/{id}/files/content", tag = "sandboxes",
    params(("id" = proto::SessionId, Path), FileQuery),
    responses((status = 200, description = "The bytes", content_type = "application/octet-stream"),
        (status = 400, body = ErrorBody), (status = 409, body = ErrorBody), (status = 413, body = ErrorBody)))]
pub(super) async fn content(
    app: AppState,
    access: SessionAccess,
    Query(query): Query<FileQuery>,
) -> Result<Response, ApiError> {
    let place = place(&query.path)?;
    let supervisor = inside(&app, access.session.id).await?.supervisor;
    let live = app.credentials.live.open(&access.caller);
    let live = live.ok_or_else(|| ApiError::forbidden("Only members may do this"))?;
    record_access(&app, &access, "read_file").await?;
    let first = supervisor
        .read_file(place.clone(), 0, CHUNK_BYTES)
        .await
        .map_err(|error| supervisor_error(&error))?;
    if first.size > MAX_FILE {
        return Err(ApiError::too_large(usize::try_from(MAX_FILE).unwrap_or(usize::MAX)));
    }
    let mode = HeaderValue::from_str(&format!("{:o}", first.mode & 0o777));
    let headers = [
        (FILE_MODE_HEADER, mode.map_err(|error| ApiError::internal(error.to_string()))?),
        (header::CONTENT_LENGTH, HeaderValue::from(first.size)),
        (header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream")),
        (header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    let reading = Reading { supervisor, place, sent: 0, size: first.size, ahead: Some(first.bytes.into()) };
    let ended = Box::pin(live.ended());
    let pieces = stream::unfold((reading, ended), |(mut reading, mut ended)| async move {
        let piece = tokio::select! {
            piece = reading.next() => piece.transpose()?,
            () = &mut ended => Err(ClientError::InvalidAnswer("the credential has ended")),
        };
        Some((piece, (reading, ended)))
    });
    Ok((headers, ResponseBody::from_stream(pieces)).into_response())
}

/// A file that is being read. A file that changes its size meanwhile ends the answer with an error, because the length
/// was announced.
struct Reading {
    supervisor: Sandboxd,
    place: Place,
    sent: u64,
    size: u64,
    ahead: Option<Bytes>,
}

impl Reading {
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        if self.sent >= self.size {
            return Ok(None);
        }
        let piece = match self.ahead.take() {
            Some(piece) => piece,
            None => self.supervisor.read_file(self.place.clone(), self.sent, CHUNK_BYTES).await?.bytes.into(),
        };
        let left = usize::try_from(self.size - self.sent).unwrap_or(usize::MAX);
        if piece.is_empty() || piece.len() > left {
            return Err(ClientError::InvalidAnswer("the file has changed"));
        }
        self.sent += piece.len() as u64;
        Ok(Some(piece))
    }
}

/// Replaces a file, and creates the directories that are missing.
#[utoipa::path(put, path = "/proliferate/{id}/files/content", tag = "sandboxes",
    params(("id" = proto::SessionId, Path), FileQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, body = FileEntry), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn write(
    app: AppState,
    access: SessionAccess,
    Query(query): Query<FileQuery>,
    request: Request,
) -> Result<Json<FileEntry>, ApiError> {
    let place = place(&query.path)?;
    let mode = query.mode.as_deref().map_or(Some(0o644), |mode| u32::from_str_radix(mode, 8).ok());
    let mode = mode
        .filter(|mode| *mode <= 0o777)
        .ok_or_else(|| ApiError::bad_request("mode must be octal, as 644"))?;
    let (parts, body) = request.into_parts();
    let bytes = read(&app, &parts, body, MAX_UPLOAD).await?;
    let (user, session) = (member(&access)?.id, (access.session.org_id, access.session.id));
    let write = FileWrite { place, content: bytes, mode };
    let stat = sessions::write_file(&app.sessions, session, user, write).await?;
    Ok(Json(entry(query.path.rsplit('/').next().unwrap_or_default().to_owned(), stat)))
}

fn entry(name: String, stat: Stat) -> FileEntry {
    FileEntry {
        name,
        kind: kind_of(stat.kind),
        size: stat.size,
        mode: format!("{:o}", stat.mode & 0o777),
        modified_at: DateTime::from_timestamp_millis(stat.modified).unwrap_or_default(),
    }
}

fn kind_of(kind: Kind) -> FileKind {
    match kind {
        Kind::File => FileKind::File,
        Kind::Directory => FileKind::Directory,
        Kind::Symlink => FileKind::Symlink,
        Kind::Other => FileKind::Other,
    }
}
