//! Records the egress of a sandbox that was run by hand: one line of JSON per connection attempt, in a size-limited
//! file in the data dir, and a summary table at the end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use egress::{Record, RecordItem, RecordQueue, Records, Verdict, record_queue};
use gateway::runtime::outcome_of;
use proto::iso;
use rustix::fs::FlockOperation;
use sandbox::SandboxId;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::output::{Output, note};

/// The log file for all sandboxes run by hand, and its rotated predecessor.
const LOG_FILE: &str = "egress-by-hand.jsonl";
const ROTATED_LOG_FILE: &str = "egress-by-hand.1.jsonl";
const MOST_BYTES: u64 = 8 * 1024 * 1024;
/// The capacity of the record queue, the same as that of a gateway's database writer.
const QUEUE_CAPACITY: usize = 4096;
/// The maximum number of hosts counted separately, since the sandbox controls how many there are, and the number
/// shown.
const MOST_HOSTS: usize = 1000;
const MAX_LISTED_HOSTS: usize = 20;
/// How long to wait for a sandbox's connections to close after it has ended.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The egress recorder of one sandbox run.
pub(super) struct EgressSummary {
    task: JoinHandle<Totals>,
    file: PathBuf,
}

impl EgressSummary {
    pub(super) fn of(id: &SandboxId, data_dir: &Path) -> (RecordQueue, Self) {
        let (queue, records) = record_queue(QUEUE_CAPACITY);
        let log = Log { directory: data_dir.to_owned(), open: None };
        (queue, Self { task: tokio::spawn(collect(records, id.clone(), log)), file: data_dir.join(LOG_FILE) })
    }

    /// Prints the totals. Waits for the recorder, which ends after the sandbox and its proxy.
    pub(super) async fn show(self, out: Output) {
        let Ok(Ok(sums)) = tokio::time::timeout(CLOSE_TIMEOUT, self.task).await else {
            return note("the egress of the sandbox could not be summarized");
        };
        let file = self.file.display();
        if sums.missing > 0 {
            note(&format!("{} attempts are missing in {file}: {}", sums.missing, sums.why));
        }
        let hosts: Vec<_> = sums.hosts.iter().collect();
        let value = |((host, verdict), sum): &(&(String, &str), &HostTotals)| {
            json!({ "host": host, "verdict": verdict, "connections": sum.connections, "bytesUp": sum.up,
                "bytesDown": sum.down })
        };
        let row = |((host, verdict), sum): &(&(String, &str), &HostTotals)| {
            let numbers = [sum.connections, sum.up, sum.down].map(|number| number.to_string());
            [host.clone(), (*verdict).to_owned()].into_iter().chain(numbers).collect()
        };
        let columns = ["HOST", "VERDICT", "CONNECTIONS", "UP", "DOWN"];
        let rows: Vec<_> = hosts.iter().take(MAX_LISTED_HOSTS).map(row).collect();
        if !rows.is_empty() {
            out.list_on_stderr(hosts.iter().map(value).collect(), &columns, &rows);
        }
        if hosts.len() > MAX_LISTED_HOSTS {
            note(&format!("{} more hosts are in {file}", hosts.len() - MAX_LISTED_HOSTS));
        }
    }
}

#[derive(Default)]
struct Totals {
    hosts: BTreeMap<(String, &'static str), HostTotals>,
    /// The number of attempts that could not be written to the file, and the reason.
    missing: u64,
    why: String,
}

#[derive(Default)]
struct HostTotals {
    connections: u64,
    up: u64,
    down: u64,
}

async fn collect(mut records: Records, id: SandboxId, mut log: Log) -> Totals {
    let mut sums = Totals::default();
    while let Some(news) = records.next().await {
        let missing = match news {
            RecordItem::Record(record) => {
                sums.add(&record);
                log.write(&line(&id, &record)).err().map(|error| (1, error.to_string()))
            }
            RecordItem::Lost(lost) => Some((lost, "too many at once".to_owned())),
        };
        if let Some((missing, why)) = missing {
            (sums.missing, sums.why) = (sums.missing + missing, why);
        }
    }
    sums
}

impl Totals {
    fn add(&mut self, record: &Record) {
        let verdict = if matches!(record.verdict, Verdict::Allowed(_)) { "allowed" } else { "refused" };
        let host = record.target.as_ref().map_or_else(|| "—".to_owned(), |target| target.host.to_string());
        let full = self.hosts.len() >= MOST_HOSTS && !self.hosts.contains_key(&(host.clone(), verdict));
        let host = if full { "others".to_owned() } else { host };
        let sum = self.hosts.entry((host, verdict)).or_default();
        sum.connections += 1;
        sum.up = sum.up.saturating_add(record.bytes_up);
        sum.down = sum.down.saturating_add(record.bytes_down);
    }
}

/// Formats a record with the same fields as `egress log --json`.
fn line(id: &SandboxId, record: &Record) -> String {
    let (outcome, reason) = outcome_of(record);
    let target = record.target.as_ref();
    let value = json!({ "startedAt": iso::text(&record.started), "sandboxId": id.as_str(),
        "host": target.map(|target| target.host.to_string()), "port": target.map(|target| target.port),
        "address": record.address.map(|address| address.to_string()), "outcome": outcome.as_str(), "reason": reason, "bytesUp": record.bytes_up, "bytesDown": record.bytes_down,
        "durationMs": record.duration.as_millis() });
    format!("{value}\n")
}

/// The log file. Other processes append to it as well.
struct Log {
    directory: PathBuf,
    open: Option<File>,
}

impl Log {
    fn write(&mut self, line: &str) -> io::Result<()> {
        let mut file = match self.open.take() {
            Some(file) => file,
            None => self.open()?,
        };
        if file.metadata()?.len() > MOST_BYTES {
            self.archive(&file)?;
            file = self.open()?;
        }
        // Write the line with one call, so that lines from several processes do not interleave.
        file.write_all(line.as_bytes())?;
        self.open = Some(file);
        Ok(())
    }

    fn open(&self) -> io::Result<File> {
        let mut options = fs::OpenOptions::new();
        options.append(true).create(true).mode(0o600).open(self.directory.join(LOG_FILE))
    }

    /// Rotates a full file. The lock and the inode check ensure that only the first process to find it full renames
    /// it.
    fn archive(&self, full: &File) -> io::Result<()> {
        rustix::fs::flock(full, FlockOperation::LockExclusive)?;
        let named = self.directory.join(LOG_FILE);
        if fs::metadata(&named).is_ok_and(|now| now.ino() == full.metadata().map_or(0, |full| full.ino())) {
            fs::rename(named, self.directory.join(ROTATED_LOG_FILE))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_is_bounded_for_several_writers() {
        let dir = tempfile::tempdir().unwrap();
        let new = || Log { directory: dir.path().to_owned(), open: None };
        let (mut one, mut other) = (new(), new());
        let line = "x".repeat(99_999) + "\n";
        for _ in 0..300 {
            one.write(&line).unwrap();
            other.write(&line).unwrap();
        }
        let sizes =
            [LOG_FILE, ROTATED_LOG_FILE].map(|name| fs::metadata(dir.path().join(name)).unwrap().len());
        assert!(sizes[1] > MOST_BYTES, "{sizes:?}");
        assert!(sizes.iter().all(|size| *size < MOST_BYTES + 300_000), "{sizes:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
    }
}
