//! Identifies the process of an instance, so that other instances on the same machine can tell for certain that it has
//! died.
//!
//! A broken database connection or a late heartbeat does not prove a death, because the instance may still run. A
//! process of the same boot, pid namespace and user that is missing in `/proc` does.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// A process, identified for all processes of the same machine, pid namespace and user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// The boot id, pid namespace and user. Only if all three match ours can we see the process, or see that it is
    /// gone.
    world: String,
    pid: u32,
    /// The start time in ticks since boot, which distinguishes the process from a later one with the same pid.
    started: u64,
}

impl Process {
    /// This process. `None` if `/proc` does not identify it.
    pub(super) fn own() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
        let user = fs::metadata("/proc/self").ok()?.uid();
        let world = format!("{} {} {user}", boot.trim(), namespace.to_str()?);
        let pid = std::process::id();
        let (_, started) = stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        Some(Self { world, pid, started })
    }

    /// The text form that other instances read.
    pub(super) fn text(&self) -> String {
        format!("{} {} {}", self.world, self.pid, self.started)
    }

    /// Whether the process has died for certain. `false` also if this process cannot know.
    pub(super) fn knows_dead(&self, text: &str) -> bool {
        let Some(other) = Self::parse(text).filter(|other| other.world == self.world) else { return false };
        match fs::read_to_string(format!("/proc/{}/stat", other.pid)) {
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            // A zombie no longer runs.
            Ok(text) => stat(&text)
                .is_some_and(|(state, started)| started != other.started || matches!(state, 'Z' | 'X')),
        }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.rsplitn(3, ' ');
        let (started, pid) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Self { world: words.next()?.to_owned(), pid, started })
    }
}

/// Parses the state and start time from `/proc/<pid>/stat`. The program's name may contain anything, so fields are
/// counted from the last closing parenthesis.
fn stat(text: &str) -> Option<(char, u64)> {
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_processes_of_the_same_machine_and_user_can_be_known_dead() {
        let own = Process::own().unwrap();
        assert_eq!(Process::parse(&own.text()), Some(own.clone()));
        assert!(!own.knows_dead(&own.text()), "we live");
        let later = Process { started: own.started + 1, ..own.clone() };
        assert!(own.knows_dead(&later.text()), "our pid is not its any more");
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let (_, started) = stat(&fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap()).unwrap();
        let other = Process { pid: child.id(), started, ..own.clone() };
        assert!(!own.knows_dead(&other.text()), "it lives");
        child.kill().unwrap();
        // The child is a zombie until it is waited for. Either way, it is dead.
        while !own.knows_dead(&other.text()) {
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(own.knows_dead(&other.text()), "it is gone");
        let elsewhere = Process { world: own.world.replace(' ', "-"), ..other };
        assert!(!own.knows_dead(&elsewhere.text()), "of another machine we know nothing");
        assert!(!own.knows_dead("") && !own.knows_dead("a b c d"), "nor of what we cannot read");
    }
}
