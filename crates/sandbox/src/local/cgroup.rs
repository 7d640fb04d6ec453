//! Control groups of version 1, 2 or both at once: made beside the gateway's own group, limited, frozen, removed.
//!
//! What the host does not give is not an error; the watcher then counts, and [`super::LimitsReport`] says so.

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

const PATIENCE: u32 = 500;
const STEP: Duration = Duration::from_millis(10);
const PERIOD: u64 = 100_000;
/// The group beside the sandboxes' into which the gateway steps, see [`Place::enable`].
const ASIDE: &str = "proliferate-gateway";

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

/// A folder of one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Place {
    folder: PathBuf,
    unified: bool,
}

/// Where groups can be made on this host.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cgroups(BTreeMap<Controller, Place>);

/// The groups of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group(BTreeMap<Controller, Place>);

impl Cgroups {
    /// Looks at the host and tries each place once, as only trying tells what is allowed.
    pub(crate) fn detect(probe: &str) -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let mut found = parse(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        found.0.retain(|controller, place| place.usable(*controller, probe));
        found
    }

    pub(crate) fn has(&self, controller: Controller) -> bool {
        self.0.contains_key(&controller)
    }

    /// The groups that a sandbox is to have; see [`Group::make`].
    pub(crate) fn group(&self, name: &str) -> Group {
        let place = |base: &Place| Place { folder: base.folder.join(name), unified: base.unified };
        Group(self.0.iter().map(|(controller, base)| (*controller, place(base))).collect())
    }
}

/// Finds, for each controller, the hierarchy it is in and the group that we are in there.
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
            let place = match *kind {
                "cgroup" if has => place(own, mounted, root, Some(name)),
                "cgroup2" if !found.has(controller) => place(own, mounted, root, None),
                _ => None,
            };
            if let Some(place) = place {
                found.0.insert(controller, place);
            }
        }
    }
    found
}

fn place(own: &str, mounted: &str, root: &str, controller: Option<&str>) -> Option<Place> {
    let path = own.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (names, path) = (fields.next()?, fields.next()?);
        let ours = controller.map_or(names.is_empty(), |name| names.split(',').any(|n| n == name));
        ours.then_some(path)
    })?;
    // Who has stepped aside before looks from the same place again, or groups would nest deeper each time.
    let path = path.strip_suffix(ASIDE).unwrap_or(path);
    let below = path.strip_prefix(root).unwrap_or(path).trim_matches('/');
    Some(Place { folder: Path::new(mounted).join(below), unified: controller.is_none() })
}

impl Place {
    fn usable(&self, controller: Controller, probe: &str) -> bool {
        let folder = self.folder.join(probe);
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
        let made = fs::create_dir(&folder).is_ok();
        let has = made && folder.join(file).exists();
        let _ = fs::remove_dir(&folder);
        has
    }

    /// In version 2 a group that hands controllers to its children may hold no process itself, so the gateway
    /// steps into a group of its own if it stands in the way.
    fn enable(&self, controller: Controller) -> bool {
        let word = ALL.iter().find(|(c, _)| *c == controller).map_or("", |(_, word)| word);
        let read = |file| fs::read_to_string(self.folder.join(file)).unwrap_or_default();
        if read("cgroup.subtree_control").split_ascii_whitespace().any(|w| w == word) {
            return true;
        }
        if !read("cgroup.controllers").split_ascii_whitespace().any(|w| w == word) {
            return false;
        }
        let enable = || fs::write(self.folder.join("cgroup.subtree_control"), format!("+{word}"));
        let Err(error) = enable() else { return true };
        if error.kind() != io::ErrorKind::ResourceBusy {
            return false;
        }
        let aside = self.folder.join(ASIDE);
        let _ = fs::create_dir(&aside);
        fs::write(aside.join("cgroup.procs"), "0").is_ok() && enable().is_ok()
    }

    fn limit(&self, controller: Controller, limits: &Limits) -> io::Result<()> {
        let write = |file: &str, value: String| fs::write(self.folder.join(file), value);
        let quota = (limits.cpu_millis * PERIOD / 1000).max(1000);
        match (controller, self.unified) {
            (Controller::Memory, true) => {
                // Without swap the group would otherwise only get slow; where there is none the file is absent.
                let _ = write("memory.swap.max", "0".into());
                write("memory.max", limits.memory_bytes.to_string())
            }
            (Controller::Memory, false) => {
                write("memory.limit_in_bytes", limits.memory_bytes.to_string())?;
                let _ = write("memory.memsw.limit_in_bytes", limits.memory_bytes.to_string());
                // What waits in sockets is counted apart, and without a limit not at all.
                let _ = write("memory.kmem.tcp.limit_in_bytes", limits.memory_bytes.to_string());
                Ok(())
            }
            (Controller::Pids, _) => write("pids.max", limits.pids.to_string()),
            (Controller::Cpu, true) => write("cpu.max", format!("{quota} {PERIOD}")),
            (Controller::Cpu, false) => {
                write("cpu.cfs_period_us", PERIOD.to_string())?;
                write("cpu.cfs_quota_us", quota.to_string())
            }
            (Controller::Freezer, _) => Ok(()),
        }
    }

    /// Moving a whole process makes the kernel hold up all forks of the host first, which takes longer than the rest of
    /// a start. A thread that moves itself does not, and version 1 has a file for that.
    fn join_file(&self) -> PathBuf {
        self.folder.join(if self.unified { "cgroup.procs" } else { "tasks" })
    }

    fn pids(&self) -> Vec<i32> {
        let text = fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}

impl Group {
    pub(crate) fn has(&self, controller: Controller) -> bool {
        self.0.contains_key(&controller)
    }

