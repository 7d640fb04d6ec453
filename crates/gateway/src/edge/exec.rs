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
use futures_util::future::BoxFuture;
use futures_util::stream;
use proto::http::{ErrorBody, ExecCommand, ExecFrame};
use sandboxd::client::{ExecControl, ExecInput, ExecOutput};
use sandboxd::protocol::{Exec, ExecDone, ExitReason};
use sandboxd::{ClientError, ExecHandle};
use shares::Held;

use super::auth::SessionAccess;
use super::sandbox::{inside, place, record, refused};
use super::{ApiError, Body};
use crate::app::AppState;

const MAX_ARGUMENTS: usize = 1000;
const MAX_ARGUMENT_BYTES: usize = 128 * 1024;
const DEFAULT_SECONDS: u64 = 600;
const MAX_SECONDS: u64 = 3600;
/// Output beyond this is dropped, and the last line says so.
const MAX_OUTPUT: u64 = 64 * 1024 * 1024;
/// The exit codes that shells use.
const KILLED_BY_SIGNAL: i32 = 128;
const TIMED_OUT: i32 = 124;

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
    let live = app.live_credentials.open(&access.caller);
    let live = live.ok_or_else(|| ApiError::forbidden("Only members may do this"))?;
    // The slot of the request ends with its headers; the command needs one until it ends.
    let slot = app.shares.requests.take(access.caller.party(), 1)?;
    let sandbox = inside(&app, access.session.id).await?;
    let hash = ledger::sha256(serde_json::to_string(&request.command).unwrap_or_default().as_bytes());
    record(&app, &access, "exec", &format!(", command sha256 {hash}")).await?;
    let ExecHandle { stdin: input, output, control } =
        sandbox.supervisor.exec(exec).await.map_err(|error| refused(&error))?;
    let closing = app.closing.clone();
    let running = Running {
        output,
        _control: control,
        feeding: Some(Box::pin(feed(input, stdin.unwrap_or_default()))),
        stopped: Box::pin(async move {
            tokio::select! {
                () = live.ended() => "your credential has ended",
                () = closing.cancelled_owned() => "the gateway is stopping",
            }
        }),
        _slot: slot,
    };
    let frames = stream::unfold(Some(running), |running| async move {
        let mut running = running?;
        let (frame, is_last) = running.next().await;
        Some((Ok::<_, std::convert::Infallible>(line(&frame)), if is_last { None } else { Some(running) }))
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

/// Sends the standard input and closes it.
async fn feed(mut stdin: ExecInput, input: Vec<u8>) {
    if !input.is_empty() {
        // A command that does not read its input, or has ended, is no error.
        let _ = stdin.write(input).await;
    }
    stdin.close();
}

/// A running command. Dropping it kills the command.
struct Running {
    output: ExecOutput,
    _control: ExecControl,
    /// Feeds the standard input. It runs beside the output, because a command may read its input only after somebody has
    /// read its output.
    feeding: Option<BoxFuture<'static, ()>>,
    /// Ends, with a reason, when the command must not run any longer.
    stopped: BoxFuture<'static, &'static str>,
    _slot: Held,
}

impl Running {
    /// The next line, and whether it is the last one.
    async fn next(&mut self) -> (ExecFrame, bool) {
        loop {
            let feeding = async {
                match &mut self.feeding {
                    Some(feeding) => feeding.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                output = self.output.next() => return match output {
                    Ok(Some((lane, bytes))) => (output_frame(lane, &bytes), false),
                    Ok(None) => (self.output.done().await.map_or_else(|error| failed(&error), exit), true),
                    Err(error) => (failed(&error), true),
                },
                reason = &mut self.stopped => {
                    let message = format!("the command was killed: {reason}");
                    return (ExecFrame::Error { message }, true);
                }
                () = feeding => self.feeding = None,
            }
        }
    }
}

fn output_frame(lane: Lane, bytes: &[u8]) -> ExecFrame {
    let data = STANDARD.encode(bytes);
    match lane {
        Lane::Main => ExecFrame::Stdout { data },
        Lane::Errors => ExecFrame::Stderr { data },
    }
}

fn exit(done: ExecDone) -> ExecFrame {
    let (exit_code, timed_out) = match done.ended {
        ExitReason::Exit(code) => (code, false),
        ExitReason::Signal(signal) => (KILLED_BY_SIGNAL.saturating_add(signal), false),
        ExitReason::TimedOut => (TIMED_OUT, true),
    };
    ExecFrame::Exit { exit_code, timed_out, truncated: done.truncated }
}

fn failed(error: &ClientError) -> ExecFrame {
    ExecFrame::Error { message: error.to_string() }
}

fn line(frame: &ExecFrame) -> Bytes {
    let mut line = serde_json::to_vec(frame).unwrap_or_default();
    line.push(b'\n');
    line.into()
}
