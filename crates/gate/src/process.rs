//! Which process an instance is, so that others on the same machine can tell for certain that it has died.
//!
//! A connection to the database may break, and a heartbeat may be late, while an instance goes on: neither proves a
//! death. A process of the same boot, pid namespace and user that is not in `/proc` does.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

/// A process as every process of its machine, pid namespace and user sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Process {
    /// Boot id, pid namespace and user: only where all are ours can we see it, or see that it is gone.
    world: String,
    pid: u32,
    /// In ticks since the boot: tells it from a later process with its pid.
    started: u64,
}

impl Process {
    /// This process; none where the machine does not say.
    pub(super) fn own() -> Option<Self> {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let namespace = fs::read_link("/proc/self/ns/pid").ok()?;
        let user = fs::metadata("/proc/self").ok()?.uid();
        let world = format!("{} {} {user}", boot.trim(), namespace.to_str()?);
        let pid = std::process::id();
        let (_, started) = stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        Some(Self { world, pid, started })
    }

    /// The text that other instances read.
    pub(super) fn text(&self) -> String {
        format!("{} {} {}", self.world, self.pid, self.started)
    }

    /// Whether the process of a text has died, for certain; `false` also where that cannot be told from here.
    pub(super) fn knows_dead(&self, text: &str) -> bool {
        let Some(other) = Self::parse(text).filter(|other| other.world == self.world) else { return false };
        match fs::read_to_string(format!("/proc/{}/stat", other.pid)) {
            Err(error) => error.kind() == std::io::ErrorKind::NotFound,
            // A zombie runs no more.
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

/// State and start time of `/proc/<pid>/stat`. The name of the program may hold anything, so fields are counted from its
/// last bracket.
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
    fn only_a_process_that_we_would_see_is_known_to_be_dead() {
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
        // Until it is waited for it is a zombie; whichever it is by now, it is dead.
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
