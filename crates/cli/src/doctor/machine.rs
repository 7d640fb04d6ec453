//! Checks what sandboxes and agents need from the machine.

use std::path::Path;
use std::time::Duration;

use gateway::config::Config;
use gateway::runtime::{BrowserPrograms, NoBrowser};
use rustix::fs::Access;
use tokio::process::Command;

use super::Finding;

/// The version of OpenCode that this gateway was tested with.
const TESTED_OPENCODE_VERSION: &str = include_str!("../../../../scripts/opencode.version");
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);
const HOW_TO_INSTALL_OPENCODE: &str =
    "`make up` installs it into .tools; elsewhere: npm install -g opencode-ai";

pub(super) fn data_dir(config: &Config) -> Finding {
    const CHECK_NAME: &str = "data dir";
    let dir = &config.data_dir;
    let (there, detail) = match nearest_existing_directory(dir) {
        there if there == dir => (there, dir.display().to_string()),
        there => (there, format!("{} will be made at the first start", dir.display())),
    };
    // Ask the kernel, which also knows about read-only mounts, instead of writing a test file.
    match rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) if there.is_dir() => Finding::good(CHECK_NAME, detail),
        Ok(()) => {
            Finding::bad(CHECK_NAME, format!("{} is no directory", there.display()), CHOOSE_WRITABLE_DIR)
        }
        Err(error) => Finding::bad(CHECK_NAME, format!("{}: {error}", there.display()), CHOOSE_WRITABLE_DIR),
    }
}

/// The directory, or its nearest ancestor that exists.
fn nearest_existing_directory(dir: &Path) -> &Path {
    dir.ancestors()
        .find(|directory| directory.exists() && !directory.as_os_str().is_empty())
        .unwrap_or(Path::new("."))
}

/// Checks that there is enough disk space for the database, the ledger and the sandbox files.
pub(super) fn disk(config: &Config) -> Finding {
    const CHECK_NAME: &str = "disk space";
    let stat = match rustix::fs::statvfs(nearest_existing_directory(&config.data_dir)) {
        Ok(stat) => stat,
        Err(error) => return Finding::bad(CHECK_NAME, error.to_string(), CHOOSE_WRITABLE_DIR),
    };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let detail = format!("{:.1} GiB free for {}", gib(free), config.data_dir.display());
    match free {
        0..TOO_FEW_FREE_BYTES => {
            Finding::bad(CHECK_NAME, detail, "free some, or choose another data dir with --data-dir")
        }
        TOO_FEW_FREE_BYTES..FEW_FREE_BYTES => {
            Finding::weak(CHECK_NAME, detail, "a sandbox may take 10 GiB: free some before there are many")
        }
        _ => Finding::good(CHECK_NAME, detail),
    }
}

const TOO_FEW_FREE_BYTES: u64 = 256 << 20;
const FEW_FREE_BYTES: u64 = 10 << 30;
const CHOOSE_WRITABLE_DIR: &str = "choose a directory that you may write to with --data-dir";

#[expect(clippy::cast_precision_loss, reason = "it is shown with one digit")]
fn gib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

pub(super) fn btrfs(config: &Config) -> Finding {
    const CHECK_NAME: &str = "btrfs";
    let in_kernel = std::fs::read_to_string("/proc/filesystems").is_ok_and(|text| text.contains("btrfs"));
    let sbin =
        ["/usr/sbin", "/sbin"].iter().map(|dir| Path::new(dir).join("mkfs.btrfs")).find(|file| file.exists());
    let tool = config.program("mkfs.btrfs").or(sbin);
    match (in_kernel, tool) {
        (true, Some(_)) => {
            Finding::good(CHECK_NAME, "in the kernel, with its tools: snapshots can be instant")
        }
        (true, None) => {
            Finding::weak(CHECK_NAME, "no tools: snapshots are copies", "apt-get install btrfs-progs")
        }
        (false, _) => {
            Finding::weak(CHECK_NAME, "not in the kernel: snapshots are copies", "load the btrfs module")
        }
    }
}

pub(super) async fn opencode(config: &Config) -> Finding {
    const CHECK_NAME: &str = "opencode";
    let wanted = TESTED_OPENCODE_VERSION.trim();
    let Some(program) = config.program("opencode") else {
        return Finding::bad(
            CHECK_NAME,
            format!("not on the PATH (wanted: {wanted})"),
            HOW_TO_INSTALL_OPENCODE,
        );
    };
    let mut command = Command::new(program);
    command.arg("--version");
    match output(command).await {
        Ok(version) if version == wanted => Finding::good(CHECK_NAME, version),
        Ok(version) => {
            Finding::weak(CHECK_NAME, format!("{version}, tested with {wanted}"), HOW_TO_INSTALL_OPENCODE)
        }
        Err(why) => Finding::bad(
            CHECK_NAME,
            format!("does not run: {why} (wanted: {wanted})"),
            HOW_TO_INSTALL_OPENCODE,
        ),
    }
}

/// Whether agents have a browser. They work without one.
pub(super) fn browser(config: &Config) -> Finding {
    const CHECK_NAME: &str = "browser";
    match BrowserPrograms::find(&config.sandboxes, &config.search_path) {
        Ok(found) => {
            Finding::good(CHECK_NAME, format!("agents control {} with Playwright MCP", found.program()))
        }
        Err(reason @ (NoBrowser::Attached | NoBrowser::SwitchedOff)) => {
            Finding::good(CHECK_NAME, reason.to_string())
        }
        Err(reason) => Finding::weak(CHECK_NAME, format!("agents have none: {reason}"), browser_hint(reason)),
    }
}

fn browser_hint(reason: NoBrowser) -> &'static str {
    match reason {
        NoBrowser::NoProgram("node") => "apt-get install nodejs, or install it into SANDBOX_ROOTFS",
        NoBrowser::NoProgram(_) => {
            "apt-get install chromium, or install it into SANDBOX_ROOTFS; `make up` then adds Playwright MCP"
        }
        _ => "`make up` installs it into .tools; elsewhere: npm install -g @playwright/mcp",
    }
}

pub(super) fn program(config: &Config, name: &'static str) -> Finding {
    match config.program(name) {
        Some(file) => Finding::good(name, file.display().to_string()),
        None if name == "git" => Finding::bad(name, "not on the PATH", "apt-get install git"),
        None if name == "opencode" => {
            Finding::bad(name, "not on the PATH: no agent can start", HOW_TO_INSTALL_OPENCODE)
        }
        None => Finding::weak(name, "not on the PATH: the agent cannot search", "apt-get install ripgrep"),
    }
}

/// Runs a program and returns the first line of its output, or of its error output if it failed.
async fn output(mut command: Command) -> Result<String, String> {
    let run = tokio::time::timeout(COMMAND_TIMEOUT, command.kill_on_drop(true).output());
    let output = run.await.map_err(|_| "no answer in 15 s".to_owned())?.map_err(|error| error.to_string())?;
    let text =
        |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().next().unwrap_or_default().trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}
