//! `session exec|diff|logs`: work in the sandbox of a session, over the API.

use std::io::{IsTerminal as _, Read as _};
use std::process::ExitCode;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use client::{Client, Event, Stream, Watch};
use proto::SessionId;
use proto::http::{ExecCommand, ExecFrame};
use proto::socket::{ServerMessage, WireStatus};
use serde_json::json;

use super::find;
use crate::args::{DiffArgs, ExecArgs, LogsArgs};
use crate::clean::clean;
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{BOLD, DIM, GREEN, RED, line, note, warn};

/// The largest standard input that is sent with a command.
const MAX_INPUT: u64 = 512 * 1024;

/// Watches a session until its sandbox runs. The caller keeps the stream, because a session that nobody watches may be
/// paused.
pub(super) async fn wake(client: &Client, id: SessionId) -> Result<Stream, Failure> {
    let mut stream = client.connect(id, Watch::default()).await?;
    while let Some(event) = stream.next().await {
        let Event::Frame(frame) = event? else { continue };
        let ServerMessage::Status { status, message } = frame.message else { continue };
        match status {
            WireStatus::Running => return Ok(stream),
            WireStatus::Stopped => {
                let way = format!("`proliferate session prompt {id} TEXT` starts it again");
                return Err(Failure::failed(format!("the session is stopped, so it has no sandbox: {way}")));
            }
            WireStatus::Error => {
                return Err(Failure::failed(format!("the sandbox cannot be started: {message}")));
            }
            WireStatus::Creating | WireStatus::Resuming | WireStatus::Paused | WireStatus::Migrating => {}
        }
    }
    Err(Failure::failed("the gateway ended the stream before the sandbox was running: try again"))
}

/// Runs a command and passes its output and exit code on.
pub(super) async fn exec(context: &Context, client: &Client, args: ExecArgs) -> Result<ExitCode, Failure> {
    let id = find(client, &args.id).await?;
    let stdin = if args.stdin { Some(STANDARD.encode(read_input()?)) } else { None };
    let command =
        ExecCommand { command: args.command, cwd: args.cwd, stdin, timeout_seconds: Some(args.timeout) };
    let _watching = wake(client, id).await?;
    let mut running = client.exec(id, &command).await?;
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    while let Some(frame) = running.next().await? {
        match frame {
            ExecFrame::Stdout { data } if context.out.is_json() => stdout.extend(decoded(&data)?),
            ExecFrame::Stderr { data } if context.out.is_json() => stderr.extend(decoded(&data)?),
            ExecFrame::Stdout { data } => pass_on(&mut std::io::stdout(), &decoded(&data)?),
            ExecFrame::Stderr { data } => pass_on(&mut std::io::stderr(), &decoded(&data)?),
            ExecFrame::Exit { exit_code, timed_out, truncated } => {
                if context.out.is_json() {
                    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                    let value = json!({ "exitCode": exit_code, "timedOut": timed_out, "truncated": truncated,
                        "stdout": text(&stdout), "stderr": text(&stderr) });
                    context.out.result(&value, "");
                } else if timed_out {
                    warn(&format!(
                        "the command was killed after {} s; --timeout gives it longer",
                        args.timeout
                    ));
                } else if truncated {
                    warn("there was too much output, and some of it is missing");
                }
                return Ok(ExitCode::from(u8::try_from(exit_code).unwrap_or(u8::MAX)));
            }
            ExecFrame::Error { message } => return Err(Failure::failed(message)),
        }
    }
    Err(Failure::failed("the connection ended before the command did"))
}

fn read_input() -> Result<Vec<u8>, Failure> {
    let mut input = Vec::new();
    let read = std::io::stdin().take(MAX_INPUT + 1).read_to_end(&mut input);
    read.map_err(|error| Failure::usage(format!("cannot read standard input: {error}")))?;
    if input.len() as u64 > MAX_INPUT {
        let way = "copy it first with `proliferate session cp`";
        return Err(Failure::usage(format!("standard input is larger than {MAX_INPUT} bytes: {way}")));
    }
    Ok(input)
}

pub(super) fn decoded(data: &str) -> Result<Vec<u8>, Failure> {
    STANDARD.decode(data).map_err(|_| Failure::failed("the gateway sent output that is not base64"))
}

/// Writes bytes as they are, and ignores errors: a closed pipe (`| head`) is not an error.
fn pass_on(out: &mut impl std::io::Write, bytes: &[u8]) {
    let _ = out.write_all(bytes).and_then(|()| out.flush());
}

pub(super) async fn diff(context: &Context, client: &Client, args: DiffArgs) -> Result<(), Failure> {
    let id = find(client, &args.id).await?;
    let _watching = wake(client, id).await?;
    let diff = client.diff(id, args.base.as_deref()).await?;
    if context.out.is_json() {
        context.out.result(&json!(diff), "");
        return Ok(());
    }
    if diff.repositories.is_empty() {
        note(
            "the session has no repository, so there is no diff: `session exec` and `session cp` show its files",
        );
        return Ok(());
    }
    if diff.repositories.iter().all(|repo| repo.diff.is_empty()) {
        note("there are no changes");
        return Ok(());
    }
    let several = diff.repositories.len() > 1;
    for repo in &diff.repositories {
        if !std::io::stdout().is_terminal() {
            // For `git apply` and the like.
            pass_on(&mut std::io::stdout(), repo.diff.as_bytes());
            continue;
        }
        if several {
            line(&format!("{BOLD}{}{BOLD:#}", clean(&repo.path)));
        }
        clean(&repo.diff).lines().for_each(|text| line(&colour_diff_line(text)));
    }
    Ok(())
}

/// Colours a line of a diff as git does. Pipes get no colours.
fn colour_diff_line(text: &str) -> String {
    let style = match text.as_bytes() {
        [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] | [b'd', b'i', b'f', b'f', ..] => BOLD,
        [b'+', ..] => GREEN,
        [b'-', ..] => RED,
        [b'@', b'@', ..] => DIM,
        _ => return text.to_owned(),
    };
    format!("{style}{text}{style:#}")
}

pub(super) async fn logs(context: &Context, client: &Client, args: LogsArgs) -> Result<(), Failure> {
    let id = find(client, &args.id).await?;
    let _watching = wake(client, id).await?;
    let mut log = client.logs(id, args.service.as_deref(), args.follow).await?;
    let (mut all, is_terminal) = (Vec::new(), std::io::stdout().is_terminal());
    while let Some(bytes) = log.next().await? {
        if context.out.is_json() {
            all.extend_from_slice(&bytes);
        } else if is_terminal {
            // The log is the sandbox's, and must not control this terminal.
            pass_on(&mut std::io::stdout(), clean(&String::from_utf8_lossy(&bytes)).as_bytes());
        } else {
            pass_on(&mut std::io::stdout(), &bytes);
        }
    }
    if context.out.is_json() {
        let value = json!({ "service": args.service, "log": String::from_utf8_lossy(&all) });
        context.out.result(&value, "");
    }
    Ok(())
}
