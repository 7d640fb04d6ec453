//! Control groups of version 1, 2 or both: created next to the gateway's own group, limited, frozen, removed.
//!
//! A controller that the host does not offer is not an error: the watcher enforces the limit instead, and
//! [`super::LimitsReport`] says so.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::identity;
use crate::error::SandboxError;
use crate::spec::Limits;

const MAX_TRIES: u32 = 500;
const RETRY_INTERVAL: Duration = Duration::from_millis(10);
const CPU_PERIOD_US: u64 = 100_000;
/// The sibling group into which the gateway moves itself, see [`Hierarchy::enable`].
const GATEWAY_GROUP: &str = "proliferate-gateway";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Controller {
    Memory,
    Pids,
    Cpu,
    Freezer,
}

const ALL: [(Controller, &str); 4] = [
    (Controller::Memory, "memory"),
    (Controller::Pids, "pids"),
    (Controller::Cpu, "cpu"),
    (Controller::Freezer, "freezer"),
];

/// A directory in one cgroup hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hierarchy {
    directory: PathBuf,
    unified: bool,
}

/// The groups of this host below which control groups can be created, by controller.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cgroups(BTreeMap<Controller, Hierarchy>);

/// The groups of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group(BTreeMap<Controller, Hierarchy>);

impl Cgroups {
    /// Inspects the host and tries each hierarchy once, because only trying shows what is allowed.
    pub(crate) fn detect(probe: &str) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let mut found = parse(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        found.0.retain(|controller, hierarchy| hierarchy.usable(*controller, probe));
        found
    }

    pub(crate) fn has(&self, controller: Controller) -> bool {
        self.0.contains_key(&controller)
    }

    /// The groups for a sandbox, not created yet; see [`Group::make`].
    pub(crate) fn group(&self, name: &str) -> Group {
        let hierarchy =
            |base: &Hierarchy| Hierarchy { directory: base.directory.join(name), unified: base.unified };
        Group(self.0.iter().map(|(controller, base)| (*controller, hierarchy(base))).collect())
    }
}

/// Finds the hierarchy of each controller, and this process's group in it.
fn parse(mounts: &str, own: &str) -> Cgroups {
    let mut found = Cgroups::default();
    for line in mounts.lines() {
        let Some((left, right)) = line.split_once(" - ") else { continue };
        let left: Vec<_> = left.split(' ').collect();
        let right: Vec<_> = right.split(' ').collect();
        let (Some(root), Some(mounted), Some(kind), Some(options)) =
            (left.get(3), left.get(4), right.first(), right.get(2))
        else {
            continue;
        };
        for (controller, name) in ALL {
            let has = options.split(',').any(|option| option == name);
            let hierarchy = match *kind {
                "cgroup" if has => hierarchy(own, mounted, root, Some(name)),
                "cgroup2" if !found.has(controller) => hierarchy(own, mounted, root, None),
                _ => None,
            };
            if let Some(hierarchy) = hierarchy {
                found.0.insert(controller, hierarchy);
            }
        }
    }
    found
}

fn hierarchy(own: &str, mounted: &str, root: &str, controller: Option<&str>) -> Option<Hierarchy> {
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next()?, fields.next()?);
        let ours = controller.map_or(names.is_empty(), |name| names.split(',').any(|n| n == name));
        ours.then_some(path)
    })?;
    // A process that has moved itself before starts from its original group, or groups would nest deeper each time.
    let path = path.strip_suffix(GATEWAY_GROUP).unwrap_or(path);
    let below = path.strip_prefix(root).unwrap_or(path).trim_matches('/');
    Some(Hierarchy { directory: Path::new(mounted).join(below), unified: controller.is_none() })
}

impl Hierarchy {
    fn usable(&self, controller: Controller, probe: &str) -> bool {
        let directory = self.directory.join(probe);
        if self.unified && controller != Controller::Freezer && !self.enable(controller) {
            return false;
        }
        let file = match (controller, self.unified) {
            (Controller::Memory, true) => "memory.max",
            (Controller::Memory, false) => "memory.limit_in_bytes",
            (Controller::Pids, _) => "pids.max",
            (Controller::Cpu, true) => "cpu.max",
            (Controller::Cpu, false) => "cpu.cfs_quota_us",
            (Controller::Freezer, true) => "cgroup.freeze",
            (Controller::Freezer, false) => "freezer.state",
        };
        let made = fs::create_dir(&directory).is_ok();
        let has = made && directory.join(file).exists();
        let _ = fs::remove_dir(&directory);
        has
    }

