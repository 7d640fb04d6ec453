//! The gateway's end of a launcher that becomes bubblewrap: what it is told, and what it says.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, Command};

use super::bwrap::LAST_FILE;
use super::hidden::LAUNCHER;
use super::identity;
use super::plan::Plan;
use super::records::Folder;
use crate::error::SandboxError;

/// Longer than what bubblewrap says of a child.
const MAX_INFO: usize = 4096;

pub(super) struct Launched {
    child: Child,
    /// First the plan, then the file for which bubblewrap waits.
    input: Option<ChildStdin>,
    init: Option<OwnedFd>,
}

impl Launched {
    /// Starts a launcher; it does nothing before it has a [plan](Self::plan).
    pub(super) fn spawn(helper: &Path, folder: &Folder) -> Result<Self, SandboxError> {
        let host = SandboxError::host("start the launcher");
        let log = folder.open_log().map_err(&host)?;
        log.set_len(0).map_err(&host)?;
        // A group of its own: an interrupt from the gateway's terminal is not meant for sandboxes.
        let mut child = Command::new(helper)
            .arg(LAUNCHER)
            .env_clear()
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::from(log))
            .spawn()
            .map_err(host)?;
        let input = child.stdin.take();
        Ok(Self { child, input, init: None })
    }

    /// Whether it took the plan; one that did not has ended.
    pub(super) async fn plan(&mut self, plan: &Plan) -> Result<bool, SandboxError> {
        let plan = plan.encode().map_err(SandboxError::host("start the launcher"))?;
        let Some(pipe) = &mut self.input else { return Ok(false) };
        Ok(pipe.write_all(&plan).await.is_ok())
    }

    /// Reads what bubblewrap says of its child; `None` when it ended without a word.
    pub(super) async fn child_pid(&mut self) -> Option<i32> {
        let mut from = self.child.stdout.take()?;
        let mut text = Vec::new();
        while text.len() < MAX_INFO && !text.contains(&b'}') {
            if from.read_buf(&mut text).await.ok()? == 0 {
                break;
            }
        }
        let info: serde_json::Value = serde_json::from_slice(&text).ok()?;
        info.get("child-pid")?.as_i64().and_then(|pid| i32::try_from(pid).ok())
    }

    /// Makes the process that is to be PID 1 end with [`Self::abort`].
    pub(super) fn hold(&mut self, init: OwnedFd) {
        self.init = Some(init);
    }

    /// Lets bubblewrap finish, which makes PID 1 run.
    pub(super) async fn go(&mut self) {
        if let Some(mut pipe) = self.input.take() {
            // When it is gone, the next look at the process says so.
            let _ = pipe.write_all(LAST_FILE.1.as_bytes()).await;
        }
    }

    /// Ends PID 1, if it is known, and the whole process group of the launcher.
    pub(super) fn abort(&mut self) {
        if let Some(init) = &self.init {
            identity::kill(init);
        }
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }

    /// Waits until bubblewrap, and so the sandbox, is over.
    pub(super) async fn ended(mut self) {
        let _ = self.child.wait().await;
    }
}
