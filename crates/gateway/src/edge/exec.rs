//! `POST /proliferate/{id}/exec`: a member runs a command in the sandbox of a session.
//!
//! The answer streams lines of JSON. The command is killed when the caller disconnects, when the credential of the caller
//! ends, and when the gateway stops.

use axum::body::Body as ResponseBody;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use channel::Lane;
use futures_util::stream;
use proto::http::{ErrorBody, ExecCommand, ExecFrame};
use sandboxd::ClientError;
use sandboxd::protocol::{Code, Exec};

use super::auth::SessionAccess;
use super::sandbox::{member, place};
use super::{ApiError, Body};
use crate::app::AppState;
use crate::runtime::{Command, CommandEnd};
use crate::sessions;

const MAX_ARGUMENTS: usize = 1000;
const MAX_ARGUMENT_BYTES: usize = 128 * 1024;
const DEFAULT_SECONDS: u64 = 600;
const MAX_SECONDS: u64 = 3600;
/// Output beyond this is dropped, and the last line says so.
const MAX_OUTPUT: u64 = 64 * 1024 * 1024;

/// Runs a command, and streams its output and exit code as lines of JSON.
#[utoipa::path(post, path = "/proliferate/{id}/exec", tag = "sandboxes", params(("id" = proto::SessionId, Path)),
    request_body = ExecCommand,
    responses((status = 200, body = ExecFrame, content_type = "application/x-ndjson"),
        (status = 400, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn exec(
    app: AppState,
    access: SessionAccess,
    Body(request): Body<ExecCommand>,
) -> Result<Response, ApiError> {
    let stdin = request.stdin.as_deref().map(|text| STANDARD.decode(text)).transpose();
    let stdin = stdin.map_err(|_| ApiError::bad_request("stdin must be base64"))?;
    let exec = parse(&request, stdin.is_some())?;
    let live = app.credentials.live.open(&access.caller);
    let live = live.ok_or_else(|| ApiError::forbidden("Only members may do this"))?;
    // The slot of the request ends with its headers; the command needs one until it ends.
    let slot = app.shares.requests.take(access.caller.party(), 1)?;
    let closing = app.process.closing.clone();
    let stopped = async move {
        let _slot = slot;
        tokio::select! {
            () = live.ended() => "your credential has ended",
            () = closing.cancelled_owned() => "the gateway is stopping",
        }
    };
    let command = Command { exec, stdin: stdin.unwrap_or_default(), stopped: Box::pin(stopped) };
    let (user, session) = (member(&access)?.id, (access.session.org_id, access.session.id));
    // In a directory that the caller names, it may be the directory that does not exist.
    let program = request.command.into_iter().next().filter(|_| request.cwd.is_none());
    let running = sessions::run_command(&app.sessions, session, user, command).await?;
    let frames = stream::unfold((Some(running), program), |(running, program)| async move {
        let mut running = running?;
        let (frames, running) = match running.next().await {
            Some((lane, bytes)) => (vec![output_frame(lane, &bytes)], Some(running)),
            None => (last_frames(running.end().await, program.as_deref()), None),
        };
        let lines: Vec<u8> = frames.iter().flat_map(line).collect();
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(lines)), (running, program)))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/x-ndjson")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    Ok((headers, ResponseBody::from_stream(frames)).into_response())
}

fn parse(request: &ExecCommand, stdin: bool) -> Result<Exec, ApiError> {
    let bytes: usize = request.command.iter().map(String::len).sum();
    let named = request.command.first().is_some_and(|program| !program.is_empty());
    let nul = request.command.iter().any(|word| word.contains('\0'));
    if !named || nul || request.command.len() > MAX_ARGUMENTS || bytes > MAX_ARGUMENT_BYTES {
        return Err(ApiError::bad_request(format!(
            "command is a program and at most {MAX_ARGUMENTS} arguments, {MAX_ARGUMENT_BYTES} bytes in all"
        )));
    }
    let seconds = request.timeout_seconds.unwrap_or(DEFAULT_SECONDS);
    if !(1..=MAX_SECONDS).contains(&seconds) {
        return Err(ApiError::bad_request(format!("timeoutSeconds is 1 to {MAX_SECONDS}")));
    }
    Ok(Exec {
        argv: request.command.clone(),
        cwd: request.cwd.as_deref().map(place).transpose()?,
        timeout_ms: Some(seconds * 1000),
        stdin,
        output_limit: Some(MAX_OUTPUT),
        ..Exec::default()
    })
}

fn output_frame(lane: Lane, bytes: &[u8]) -> ExecFrame {
    let data = STANDARD.encode(bytes);
    match lane {
        Lane::Main => ExecFrame::Stdout { data },
        Lane::Errors => ExecFrame::Stderr { data },
    }
}

/// The end of a command. A program that does not exist ends as in a shell.
fn last_frames(end: Option<CommandEnd>, program: Option<&str>) -> Vec<ExecFrame> {
    if let (Some(CommandEnd::Failed(ClientError::Refused(refusal))), Some(program)) = (&end, program)
        && refusal.code == Code::NotFound
    {
        let said = format!("{program}: command not found in the sandbox\n");
        let exit = ExecFrame::Exit { exit_code: 127, timed_out: false, truncated: false };
        return vec![output_frame(Lane::Errors, said.as_bytes()), exit];
    }
    vec![last_frame(end)]
}

fn last_frame(end: Option<CommandEnd>) -> ExecFrame {
    match end {
        Some(CommandEnd::Exited { code, timed_out, truncated }) => {
            ExecFrame::Exit { exit_code: code, timed_out, truncated }
        }
        Some(CommandEnd::Killed(reason)) => {
            ExecFrame::Error { message: format!("the command was killed: {reason}") }
        }
        Some(CommandEnd::Failed(error)) => ExecFrame::Error { message: error.to_string() },
        None => ExecFrame::Error { message: "how the command ended is unknown".to_owned() },
    }
}

fn line(frame: &ExecFrame) -> Bytes {
    let mut line = serde_json::to_vec(frame).unwrap_or_default();
    line.push(b'\n');
    line.into()
}
