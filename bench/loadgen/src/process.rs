//! Reads /proc: CPU and memory of a process tree, and CPU of the whole machine.

use std::collections::HashMap;
use std::fs;

#[derive(Clone, Copy, Default)]
pub struct Process {
    pub cpu_s: f64,
    pub rss_kib: u64,
}

fn system_value(name: libc::c_int) -> u64 {
    // SAFETY: sysconf accesses no memory of ours; an unknown name gives -1, which becomes 0.
    u64::try_from(unsafe { libc::sysconf(name) }).unwrap_or_default()
}

/// The parent's id, and the process itself.
fn read(pid: i32) -> Option<(i32, Process)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain spaces and parentheses, so count the fields from its closing parenthesis.
    let fields: Vec<&str> = stat[stat.rfind(')')? + 2..].split(' ').collect();
    let parent: i32 = fields[1].parse().ok()?;
    let ticks: f64 = fields[11].parse::<f64>().ok()? + fields[12].parse::<f64>().ok()?;
    let pages: u64 = fields[21].parse().ok()?;
    let cpu_s = ticks / system_value(libc::_SC_CLK_TCK) as f64;
    Some((parent, Process { cpu_s, rss_kib: pages * system_value(libc::_SC_PAGESIZE) / 1024 }))
}

fn all() -> HashMap<i32, (i32, Process)> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.file_name().to_string_lossy().parse().ok()?;
            Some((pid, read(pid)?))
        })
        .collect()
}

/// The sum of CPU seconds and RSS over `root` and all its descendants.
pub fn tree(root: i32) -> Process {
    let all = all();
    let mut sum = Process::default();
    for (&pid, &(_, process)) in &all {
        let mut ancestor = pid;
        loop {
            if ancestor == root {
                sum.cpu_s += process.cpu_s;
                sum.rss_kib += process.rss_kib;
                break;
            }
            match all.get(&ancestor) {
                Some(&(parent, _)) if parent > 0 && parent != ancestor => ancestor = parent,
                _ => break,
            }
        }
    }
    sum
}

/// The peak RSS of a process since its start.
pub fn peak_kib(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

/// The memory that the kernel holds for all TCP sockets of this network namespace.
pub fn tcp_kib() -> u64 {
    let sockets = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    let tcp = sockets.lines().find_map(|line| line.strip_prefix("TCP:")).unwrap_or_default();
    let pages: u64 = tcp
        .split_whitespace()
        .skip_while(|word| *word != "mem")
        .nth(1)
        .map_or(0, |pages| pages.parse().unwrap_or_default());
    pages * system_value(libc::_SC_PAGESIZE) / 1024
}

/// CPU seconds of all processes of the machine, plus steal time of the hypervisor. The sum over processes is
/// exact; the busy time in /proc/stat is sampled by ticks and wrong for short bursts.
pub fn machine_cpu_s() -> f64 {
    let used: f64 = all().values().map(|(_, process)| process.cpu_s).sum();
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let steal: f64 = stat.split_whitespace().nth(8).and_then(|ticks| ticks.parse().ok()).unwrap_or(0.0);
    used + steal / system_value(libc::_SC_CLK_TCK) as f64
}
