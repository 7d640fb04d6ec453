//! Runs a program inside a sandbox as if it ran here: forwards stdin, stdout, stderr, signals, the terminal size and
//! the exit code.

use std::io::{self, IsTerminal as _};
use std::process::ExitCode;

use channel::Lane;
use rustix::termios::{self, OptionalActions, Termios};
use sandboxd::protocol::{Code, Exec, ExitReason, Size};
use sandboxd::{ClientError, ExecHandle, Sandboxd};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

const SIGKILL: i32 = 9;
const CHUNK_BYTES: usize = 64 * 1024;

/// Runs a program to its end and returns its exit code; for a signal, 128 plus its number, as a shell does.
pub(super) async fn run(inside: &Sandboxd, argv: Vec<String>) -> Result<ExitCode, Failure> {
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let pty = if is_terminal { size() } else { None };
    let exec = Exec { argv, stdin: true, pty, ..Exec::default() };
    let program = exec.argv.first().cloned().unwrap_or_default();
    let handle = inside.exec(exec).await?;
    let raw = pty.and_then(|_| Raw::enter());
    let ended = forward_program(handle, &program).await;
    drop(raw);
    Ok(ExitCode::from(match ended? {
        ExitReason::Exit(code) => u8::try_from(code).unwrap_or(1),
        ExitReason::Signal(number) => u8::try_from(128 + number).unwrap_or(1),
        ExitReason::TimedOut => 124,
    }))
}

/// The exit codes of a shell for a program that does not exist or is not executable.
fn start_failure(error: ClientError, program: &str) -> Failure {
    match error {
        ClientError::Refused(refusal) if refusal.code == Code::NotFound => {
            Failure::program(format!("{program}: command not found in the sandbox"), false)
        }
        ClientError::Refused(refusal) if refusal.code == Code::Denied => {
            Failure::program(format!("{program}: it is no program that may be run"), true)
        }
        other => other.into(),
    }
}

/// Forwards bytes and signals until the program has ended.
async fn forward_program(handle: ExecHandle, program: &str) -> Result<ExitReason, Failure> {
    let ExecHandle { mut stdin, mut output, mut control } = handle;
    let feeding = tokio::spawn(async move {
        let (mut from, mut piece) = (tokio::io::stdin(), vec![0; CHUNK_BYTES]);
        while let Ok(read @ 1..) = from.read(&mut piece).await {
            if stdin.write(piece[..read].to_vec()).await.is_err() {
                return;
            }
        }
        stdin.close();
    });
    let mut signals = Signals::listen().map_err(|error| Failure::failed(format!("no signals: {error}")))?;
    let mut stop_requested = false;
    let ended = loop {
        tokio::select! {
            next = output.next() => match next.map_err(|error| start_failure(error, program))? {
                Some((lane, bytes)) => print(lane, &bytes).await,
                None => break output.done().await.map_err(|error| start_failure(error, program))?.ended,
            },
            event = signals.next() => {
                let sent = match event {
                    TerminalEvent::Resize => match size() {
                        Some(Size { cols, rows }) => control.resize(cols, rows).await,
                        None => Ok(()),
                    },
                    // The second request to stop kills the program.
                    TerminalEvent::Stop(number) => control.signal(if stop_requested { SIGKILL } else { number }).await,
                };
                stop_requested |= matches!(event, TerminalEvent::Stop(_));
                ignore_gone(sent)?;
            }
        }
    };
    feeding.abort();
    Ok(ended)
}

/// Ignores a closed stream: a program that has just ended takes no signals, and its exit event follows.
fn ignore_gone(sent: Result<(), ClientError>) -> Result<(), ClientError> {
    match sent {
        Err(ClientError::Stream(_)) | Ok(()) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Prints output and ignores write errors: a closed pipe (`| head`) is no reason to stop the program.
async fn print(lane: Lane, bytes: &[u8]) {
    let _ = match lane {
        Lane::Main => {
            let mut out = tokio::io::stdout();
            match out.write_all(bytes).await {
                Ok(()) => out.flush().await,
                failed => failed,
            }
        }
        Lane::Errors => tokio::io::stderr().write_all(bytes).await,
    };
}

fn size() -> Option<Size> {
    let size = termios::tcgetwinsize(io::stdout()).ok()?;
    Some(Size { cols: size.ws_col, rows: size.ws_row })
}

/// Puts the terminal into raw mode until it is dropped.
struct Raw(Termios);

impl Raw {
    fn enter() -> Option<Self> {
        let before = termios::tcgetattr(io::stdin()).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

#[derive(Clone, Copy)]
enum TerminalEvent {
    Stop(i32),
    Resize,
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    resized: Signal,
}

impl Signals {
    fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            resized: signal(SignalKind::window_change())?,
        })
    }

    async fn next(&mut self) -> TerminalEvent {
        tokio::select! {
            _ = self.interrupt.recv() => TerminalEvent::Stop(SignalKind::interrupt().as_raw_value()),
            _ = self.terminate.recv() => TerminalEvent::Stop(SignalKind::terminate().as_raw_value()),
            _ = self.hangup.recv() => TerminalEvent::Stop(SignalKind::hangup().as_raw_value()),
            _ = self.resized.recv() => TerminalEvent::Resize,
        }
    }
}
