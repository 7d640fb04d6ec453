//! CPU and memory of the processes under test during one run, and of all other processes, which disturb it.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::clock::{now_ns, secs_since};
use crate::process::{self, Process};

pub struct Usage {
    pub watched: Vec<(String, i32)>,
    at: u64,
    start: Vec<Process>,
    own: Process,
    machine: f64,
}

fn own_pid() -> i32 {
    std::process::id() as i32
}

impl Usage {
    /// Starts a measurement of the processes in `name=pid,...`.
    pub fn begin(pids: &str) -> Self {
        let watched: Vec<(String, i32)> = pids
            .split(',')
            .filter_map(|pair| {
                let (name, pid) = pair.split_once('=')?;
                Some((name.to_owned(), pid.trim().parse().ok()?))
            })
            .collect();
        let start = watched.iter().map(|(_, pid)| process::tree(*pid)).collect();
        Self {
            watched,
            at: now_ns(),
            start,
            own: process::tree(own_pid()),
            machine: process::machine_cpu_s(),
        }
    }

    pub fn rss_mib_at_start(&self) -> Vec<u64> {
        self.start.iter().map(|process| process.rss_kib / 1024).collect()
    }

    pub fn rss_kib_now(&self) -> Vec<u64> {
        self.watched.iter().map(|(_, pid)| process::tree(*pid).rss_kib).collect()
    }

    pub fn report(&self) -> Value {
        let span = secs_since(self.at);
        let busy = process::machine_cpu_s() - self.machine;
        let mut report = Map::new();
        let mut known = 0.0;
        let mut put = |name: &str, pid: i32, before: Process, now: Process| {
            let cpu_s = now.cpu_s - before.cpu_s;
            known += cpu_s.max(0.0);
            let entry = json!({"cpu_s": (cpu_s * 100.0).round() / 100.0,
                "cpu_pct": (cpu_s / span * 100.0).round(), "rss_mib": now.rss_kib / 1024,
                "peak_mib": process::peak_kib(pid) / 1024});
            report.insert(name.to_owned(), entry);
        };
        for ((name, pid), before) in self.watched.iter().zip(&self.start) {
            put(name, *pid, *before, process::tree(*pid));
        }
        put("loadgen", own_pid(), self.own, process::tree(own_pid()));
        // Percent of one core, including steal time.
        let other = ((busy - known).max(0.0) / span * 100.0).round();
        report.insert("other_cpu_pct".to_owned(), json!(other));
        Value::Object(report)
    }
}

/// Waits until processes other than `pids` use less than `percent` of a core, for at most `max_secs`.
pub async fn wait_quiet(pids: &str, percent: f64, max_secs: u64) {
    if percent <= 0.0 {
        return;
    }
    for _ in 0..max_secs {
        let usage = Usage::begin(pids);
        tokio::time::sleep(Duration::from_secs(1)).await;
        if usage.report()["other_cpu_pct"].as_f64().unwrap_or(0.0) < percent {
            return;
        }
    }
}
