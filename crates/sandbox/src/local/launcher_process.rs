//! The gateway's side of a launcher that becomes bubblewrap: writes its plan and reads its reports.

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
use super::records::Directory;
use crate::error::SandboxError;

/// Longer than bubblewrap's report about its child.
const MAX_INFO: usize = 4096;

pub(super) struct LauncherProcess {
    child: Child,
    /// Carries the plan first, then the file that bubblewrap waits for.
    input: Option<ChildStdin>,
    init: Option<OwnedFd>,
}

impl LauncherProcess {
    /// Starts a launcher; it does nothing before it receives a [plan](Self::plan).
    pub(super) fn spawn(helper: &Path, directory: &Directory) -> Result<Self, SandboxError> {
        let host = SandboxError::host("start the launcher");
        let log = directory.open_log().map_err(&host)?;
        log.set_len(0).map_err(&host)?;
        // A separate process group: an interrupt from the gateway's terminal must not reach sandboxes.
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

    /// Sends the plan. Returns whether the launcher read it; otherwise it has exited.
    pub(super) async fn plan(&mut self, plan: &Plan) -> Result<bool, SandboxError> {
        let plan = plan.encode().map_err(SandboxError::host("start the launcher"))?;
        let Some(pipe) = &mut self.input else { return Ok(false) };
        Ok(pipe.write_all(&plan).await.is_ok())
    }

    /// Reads the child's pid from bubblewrap's report; `None` when it exited without one.
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

    /// Makes [`Self::abort`] also kill the process that becomes PID 1.
    pub(super) fn kill_on_abort(&mut self, init: OwnedFd) {
        self.init = Some(init);
    }

    /// Lets bubblewrap finish its setup, which starts PID 1.
    pub(super) async fn start_init(&mut self) {
        if let Some(mut pipe) = self.input.take() {
            // If bubblewrap is gone, the next check of the process detects it.
            let _ = pipe.write_all(LAST_FILE.1.as_bytes()).await;
        }
    }

    /// Kills PID 1, if it is known, and the launcher's process group.
    pub(super) fn abort(&mut self) {
        if let Some(init) = &self.init {
            identity::kill(init);
        }
        if let Some(pid) = self.child.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        }
    }

    /// Waits until bubblewrap, and thereby the sandbox, has exited.
    pub(super) async fn wait(mut self) {
        let _ = self.child.wait().await;
    }
}
