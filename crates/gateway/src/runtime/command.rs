//! A command that a member runs in a sandbox, as an effect of the gate: it starts with a permit, and its exit code is the
//! outcome of the call.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use channel::Lane;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{CallRequest, CallResult, Failure, Output, Outside, Permit};
use parking_lot::Mutex;
use proto::JsonObject;
use sandboxd::client::ExecInput;
use sandboxd::protocol::{Exec, ExecDone, ExitReason};
use sandboxd::{ClientError, ExecHandle, Sandboxd};
use serde_json::json;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

/// Chunks of output that wait for the reader.
const BUFFERED_CHUNKS: usize = 4;
/// How much longer than the command its call may take.
const CALL_MARGIN: Duration = Duration::from_secs(30);
/// The exit codes that shells use.
const KILLED_BY_SIGNAL: i32 = 128;
const TIMED_OUT: i32 = 124;

/// A command that has not started.
pub(crate) struct Command {
    pub(crate) exec: Exec,
    pub(crate) stdin: Vec<u8>,
    /// Ends, with a reason, when the command must not run any longer.
    pub(crate) stopped: BoxFuture<'static, &'static str>,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) enum CommandEnd {
    Exited {
        code: i32,
        timed_out: bool,
        truncated: bool,
    },
    Killed(&'static str),
    /// It could not be started, or the connection to its sandbox broke.
    Failed(ClientError),
}

/// The effect of the tool `run_command`.
pub(crate) struct RunCommand {
    supervisor: Sandboxd,
    /// The command, and what reports its start.
    command: Mutex<Option<(Command, oneshot::Sender<()>)>>,
    timeout: Option<Duration>,
    output: OutputSender,
    end: Arc<Mutex<Option<CommandEnd>>>,
}

type OutputSender = mpsc::Sender<(Lane, Bytes)>;

/// The reader's side of a command. Dropping it kills the command.
pub(crate) struct CommandReader {
    started: oneshot::Receiver<()>,
    output: mpsc::Receiver<(Lane, Bytes)>,
    end: Arc<Mutex<Option<CommandEnd>>>,
}

/// A command that has started, with the call that it belongs to.
pub(crate) struct RunningCommand {
    reader: CommandReader,
    call: JoinHandle<CallResult>,
}

impl RunCommand {
    pub(crate) fn new(supervisor: Sandboxd, command: Command) -> (Self, CommandReader) {
        let (sender, output) = mpsc::channel(BUFFERED_CHUNKS);
        let (starting, started) = oneshot::channel();
        let end = Arc::default();
        let timeout = command.exec.timeout_ms.map(|limit| Duration::from_millis(limit) + CALL_MARGIN);
        let reader = CommandReader { started, output, end: Arc::clone(&end) };
        let command = Mutex::new(Some((command, starting)));
        (Self { supervisor, command, timeout, output: sender, end }, reader)
    }
}

impl CommandReader {
    /// Waits until the command has started. Otherwise returns the result of its call, and how the command failed if the
    /// gate allowed it.
    pub(crate) async fn started(
        mut self,
        call: JoinHandle<CallResult>,
    ) -> Result<RunningCommand, (Option<CommandEnd>, Option<CallResult>)> {
        if (&mut self.started).await.is_ok() {
            return Ok(RunningCommand { reader: self, call });
        }
        let result = call.await.ok();
        Err((self.end.lock().take(), result))
    }
}

impl RunningCommand {
    /// The next bytes of the output; `None` once the command has ended.
    pub(crate) async fn next(&mut self) -> Option<(Lane, Bytes)> {
        self.reader.output.recv().await
    }

    /// How the command ended, once that is recorded.
    pub(crate) async fn end(&mut self) -> Option<CommandEnd> {
        // The result says the same as the typed end.
        let _ = (&mut self.call).await;
        self.reader.end.lock().take()
    }
}

impl Outside for RunCommand {
    fn replay_safe(&self) -> bool {
        false
    }

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        _: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        let command = self.command.lock().take();
        async move {
            let ran = || Failure::Refused("this command ran before".to_owned());
            let end = run(permit, &self.supervisor, command.ok_or_else(ran)?, &self.output).await;
            let outcome = outcome(&end);
            *self.end.lock() = Some(end);
            outcome
        }
        .boxed()
    }
}

/// Runs a command until it exits, nobody reads it any more, or it must stop.
async fn run(
    _: &Permit,
    supervisor: &Sandboxd,
    (command, starting): (Command, oneshot::Sender<()>),
    reader: &OutputSender,
) -> CommandEnd {
    const READER_DISCONNECTED: &str = "its reader has disconnected";
    let Command { exec, stdin, mut stopped } = command;
    let ExecHandle { stdin: input, mut output, control: _control } = match supervisor.exec(exec).await {
        Ok(handle) => handle,
        Err(error) => return CommandEnd::Failed(error),
    };
    if starting.send(()).is_err() {
        return CommandEnd::Killed(READER_DISCONNECTED);
    }
    // The input is sent beside the output, because a command may read its input only after somebody has read its output.
    let mut feeding = feed(input, stdin).boxed().fuse();
    loop {
        let next = async {
            let slot = reader.reserve().await;
            (slot, output.next().await)
        };
        tokio::select! {
            (slot, chunk) = next => match (slot, chunk) {
                (Ok(slot), Ok(Some((lane, bytes)))) => slot.send((lane, bytes)),
                (_, Ok(None)) => return output.done().await.map_or_else(CommandEnd::Failed, exited),
                (_, Err(error)) => return CommandEnd::Failed(error),
                (Err(_), _) => return CommandEnd::Killed(READER_DISCONNECTED),
            },
            reason = &mut stopped => return CommandEnd::Killed(reason),
            () = reader.closed() => return CommandEnd::Killed(READER_DISCONNECTED),
            () = &mut feeding => {}
        }
    }
}

/// Sends the standard input and closes it.
async fn feed(mut stdin: ExecInput, input: Vec<u8>) {
    if !input.is_empty() {
        // A command that does not read its input, or has ended, is no error.
        let _ = stdin.write(input).await;
    }
    stdin.close();
}

fn exited(done: ExecDone) -> CommandEnd {
    let (code, timed_out) = match done.ended {
        ExitReason::Exit(code) => (code, false),
        ExitReason::Signal(signal) => (KILLED_BY_SIGNAL.saturating_add(signal), false),
        ExitReason::TimedOut => (TIMED_OUT, true),
    };
    CommandEnd::Exited { code, timed_out, truncated: done.truncated }
}

/// The outcome of the call. It has no text of the command or of the sandbox, because it is recorded.
fn outcome(end: &CommandEnd) -> Result<Output, Failure> {
    match end {
        CommandEnd::Exited { code, timed_out, .. } => {
            let data = [("exitCode", json!(code)), ("timedOut", json!(timed_out))];
            let data = data.map(|(name, value)| (name.to_owned(), value));
            let text = format!("the command ended with exit code {code}");
            Ok(Output { text, data: Some(JsonObject::from_iter(data)) })
        }
        CommandEnd::Killed(reason) => Err(Failure::Refused(format!("the command was killed: {reason}"))),
        CommandEnd::Failed(ClientError::Refused(refusal)) => {
            Err(Failure::Refused(format!("the command could not be run: {:?}", refusal.code)))
        }
        CommandEnd::Failed(_) => Err(Failure::Late),
    }
}
