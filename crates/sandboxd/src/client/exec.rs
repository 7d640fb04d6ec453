//! Running programs, with collected or streamed output.

use std::time::Duration;

use bytes::Bytes;
use channel::{Controls, Lane, Receiver, Sender, Stream};
use tokio::time::timeout;

use super::{ClientError, Sandboxd, read_answer};
use crate::protocol::{Control, Exec, ExecDone, Request, Size};

/// Added to the program's own time limit, for killing it and sending the result.
const RESULT_SLACK: Duration = Duration::from_secs(10);

/// The result of a finished program.
#[derive(Clone, Debug)]
pub struct ExecResult {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub done: ExecDone,
}

/// A running program. Dropping the handle kills the program.
pub struct ExecHandle {
    pub stdin: ExecInput,
    pub output: ExecOutput,
    pub control: ExecControl,
}

pub struct ExecInput(Sender);

pub struct ExecOutput(Receiver);

pub struct ExecControl(Controls);

impl Sandboxd {
    /// Starts a program. If it could not be started, reading its output fails.
    pub async fn exec(&self, exec: Exec) -> Result<ExecHandle, ClientError> {
        let Stream { sender, receiver, controls } = self.open(&Request::Exec(exec)).await?;
        Ok(ExecHandle {
            stdin: ExecInput(sender),
            output: ExecOutput(receiver),
            control: ExecControl(controls),
        })
    }

    /// Runs a program with this input until it exits. It must have a time limit. At most `most` bytes of output are
    /// kept.
    pub async fn run(
        &self,
        mut exec: Exec,
        input: impl Into<Bytes>,
        most: usize,
    ) -> Result<ExecResult, ClientError> {
        let Some(limit) = exec.timeout_ms else { return Err(ClientError::BadRequest) };
        let input = input.into();
        exec.stdin = !input.is_empty();
        exec.output_limit = Some(most as u64);
        let ExecHandle { mut stdin, mut output, control: _control } = self.exec(exec).await?;
        // A program may never read its input, or only after its output was read.
        let feeding = async {
            let _ = stdin.write(input).await;
            stdin.close();
            std::future::pending::<()>().await;
        };
        let running = async {
            tokio::select! {
                collected = output.collect(most) => collected,
                () = feeding => Err(ClientError::InvalidAnswer("unreachable")),
            }
        };
        let within = Duration::from_millis(limit).saturating_add(RESULT_SLACK);
        timeout(within, running).await.unwrap_or(Err(ClientError::TimedOut))
    }
}

impl ExecInput {
    pub async fn write(&mut self, bytes: impl Into<Bytes>) -> Result<(), ClientError> {
        Ok(self.0.send(Lane::Main, bytes).await?)
    }

    pub fn close(&mut self) {
        self.0.end();
    }
}

impl ExecControl {
    /// Sends a signal to the program's process group; 9 kills all its descendants.
    pub async fn signal(&mut self, signal: i32) -> Result<(), ClientError> {
        self.send_control(Control::Signal(signal)).await
    }

    pub async fn resize(&mut self, cols: u16, rows: u16) -> Result<(), ClientError> {
        self.send_control(Control::Resize(Size { cols, rows })).await
    }

    async fn send_control(&mut self, control: Control) -> Result<(), ClientError> {
        let message = serde_json::to_vec(&control).map_err(|_| ClientError::BadRequest)?;
        Ok(self.0.send(message).await?)
    }
}

impl ExecOutput {
    /// The next chunk; `None` when the program has exited and all output was read.
    pub async fn next(&mut self) -> Result<Option<(Lane, Bytes)>, ClientError> {
        Ok(self.0.recv().await?.map(|chunk| (chunk.lane, chunk.bytes)))
    }

    /// Waits for the program's exit; unread output is dropped.
    pub async fn done(&mut self) -> Result<ExecDone, ClientError> {
        match read_answer(&self.0.outcome().await?)? {
            Ok(done) => Ok(done),
            Err(_) => Err(ClientError::InvalidAnswer("unexpected document after a program")),
        }
    }

    /// Reads all output and keeps at most `most` bytes.
    pub async fn collect(&mut self, most: usize) -> Result<ExecResult, ClientError> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let mut left = most;
        let mut cut = false;
        while let Some((lane, bytes)) = self.next().await? {
            cut |= bytes.len() > left;
            let kept = &bytes[..bytes.len().min(left)];
            left -= kept.len();
            match lane {
                Lane::Main => stdout.extend_from_slice(kept),
                Lane::Errors => stderr.extend_from_slice(kept),
            }
        }
        let mut done = self.done().await?;
        done.truncated |= cut;
        Ok(ExecResult { stdout, stderr, done })
    }
}
