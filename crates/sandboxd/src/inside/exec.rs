//! Running one program for the caller: input in, output out, signals, a time limit, and nobody left when it was killed.

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

use super::beneath::io_refusal;
use super::dispatch::answer;
use super::launch::{Ends, Launched, Launcher};
use super::output::{Output, Source};
use super::pty::{END_OF_INPUT, Terminal};
use super::tree::Tree;
use crate::protocol::{Code, Control, Ended, Exec, ExecDone, Refusal, Size};

/// Between asking and killing.
const GRACE: Duration = Duration::from_secs(1);

type Input = Box<dyn AsyncWrite + Send + Unpin>;

/// A program that was started, with this side's ends of its input and output.
struct Running {
    program: Launched,
    input: Option<Input>,
    output: Output,
    terminal: Option<Terminal>,
}

pub(super) async fn run(launcher: &Launcher, exec: Exec, mut stream: Stream) {
    let Running { mut program, input, mut output, terminal } = match start(launcher, &exec) {
        Ok(running) => running,
        Err(refusal) => return answer::<ExecDone>(stream, Err(refusal)).await,
    };
    let (exited, watched) = watch::channel(false);
    let Stream { sender, receiver, controls } = &mut stream;
    let limit = exec.timeout_ms.map(Duration::from_millis);
    let watching = async {
        let ended = watch_over(&mut program, controls, limit, terminal.as_ref()).await;
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
        // Nobody is interested any more.
        (Err(None), _) | (_, Err(_)) => {}
    }
}

fn start(launcher: &Launcher, exec: &Exec) -> Result<Running, Refusal> {
    let failed = |error: io::Error| io_refusal(&error);
    if let Some(size) = exec.pty {
        return start_in_terminal(launcher, exec, size);
    }
    let stdin = if exec.stdin { Stdio::piped() } else { Stdio::null() };
    if exec.merge {
        let (reader, writer) = io::pipe().map_err(failed)?;
        let stdout = writer.try_clone().map_err(failed)?.into();
        let reader = tokio::net::unix::pipe::Receiver::from_owned_fd(reader.into()).map_err(failed)?;
        let ends = Ends { stdin, stdout, stderr: writer.into(), terminal: false };
        let mut program = launcher.start(&exec.argv, exec.cwd.as_ref(), &exec.env, ends)?;
        let input = input_of(&mut program.child);
        let output = Output::new(Some(Box::new(reader)), None, exec.output_limit);
        return Ok(Running { program, input, output, terminal: None });
    }
    let ends = Ends { stdin, stdout: Stdio::piped(), stderr: Stdio::piped(), terminal: false };
    let mut program = launcher.start(&exec.argv, exec.cwd.as_ref(), &exec.env, ends)?;
    let input = input_of(&mut program.child);
    let main = program.child.stdout.take().map(|main| Box::new(main) as Source);
    let errors = program.child.stderr.take().map(|errors| Box::new(errors) as Source);
    Ok(Running { program, input, output: Output::new(main, errors, exec.output_limit), terminal: None })
}

fn start_in_terminal(launcher: &Launcher, exec: &Exec, size: Size) -> Result<Running, Refusal> {
    let failed = |error: io::Error| io_refusal(&error);
    let (terminal, far) = Terminal::open(size).map_err(failed)?;
    let stdin = far.try_clone().map_err(failed)?.into();
    let stdout = far.try_clone().map_err(failed)?.into();
    let ends = Ends { stdin, stdout, stderr: far.into(), terminal: true };
    let program = launcher.start(&exec.argv, exec.cwd.as_ref(), &exec.env, ends)?;
    let output = Box::new(terminal.output().map_err(failed)?) as Source;
    let input = Box::new(terminal.input().map_err(failed)?) as Input;
    let output = Output::new(Some(output), None, exec.output_limit);
    Ok(Running { program, input: Some(input), output, terminal: Some(terminal) })
}

fn input_of(child: &mut Child) -> Option<Input> {
    child.stdin.take().map(|input| Box::new(input) as Input)
}

/// Waits for the program's end and does what the caller says meanwhile. Without a refusal in the error, the caller has
/// left.
async fn watch_over(
    program: &mut Launched,
    controls: &mut Controls,
    limit: Option<Duration>,
    terminal: Option<&Terminal>,
) -> Result<Ended, Option<Refusal>> {
    let Launched { child, tree } = program;
    let mut timed_out = false;
    let too_late = async {
        match limit {
            Some(limit) => tokio::time::sleep(limit).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(too_late);
    loop {
        tokio::select! {
            status = child.wait() => {
                let status = status.map_err(|error| Some(io_refusal(&error)))?;
                return Ok(if timed_out { Ended::TimedOut } else { ended(status) });
            }
            () = &mut too_late, if !timed_out => {
                timed_out = true;
                tree.end(GRACE).await;
            }
            said = controls.recv() => match said {
                Ok(Some(message)) => obey(&message, tree, terminal).await.map_err(Some)?,
                Ok(None) | Err(_) => return Err(None),
            },
        }
    }
}

async fn obey(message: &[u8], tree: &Tree, terminal: Option<&Terminal>) -> Result<(), Refusal> {
    let bad = || Refusal::new(Code::BadRequest, "a message beside the input makes no sense");
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

pub(super) fn ended(status: ExitStatus) -> Ended {
    match (status.code(), status.signal()) {
        (Some(code), _) => Ended::Exit(code),
        (None, Some(signal)) => Ended::Signal(signal),
        (None, None) => Ended::Exit(-1),
    }
}

/// Never returns: the program's end is what ends an exec, and not that of its input.
async fn feed(input: Option<Input>, receiver: &mut Receiver, is_terminal: bool) -> Infallible {
    let Some(mut input) = input else { return std::future::pending().await };
    let mut open = true;
    while let Ok(Some(chunk)) = receiver.recv().await {
        // A program that has closed its input is no reason to hold the caller up.
        open = open && input.write_all(&chunk.bytes).await.is_ok();
    }
    if open && is_terminal {
        let _ = input.write_all(END_OF_INPUT).await;
    }
    drop(input);
    std::future::pending().await
}