    /// In version 2, a group that delegates controllers to its children must not contain processes itself, so the
    /// gateway moves into a child group if necessary.
    fn enable(&self, controller: Controller) -> bool {
        let word = ALL.iter().find(|(c, _)| *c == controller).map_or("", |(_, word)| word);
        let read = |file| fs::read_to_string(self.directory.join(file)).unwrap_or_default();
        if read("cgroup.subtree_control").split_ascii_whitespace().any(|w| w == word) {
            return true;
        }
        if !read("cgroup.controllers").split_ascii_whitespace().any(|w| w == word) {
            return false;
        }
        let enable = || fs::write(self.directory.join("cgroup.subtree_control"), format!("+{word}"));
        let Err(error) = enable() else { return true };
        if error.kind() != io::ErrorKind::ResourceBusy {
            return false;
        }
        let own_group = self.directory.join(GATEWAY_GROUP);
        let _ = fs::create_dir(&own_group);
        fs::write(own_group.join("cgroup.procs"), "0").is_ok() && enable().is_ok()
    }

    fn limit(&self, controller: Controller, limits: &Limits) -> io::Result<()> {
        let write = |file: &str, value: String| fs::write(self.directory.join(file), value);
        let quota = (limits.cpu_millis * CPU_PERIOD_US / 1000).max(1000);
        match (controller, self.unified) {
            (Controller::Memory, true) => {
                // With swap the group would only get slow instead of failing; hosts without swap accounting lack
                // the file.
                let _ = write("memory.swap.max", "0".into());
                write("memory.max", limits.memory_bytes.to_string())
            }
            (Controller::Memory, false) => {
                write("memory.limit_in_bytes", limits.memory_bytes.to_string())?;
                let _ = write("memory.memsw.limit_in_bytes", limits.memory_bytes.to_string());
                // Socket buffers are accounted separately, and without a limit not at all.
                let _ = write("memory.kmem.tcp.limit_in_bytes", limits.memory_bytes.to_string());
                Ok(())
            }
            (Controller::Pids, _) => write("pids.max", limits.pids.to_string()),
            (Controller::Cpu, true) => write("cpu.max", format!("{quota} {CPU_PERIOD_US}")),
            (Controller::Cpu, false) => {
                write("cpu.cfs_period_us", CPU_PERIOD_US.to_string())?;
                write("cpu.cfs_quota_us", quota.to_string())
            }
            (Controller::Freezer, _) => Ok(()),
        }
    }

    /// Moving an entire process makes the kernel block all forks of the host first, which takes longer than the
    /// rest of a start. A thread that moves itself does not, and version 1 has the file `tasks` for that.
    fn join_file(&self) -> PathBuf {
        self.directory.join(if self.unified { "cgroup.procs" } else { "tasks" })
    }

    fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.directory.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Group {
    pub(crate) fn has(&self, controller: Controller) -> bool {
        self.0.contains_key(&controller)
    }

    /// Creates the groups and sets their limits.
    pub(crate) fn make(&self, limits: &Limits) -> Result<(), SandboxError> {
        for hierarchy in self.0.values() {
            match fs::create_dir(&hierarchy.directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(SandboxError::host("create a control group")(error));
                }
                _ => {}
            }
        }
        for (controller, hierarchy) in &self.0 {
            if let Err(error) = hierarchy.limit(*controller, limits) {
                // A parent with a lower limit refuses a higher one, but enforces its own anyway.
                tracing::warn!(?controller, kind = ?error.kind(), "could not set a limit of a control group");
            }
        }
        Ok(())
    }

