//! What sandboxes and agents need of the machine.

use std::path::Path;
use std::time::Duration;

use gateway::config::Config;
use tokio::process::Command;

use super::Finding;

/// The version of OpenCode that this gateway was tested with.
const OPENCODE: &str = include_str!("../../../../scripts/opencode.version");
const PATIENCE: Duration = Duration::from_secs(15);

pub(super) fn data_dir(config: &Config) -> Finding {
    const NAME: &str = "data dir";
    let dir = &config.data_dir;
    if !dir.exists() {
        return Finding::good(NAME, format!("{} will be made at the first start", dir.display()));
    }
    // Only trying tells: permissions, read-only mounts and full disks look alike from outside.
    match tempfile_in(dir) {
        Ok(()) => Finding::good(NAME, dir.display().to_string()),
        Err(error) => {
            Finding::bad(NAME, format!("{}: {error}", dir.display()), "choose a writable one with --data-dir")
        }
    }
}

fn tempfile_in(dir: &Path) -> std::io::Result<()> {
    let probe = dir.join(format!(".doctor-{}", std::process::id()));
    std::fs::write(&probe, b"x")?;
    std::fs::remove_file(probe)
}

pub(super) fn btrfs(config: &Config) -> Finding {
    const NAME: &str = "btrfs";
    let in_kernel = std::fs::read_to_string("/proc/filesystems").is_ok_and(|text| text.contains("btrfs"));
    let sbin =
        ["/usr/sbin", "/sbin"].iter().map(|dir| Path::new(dir).join("mkfs.btrfs")).find(|file| file.exists());
    let tool = config.program("mkfs.btrfs").or(sbin);
    match (in_kernel, tool) {
        (true, Some(_)) => Finding::good(NAME, "in the kernel, with its tools: snapshots can be instant"),
        (true, None) => Finding::weak(NAME, "no tools: snapshots are copies", "apt-get install btrfs-progs"),
        (false, _) => Finding::weak(NAME, "not in the kernel: snapshots are copies", "load the btrfs module"),
    }
}

pub(super) async fn opencode(config: &Config) -> Finding {
    const NAME: &str = "opencode";
    const INSTALL: &str = "make up installs it; elsewhere: npm install -g opencode-ai@ the version above";
    let wanted = OPENCODE.trim();
    let Some(program) = config.program("opencode") else {
        return Finding::bad(NAME, format!("not on the PATH (wanted: {wanted})"), INSTALL);
    };
    let mut command = Command::new(program);
    command.arg("--version");
    match output(command).await {
        Ok(version) if version == wanted => Finding::good(NAME, version),
        Ok(version) => Finding::weak(NAME, format!("{version}, tested with {wanted}"), INSTALL),
        Err(why) => Finding::bad(NAME, format!("does not run: {why} (wanted: {wanted})"), INSTALL),
    }
}

pub(super) fn program(config: &Config, name: &'static str) -> Finding {
    match config.program(name) {
        Some(file) => Finding::good(name, file.display().to_string()),
        None if name == "git" => Finding::bad(name, "not on the PATH", "apt-get install git"),
        None => Finding::weak(name, "not on the PATH: the agent cannot search", "apt-get install ripgrep"),
    }
}

/// What a program printed, or why it did not work.
async fn output(mut command: Command) -> Result<String, String> {
    let run = tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output());
    let output = run.await.map_err(|_| "no answer in 15 s".to_owned())?.map_err(|error| error.to_string())?;
    let text =
        |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().next().unwrap_or_default().trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}
