//! Finds all descendants of a program, to signal and kill them together.
//!
//! A process belongs to the program if it is in the program's group or session, descends from such a process, or
//! has the program's mark in its environment. The mark finds processes that left the group with `setsid` and lost
//! their parent. A process that also clears its environment is not found; it lives until the sandbox ends.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::time::sleep;

/// The environment variable that contains the mark.
pub(super) const MARK_VARIABLE: &str = "SANDBOXD_RUN";
const CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// A fork bomb may need several rounds; each kills every process that it finds.
const MAX_ROUNDS: usize = 50;

#[derive(Clone)]
pub(super) struct ProcessTree {
    pub(super) leader: Pid,
    /// `SANDBOXD_RUN=…`, with its terminating NUL.
    mark: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MemberFilter {
    All,
    Marked,
}

struct Process {
    parent: i32,
    group: i32,
    session: i32,
    dead: bool,
}

impl ProcessTree {
    pub(super) fn new(leader: Pid, mark: &str) -> Self {
        Self { leader, mark: format!("{MARK_VARIABLE}={mark}\0").into_bytes() }
    }

    /// Signals the leader's group, as a terminal would.
    pub(super) fn signal(&self, signal: Signal) {
        let _ = kill_process_group(self.leader, signal);
    }

    /// The group gets the signal at once, so that no shell survives to report the death of its child.
    fn signal_all(&self, signal: Signal) -> usize {
        let members = self.members(MemberFilter::All);
        if !members.is_empty() {
            self.signal(signal);
        }
        for (pid, _) in members.iter().filter(|(_, in_group)| !in_group) {
            let _ = kill_process(*pid, signal);
        }
        members.len()
    }

    /// Sends SIGTERM to all, and SIGKILL to those that still run after `grace`.
    pub(super) async fn end(&self, grace: Duration) {
        if self.signal_all(Signal::TERM) == 0 {
            return;
        }
        let mut waited = Duration::ZERO;
        while waited < grace {
            sleep(CHECK_INTERVAL).await;
            waited += CHECK_INTERVAL;
            if self.members(MemberFilter::All).is_empty() {
                return;
            }
        }
        self.kill().await;
    }

    pub(super) async fn kill(&self) {
        for _ in 0..MAX_ROUNDS {
            if self.signal_all(Signal::KILL) == 0 {
                return;
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// Kills the processes left behind by a leader that was already reaped. Its pid may have been reused, so only
    /// the mark counts.
    pub(super) async fn kill_leftovers(&self) {
        for _ in 0..MAX_ROUNDS {
            let rest = self.members(MemberFilter::Marked);
            if rest.is_empty() {
                return;
            }
            for (pid, _) in rest {
                let _ = kill_process(pid, Signal::KILL);
            }
            sleep(CHECK_INTERVAL).await;
        }
    }

    /// All running members, and whether each is in the leader's group; zombies do not count.
    fn members(&self, filter: MemberFilter) -> Vec<(Pid, bool)> {
        let processes = processes();
        let leader = self.leader.as_raw_nonzero().get();
        let ours = std::process::id().cast_signed();
        let named = |pid: i32, process: &Process| [pid, process.group, process.session].contains(&leader);
        let mut found: HashSet<i32> = processes
            .iter()
            .filter(|(pid, process)| {
                (filter == MemberFilter::All && named(**pid, process)) || self.marked(**pid)
            })
            .map(|(pid, _)| *pid)
            .collect();
        loop {
            let is_new_child =
                |pid: &i32, process: &Process| !found.contains(pid) && found.contains(&process.parent);
            let children: Vec<i32> = processes
                .iter()
                .filter(|(pid, process)| is_new_child(pid, process))
                .map(|(pid, _)| *pid)
                .collect();
            if children.is_empty() {
                break;
            }
            found.extend(children);
        }
        let living = |pid: i32| processes.get(&pid).filter(|process| pid != ours && !process.dead);
        let member = |pid: i32| Some((Pid::from_raw(pid)?, living(pid)?.group == leader));
        found.into_iter().filter_map(member).collect()
    }

    fn marked(&self, pid: i32) -> bool {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|environ| environ.windows(self.mark.len()).any(|part| part == self.mark))
    }
}

fn processes() -> HashMap<i32, Process> {
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter_map(|pid: i32| Some((pid, process(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
        .collect()
}

/// Parses `/proc/PID/stat`; a program's name may contain anything, so parsing starts after the last `)`.
fn process(stat: &str) -> Option<Process> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let dead = matches!(fields.next()?, "Z" | "X");
    let mut number = || fields.next()?.parse().ok();
    Some(Process { parent: number()?, group: number()?, session: number()?, dead })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_name_with_parentheses_is_parsed() {
        let read = process("12 (a) Z 1 (b) S 7 8 9 0 -1").unwrap();
        assert_eq!((read.parent, read.group, read.session, read.dead), (7, 8, 9, false));
        assert!(process("12 (x) Z 1 2 3").unwrap().dead);
        assert!(process("").is_none() && process("1 (x) S 1").is_none());
    }
}
