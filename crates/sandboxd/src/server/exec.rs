//! Runs one program for the caller: input, output, signals, a time limit, and no survivors after a kill.

use std::convert::Infallible;
use std::io;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use channel::{Controls, Receiver, Stream};
use rustix::process::Signal;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::process::Child;
use tokio::sync::watch;

use super::dispatch::answer;
use super::launch::{Launcher, RunningProgram, StandardStreams};
use super::output::{Output, Source};
use super::pty::{END_OF_INPUT, Terminal};
use super::roots::io_refusal;
use super::tree::ProcessTree;
use crate::protocol::{Code, Control, Exec, ExecDone, ExitReason, Refusal, Size};

/// The time between SIGTERM and SIGKILL.
const KILL_DELAY: Duration = Duration::from_secs(1);

type Input = Box<dyn AsyncWrite + Send + Unpin>;

/// A started program with our ends of its input and output.
struct ExecProcess {
    program: RunningProgram,
    input: Option<Input>,
    output: Output,
    terminal: Option<Terminal>,
}

pub(super) async fn run(launcher: &Launcher, exec: Exec, mut stream: Stream) {
    let ExecProcess { mut program, input, mut output, terminal } = match start(launcher, &exec) {
        Ok(running) => running,
        Err(refusal) => return answer::<ExecDone>(stream, Err(refusal)).await,
    };
    let (exited, watched) = watch::channel(false);
    let Stream { sender, receiver, controls } = &mut stream;
    let limit = exec.timeout_ms.map(Duration::from_millis);
    let watching = async {
        let ended = supervise(&mut program, controls, limit, terminal.as_ref()).await;
        if ended.is_err() {
            program.tree.kill().await;
            let _ = program.child.wait().await;
        }
        exited.send_replace(true);
        ended
    };
    let (ended, pumped) = tokio::select! {
        both = async { tokio::join!(watching, output.pump(sender, watched)) } => both,
        never = feed(input, receiver, terminal.is_some()) => match never {},
    };
    let (truncated, detached) = (output.truncated, output.detached);
    match (ended, pumped) {
        (Ok(ended), Ok(())) => answer(stream, Ok(ExecDone { ended, truncated, detached })).await,
        (Err(Some(refusal)), _) => answer::<ExecDone>(stream, Err(refusal)).await,
        // The caller has gone away.
        (Err(None), _) | (_, Err(_)) => {}
    }
}

fn start(launcher: &Launcher, exec: &Exec) -> Result<ExecProcess, Refusal> {
    let failed = |error: io::Error| io_refusal(&error);
    if let Some(size) = exec.pty {
        return start_in_terminal(launcher, exec, size);
    }
    let stdin = if exec.stdin { Stdio::piped() } else { Stdio::null() };
    if exec.merge {
        let (reader, writer) = io::pipe().map_err(failed)?;
        let stdout = writer.try_clone().map_err(failed)?.into();
        let reader = tokio::net::unix::pipe::Receiver::from_owned_fd(reader.into()).map_err(failed)?;
        let streams = StandardStreams { stdin, stdout, stderr: writer.into(), terminal: false };
        let mut program = launcher.start(&exec.argv, exec.cwd.as_ref(), &exec.env, streams)?;
        let input = input_of(&mut program.child);
        let output = Output::new(Some(Box::new(reader)), None, exec.output_limit);
        return Ok(ExecProcess { program, input, output, terminal: None });
    }
    let streams = StandardStreams { stdin, stdout: Stdio::piped(), stderr: Stdio::piped(), terminal: false };
    let mut program = launcher.start(&exec.argv, exec.cwd.as_ref(), &exec.env, streams)?;
    let input = input_of(&mut program.child);
    let main = program.child.stdout.take().map(|main| Box::new(main) as Source);
    let errors = program.child.stderr.take().map(|errors| Box::new(errors) as Source);
    Ok(ExecProcess { program, input, output: Output::new(main, errors, exec.output_limit), terminal: None })
}

fn start_in_terminal(launcher: &Launcher, exec: &Exec, size: Size) -> Result<ExecProcess, Refusal> {
    let failed = |error: io::Error| io_refusal(&error);
    let (terminal, far) = Terminal::open(size).map_err(failed)?;
    let stdin = far.try_clone().map_err(failed)?.into();
    let stdout = far.try_clone().map_err(failed)?.into();
    let streams = StandardStreams { stdin, stdout, stderr: far.into(), terminal: true };
    let program = launcher.start(&exec.argv, exec.cwd.as_ref(), &exec.env, streams)?;
    let output = Box::new(terminal.output().map_err(failed)?) as Source;
    let input = Box::new(terminal.input().map_err(failed)?) as Input;
    let output = Output::new(Some(output), None, exec.output_limit);
    Ok(ExecProcess { program, input: Some(input), output, terminal: Some(terminal) })
}

fn input_of(child: &mut Child) -> Option<Input> {
    child.stdin.take().map(|input| Box::new(input) as Input)
}

/// Waits for the program's exit and handles control messages meanwhile. An error without a refusal means that the
/// caller has gone away.
async fn supervise(
    program: &mut RunningProgram,
    controls: &mut Controls,
    limit: Option<Duration>,
    terminal: Option<&Terminal>,
) -> Result<ExitReason, Option<Refusal>> {
    let RunningProgram { child, tree } = program;
    let mut timed_out = false;
    let deadline = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(deadline);
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = status.map_err(|error| Some(io_refusal(&error)))?;
                return Ok(if timed_out { ExitReason::TimedOut } else { exit_reason(status) });
            }
            () = &mut deadline, if !timed_out => {
                timed_out = true;
                tree.end(KILL_DELAY).await;
            }
            said = controls.recv() => match said {
                Ok(Some(message)) => handle_control(&message, tree, terminal).await.map_err(Some)?,
                Ok(None) | Err(_) => return Err(None),
            },
        }
    }
}

async fn handle_control(
    message: &[u8],
    tree: &ProcessTree,
    terminal: Option<&Terminal>,
) -> Result<(), Refusal> {
    let bad = || Refusal::new(Code::BadRequest, "a control message is not valid");
    match serde_json::from_slice(message).map_err(|_| bad())? {
        Control::Signal(number) => match Signal::from_named_raw(number).ok_or_else(bad)? {
            Signal::KILL => tree.kill().await,
            signal => tree.signal(signal),
        },
        Control::Resize(size) => {
            let terminal = terminal.ok_or_else(bad)?;
            terminal.resize(size).map_err(|error| io_refusal(&error))?;
        }
    }
    Ok(())
}

pub(super) fn exit_reason(status: ExitStatus) -> ExitReason {
    match (status.code(), status.signal()) {
        (Some(code), _) => ExitReason::Exit(code),
        (None, Some(signal)) => ExitReason::Signal(signal),
        (None, None) => ExitReason::Exit(-1),
    }
}

/// Never returns: the exit of the program ends an exec, not the end of its input.
async fn feed(input: Option<Input>, receiver: &mut Receiver, is_terminal: bool) -> Infallible {
    let Some(mut input) = input else { return std::future::pending().await };
    let mut open = true;
    while let Ok(Some(chunk)) = receiver.recv().await {
        // Keep reading after the program closed its input, so that the caller does not block.
        open = open && input.write_all(&chunk.bytes).await.is_ok();
    }
    if open && is_terminal {
        let _ = input.write_all(END_OF_INPUT).await;
    }
    drop(input);
    std::future::pending().await
}
