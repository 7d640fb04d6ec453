//! Running programs: collected, or as they go.

use std::time::Duration;

use bytes::Bytes;
use channel::{Controls, Lane, Receiver, Sender, Stream};
use tokio::time::timeout;

use super::{ClientError, Sandboxd, read_answer};
use crate::protocol::{Control, Exec, ExecDone, Request, Size};

/// Beyond the program's own time limit: for killing it and for telling.
const SLACK: Duration = Duration::from_secs(10);

/// A program that has ended, and what it said.
#[derive(Clone, Debug)]
pub struct Collected {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub done: ExecDone,
}

/// A program that runs. Dropping it kills the program.
pub struct ExecHandle {
    pub stdin: ExecInput,
    pub output: ExecOutput,
    pub control: ExecControl,
}

pub struct ExecInput(Sender);

pub struct ExecOutput(Receiver);

pub struct ExecControl(Controls);

impl Sandboxd {
    /// Starts a program. Whether it could be started is told by its output's end.
    pub async fn exec(&self, exec: Exec) -> Result<ExecHandle, ClientError> {
        let Stream { sender, receiver, controls } = self.open(&Request::Exec(exec)).await?;
        Ok(ExecHandle {
            stdin: ExecInput(sender),
            output: ExecOutput(receiver),
            control: ExecControl(controls),
        })
    }

    /// Runs a program with this input to its end. It must have a time limit. Of its output, `most` bytes are kept.
    pub async fn run(
        &self,
        mut exec: Exec,
        input: impl Into<Bytes>,
        most: usize,
    ) -> Result<Collected, ClientError> {
        let Some(limit) = exec.timeout_ms else { return Err(ClientError::BadRequest) };
        let input = input.into();
        exec.stdin = !input.is_empty();
        exec.output_limit = Some(most as u64);
        let ExecHandle { mut stdin, mut output, control: _control } = self.exec(exec).await?;
        // A program may leave its input unread, or only read it once somebody takes its output.
        let feeding = async {
            let _ = stdin.write(input).await;
            stdin.close();
            std::future::pending::<()>().await;
        };
        let running = async {
            tokio::select! {
                collected = output.collect(most) => collected,
                () = feeding => Err(ClientError::Nonsense("unreachable")),
            }
        };
        let within = Duration::from_millis(limit).saturating_add(SLACK);
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
    /// To the program's process group; 9 kills all that came of it.
    pub async fn signal(&mut self, signal: i32) -> Result<(), ClientError> {
        self.say(Control::Signal(signal)).await
    }

    pub async fn resize(&mut self, cols: u16, rows: u16) -> Result<(), ClientError> {
        self.say(Control::Resize(Size { cols, rows })).await
    }

    async fn say(&mut self, control: Control) -> Result<(), ClientError> {
        let message = serde_json::to_vec(&control).map_err(|_| ClientError::BadRequest)?;
        Ok(self.0.send(message).await?)
    }
}

impl ExecOutput {
    /// The next piece; nothing when the program has ended and all was read.
    pub async fn next(&mut self) -> Result<Option<(Lane, Bytes)>, ClientError> {
        Ok(self.0.recv().await?.map(|chunk| (chunk.lane, chunk.bytes)))
    }

    /// How the program ended; output that was not read is dropped.
    pub async fn done(&mut self) -> Result<ExecDone, ClientError> {
        match read_answer(&self.0.outcome().await?)? {
            Ok(done) => Ok(done),
            Err(_) => Err(ClientError::Nonsense("a document after a program")),
        }
    }

    /// All output, of which `most` bytes are kept.
    pub async fn collect(&mut self, most: usize) -> Result<Collected, ClientError> {
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
        Ok(Collected { stdout, stderr, done })
    }
}