    /// The files to which a single-threaded process writes `0` to join the groups.
    pub(crate) fn join_files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = self.0.values().map(Hierarchy::join_file).collect();
        files.sort();
        files.dedup();
        files
    }

    /// The processes in the groups; `None` if the host has no groups.
    pub(crate) fn pids(&self) -> Option<Vec<i32>> {
        self.0.values().next().map(Hierarchy::pids)
    }

    /// The memory in bytes that counts against the limit; `None` if no control group counts it.
    pub(crate) fn memory(&self) -> Option<u64> {
        let hierarchy = self.0.get(&Controller::Memory)?;
        let file = if hierarchy.unified { "memory.current" } else { "memory.usage_in_bytes" };
        fs::read_to_string(hierarchy.directory.join(file)).ok()?.trim().parse().ok()
    }

    /// Whether all processes are frozen; `None` if the host cannot freeze them.
    pub(crate) fn frozen(&self) -> Option<bool> {
        let hierarchy = self.0.get(&Controller::Freezer)?;
        let read = |file| fs::read_to_string(hierarchy.directory.join(file)).unwrap_or_default();
        Some(if hierarchy.unified {
            read("cgroup.events").lines().any(|line| line == "frozen 1")
        } else {
            read("freezer.state").trim() == "FROZEN"
        })
    }

    /// Freezes or thaws all processes and waits for it, blocking this thread.
    pub(crate) fn freeze(&self, stop: bool) -> Result<(), SandboxError> {
        let Some(hierarchy) = self.0.get(&Controller::Freezer) else { return Ok(()) };
        let (file, word) = match (hierarchy.unified, stop) {
            (true, true) => ("cgroup.freeze", "1"),
            (true, false) => ("cgroup.freeze", "0"),
            (false, true) => ("freezer.state", "FROZEN"),
            (false, false) => ("freezer.state", "THAWED"),
        };
        let host = SandboxError::host("freeze or thaw a control group");
        for _ in 0..MAX_TRIES {
            // Version 1 may stay at FREEZING until it is written again.
            fs::write(hierarchy.directory.join(file), word).map_err(&host)?;
            if self.frozen() == Some(stop) {
                return Ok(());
            }
            sleep(RETRY_INTERVAL);
        }
        if stop {
            self.freeze(false)?;
        }
        Err(SandboxError::Timeout("freezing or thawing"))
    }

    /// Kills everything in the groups and removes them, blocking this thread.
    pub(crate) fn remove(&self) -> Result<(), SandboxError> {
        for _ in 0..MAX_TRIES {
            let left: Vec<_> = self.0.values().filter(|hierarchy| hierarchy.directory.exists()).collect();
            if left.is_empty() {
                return Ok(());
            }
            for hierarchy in left {
                if fs::remove_dir(&hierarchy.directory).is_err() {
                    // Frozen processes do not die before they are thawed.
                    let _ = self.freeze(false);
                    for handle in hierarchy.pids().into_iter().filter_map(|pid| identity::open(pid).ok()) {
                        identity::kill(&handle);
                    }
                }
            }
            sleep(RETRY_INTERVAL);
        }
        Err(SandboxError::Timeout("removing its control groups"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_hosts_use_version_1_and_nested_paths() {
        let mounts = "30 20 0:1 / /c/cpu rw - cgroup cgroup rw,cpu\n31 20 0:2 /box /c/memory rw - cgroup x rw,memory\n\
            32 20 0:3 / /c/unified rw - cgroup2 cgroup2 rw\ngarbage\n";
        let own = "4:memory:/box/gateway\n1:cpu:/\n0::/slice/proliferate-gateway\n";
        let found = parse(mounts, own);
        let directory =
            |controller| found.0.get(&controller).map(|p| (p.directory.to_str().unwrap(), p.unified));
        assert_eq!(directory(Controller::Memory), Some(("/c/memory/gateway", false)));
        assert_eq!(directory(Controller::Cpu), Some(("/c/cpu/", false)));
        assert_eq!(directory(Controller::Pids), Some(("/c/unified/slice", true)));
        assert_eq!(directory(Controller::Freezer), Some(("/c/unified/slice", true)));
        let joined = Group(found.0).join_files();
        let joined: Vec<_> = joined.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(joined, ["/c/cpu/tasks", "/c/memory/gateway/tasks", "/c/unified/slice/cgroup.procs"]);
    }

    #[test]
    fn limits_are_written_in_the_format_of_version_2() {
        let dir = tempfile::tempdir().unwrap();
        let place = Hierarchy { directory: dir.path().to_owned(), unified: true };
        let limits = Limits { cpu_millis: 500, ..Limits::default() };
        for (controller, _) in ALL {
            place.limit(controller, &limits).unwrap();
        }
        let read = |file| fs::read_to_string(dir.path().join(file)).unwrap();
        assert_eq!(read("memory.max"), (2u64 << 30).to_string());
        assert_eq!(read("pids.max"), "512");
        assert_eq!(read("cpu.max"), "50000 100000");
    }

    #[test]
    fn version_1_limits_memory_swap_and_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let place = Hierarchy { directory: dir.path().to_owned(), unified: false };
        place.limit(Controller::Memory, &Limits::default()).unwrap();
        for file in ["limit_in_bytes", "memsw.limit_in_bytes", "kmem.tcp.limit_in_bytes"] {
            let written = fs::read_to_string(dir.path().join(format!("memory.{file}"))).unwrap();
            assert_eq!(written, (2u64 << 30).to_string(), "{file}");
        }
    }
}