    /// Makes them, empty and limited.
    pub(crate) fn make(&self, limits: &Limits) -> Result<(), SandboxError> {
        for place in self.0.values() {
            match fs::create_dir(&place.folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(SandboxError::host("make a control group")(error));
                }
                _ => {}
            }
        }
        for (controller, place) in &self.0 {
            if let Err(error) = place.limit(*controller, limits) {
                // A parent with a lower limit refuses a higher one and then holds anyway.
                tracing::warn!(?controller, kind = ?error.kind(), "the host refused a limit of a control group");
            }
        }
        Ok(())
    }

    /// The files by which a process with one thread joins, by writing `0`.
    pub(crate) fn join_files(&self) -> Vec<PathBuf> {
        let mut files: Vec<_> = self.0.values().map(Place::join_file).collect();
        files.sort();
        files.dedup();
        files
    }

    /// Its processes; `None` where the host has no groups.
    pub(crate) fn pids(&self) -> Option<Vec<i32>> {
        self.0.values().next().map(Place::pids)
    }

    /// Bytes of memory that count against the limit; `None` where no control group counts them.
    pub(crate) fn memory(&self) -> Option<u64> {
        let place = self.0.get(&Controller::Memory)?;
        let file = if place.unified { "memory.current" } else { "memory.usage_in_bytes" };
        fs::read_to_string(place.folder.join(file)).ok()?.trim().parse().ok()
    }

    /// Whether all processes are stopped; `None` where the host cannot stop them.
    pub(crate) fn frozen(&self) -> Option<bool> {
        let place = self.0.get(&Controller::Freezer)?;
        let read = |file| fs::read_to_string(place.folder.join(file)).unwrap_or_default();
        Some(if place.unified {
            read("cgroup.events").lines().any(|line| line == "frozen 1")
        } else {
            read("freezer.state").trim() == "FROZEN"
        })
    }

    /// Stops or continues all processes and waits, blocking this thread, until it is so.
    pub(crate) fn freeze(&self, stop: bool) -> Result<(), SandboxError> {
        let Some(place) = self.0.get(&Controller::Freezer) else { return Ok(()) };
        let (file, word) = match (place.unified, stop) {
            (true, true) => ("cgroup.freeze", "1"),
            (true, false) => ("cgroup.freeze", "0"),
            (false, true) => ("freezer.state", "FROZEN"),
            (false, false) => ("freezer.state", "THAWED"),
        };
        let host = SandboxError::host("stop or continue a control group");
        for _ in 0..PATIENCE {
            // Version 1 may stay at FREEZING until it is asked again.
            fs::write(place.folder.join(file), word).map_err(&host)?;
            if self.frozen() == Some(stop) {
                return Ok(());
            }
            sleep(STEP);
        }
        if stop {
            self.freeze(false)?;
        }
        Err(SandboxError::Timeout("to stop or continue"))
    }

    /// Ends whatever is still in the groups and removes them, blocking this thread.
    pub(crate) fn remove(&self) -> Result<(), SandboxError> {
        for _ in 0..PATIENCE {
            let left: Vec<_> = self.0.values().filter(|place| place.folder.exists()).collect();
            if left.is_empty() {
                return Ok(());
            }
            for place in left {
                if fs::remove_dir(&place.folder).is_err() {
                    // Stopped processes do not die before they go on.
                    let _ = self.freeze(false);
                    for handle in place.pids().into_iter().filter_map(|pid| identity::open(pid).ok()) {
                        identity::kill(&handle);
                    }
                }
            }
            sleep(STEP);
        }
        Err(SandboxError::Timeout("to leave its control groups"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hybrid_hosts_keep_version_one_and_nested_paths() {
        let mounts = "30 20 0:1 / /c/cpu rw - cgroup cgroup rw,cpu\n31 20 0:2 /box /c/memory rw - cgroup x rw,memory\n\
            32 20 0:3 / /c/unified rw - cgroup2 cgroup2 rw\ngarbage\n";
        let own = "4:memory:/box/gateway\n1:cpu:/\n0::/slice/proliferate-gateway\n";
        let found = parse(mounts, own);
        let folder = |controller| found.0.get(&controller).map(|p| (p.folder.to_str().unwrap(), p.unified));
        assert_eq!(folder(Controller::Memory), Some(("/c/memory/gateway", false)));
        assert_eq!(folder(Controller::Cpu), Some(("/c/cpu/", false)));
        assert_eq!(folder(Controller::Pids), Some(("/c/unified/slice", true)));
        assert_eq!(folder(Controller::Freezer), Some(("/c/unified/slice", true)));
        let joined = Group(found.0).join_files();
        let joined: Vec<_> = joined.iter().map(|path| path.to_str().unwrap()).collect();
        assert_eq!(joined, ["/c/cpu/tasks", "/c/memory/gateway/tasks", "/c/unified/slice/cgroup.procs"]);
    }

    #[test]
    fn limits_are_written_as_version_two_wants_them() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { folder: dir.path().to_owned(), unified: true };
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
    fn version_one_limits_memory_swap_and_sockets() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place { folder: dir.path().to_owned(), unified: false };
        place.limit(Controller::Memory, &Limits::default()).unwrap();
        for file in ["limit_in_bytes", "memsw.limit_in_bytes", "kmem.tcp.limit_in_bytes"] {
            let written = fs::read_to_string(dir.path().join(format!("memory.{file}"))).unwrap();
            assert_eq!(written, (2u64 << 30).to_string(), "{file}");
        }
    }
}
