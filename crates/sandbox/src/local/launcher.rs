//! The short-lived process between the gateway and bubblewrap: it sets up everything that must be in place before
//! bubblewrap runs (control groups, limits, mounts, an unprivileged user) and then execs it.
//!
//! It starts with an empty environment, because the sandbox can read bubblewrap's environment as that of PID 1; and
//! bubblewrap never runs as root, because uid 1000 inside would then be root outside.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use rustix::fs::{CWD, MemfdFlags, Mode};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_change, move_mount,
    open_tree,
};
use rustix::process::{Resource, Rlimit};

use super::plan::Plan;
use super::{bwrap, seccomp};

/// Mount points for the directories that the unprivileged user must reach, in a private mount namespace: directories that
/// exist on every host and are not needed once bubblewrap runs.
const MOUNT_POINTS: [&str; 4] = ["/mnt", "/media", "/srv", "/tmp"];

/// The hidden subcommand: reads a plan and execs bubblewrap. Only returns on failure.
pub(super) fn main() -> ExitCode {
    let Err(error) = launch();
    // The prefix tells the gateway that this line is from the launcher and not from a program inside.
    let _ = writeln!(io::stderr(), "launcher: {error}");
    ExitCode::FAILURE
}

fn launch() -> io::Result<std::convert::Infallible> {
    crate::sys::close_inherited_descriptors_on_exec()?;
    // Everything that does not depend on the plan is prepared before it arrives, while the gateway is busy.
    let filters = seccomp::programs()?
        .iter()
        .map(|program| inheritable_memfd("seccomp", program))
        .collect::<io::Result<Vec<_>>>()?;
    let generated = bwrap::GENERATED
        .iter()
        .map(|(name, content)| inheritable_memfd(name, content.as_bytes()))
        .collect::<io::Result<Vec<_>>>()?;
    let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut plan = Plan::decode(&stdin)?;
    let root = rustix::process::geteuid().is_root();
    if root != plan.uid.is_some() || plan.uid == Some(0) {
        return Err(io::Error::other("refusing to run a sandbox as root"));
    }
    for group in &plan.join {
        std::fs::write(group, "0").map_err(|e| io::Error::other(format!("control group: {e}")))?;
    }
    limits(&plan)?;
    if root {
        stage(&mut plan)?;
    }
    // `dup` clears close-on-exec: the rest of our input, and the pipe for bubblewrap's report.
    let last_file = rustix::io::dup(&stdin)?;
    let info = rustix::io::dup(io::stdout())?;
    let numbers = bwrap::DescriptorNumbers {
        filters: filters.iter().map(AsRawFd::as_raw_fd).collect(),
        generated: generated.iter().map(AsRawFd::as_raw_fd).collect(),
        last_file: last_file.as_raw_fd(),
        info: info.as_raw_fd(),
    };
    let options = inheritable_memfd("options", &bwrap::options(&plan, &numbers))?;
    rustix::thread::set_no_new_privs(true)?;
    let mut command = Command::new(&plan.bwrap);
    command.args(["--args", &options.as_raw_fd().to_string(), "--"]).args(&plan.init);
    command.env_clear().current_dir("/").stdin(secret_pipe(&plan.stdin)?);
    command.stdout(Stdio::from(io::stderr().as_fd().try_clone_to_owned()?));
    if let Some(uid) = plan.uid {
        // The standard library also drops the supplementary groups.
        command.gid(uid).uid(uid);
    }
    Err(io::Error::other(format!("bubblewrap did not start: {}", command.exec())))
}

/// Clamped to this process's hard limits; raising those needs a privilege that even root may lack.
fn limits(plan: &Plan) -> io::Result<()> {
    let mut wanted = vec![
        (Resource::Nofile, plan.limits.files),
        (Resource::Core, 0),
        (Resource::Fsize, plan.limits.disk_bytes),
    ];
    if plan.uid.is_some() {
        // Each sandbox has its own user, so the limit counts its processes, and bubblewrap outside.
        wanted.push((Resource::Nproc, plan.limits.pids.saturating_add(1)));
    }
    for (resource, wanted) in wanted {
        let most = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let value = Some(wanted.min(most));
        rustix::process::setrlimit(resource, Rlimit { current: value, maximum: value })?;
    }
    Ok(())
}

/// Creates a memfd that stays open across exec.
fn inheritable_memfd(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let file = File::from(rustix::fs::memfd_create(name, MemfdFlags::empty())?);
    (&file).write_all(content)?;
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(0))?;
    Ok(file.into())
}

/// A pipe that is already filled with its entire content.
fn secret_pipe(content: &[u8]) -> io::Result<OwnedFd> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&writer, true)?;
    File::from(writer).write_all(content)?;
    Ok(reader)
}

/// Makes home, programs and root filesystem reachable for the unprivileged user, although their parent directories are
/// only accessible to root: in a private mount namespace, which ends with the sandbox.
fn stage(plan: &mut Plan) -> io::Result<()> {
    let tree = |path: &Path, recursive: OpenTreeFlags| {
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | recursive;
        open_tree(CWD, path, flags | OpenTreeFlags::AT_SYMLINK_NOFOLLOW)
            .map_err(|e| io::Error::other(format!("{}: {e}", path.display())))
    };
    crate::sys::unshare_mount_namespace()?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // Program names contain no dot, so these names cannot collide.
    let mut parts = vec![(&mut plan.home, "home.d")];
    for (name, program) in &mut plan.programs {
        *program = std::fs::canonicalize(&*program)?;
        parts.push((program, name));
    }
    if let Some(rootfs) = &mut plan.rootfs {
        *rootfs = std::fs::canonicalize(&*rootfs)?;
        parts.push((rootfs, "rootfs.d"));
    }
    let free = |stage: &&str| Path::new(stage).is_dir() && !plan.bwrap.starts_with(stage);
    let stage = MOUNT_POINTS
        .into_iter()
        .find(free)
        .ok_or_else(|| io::Error::other("none of the mount point directories exists"))?;
    let mut trees = Vec::new();
    for (path, name) in parts {
        let recursive = if name == "rootfs.d" { OpenTreeFlags::AT_RECURSIVE } else { OpenTreeFlags::empty() };
        trees.push((tree(path, recursive)?, path.is_dir(), name));
        *path = PathBuf::from(stage).join(name);
    }
    mount("tmpfs", stage, "tmpfs", MountFlags::NODEV | MountFlags::NOSUID, c"mode=0755,size=1m")?;
    for (tree, directory, name) in trees {
        let at = Path::new(stage).join(name);
        if directory {
            rustix::fs::mkdir(&at, Mode::from_raw_mode(0o755))?;
        } else {
            File::create(&at)?;
        }
        move_mount(&tree, "", CWD, &at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?;
    }
    Ok(())
}
