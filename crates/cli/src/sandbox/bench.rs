//! Measures what a sandbox costs: boot time compared with a bare bubblewrap, round-trip time, throughput, and memory.

use std::process::{ExitCode, Stdio};
use std::time::Duration;

use egress::Mode;
use gateway::runtime::{CountingRecorder, Sandboxes};
use sandboxd::Sandboxd;
use sandboxd::protocol::Exec;
use serde_json::json;
use tokio::process::Command;

use super::{fresh_id, start};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::{json_line, line};

const ROUND_TRIPS: usize = 500;
const TRANSFER_BYTES: usize = 512 * 1024 * 1024;

/// The measurements; times are in milliseconds.
struct Measurements {
    start: Vec<f64>,
    bare: Vec<f64>,
    round_trip: Vec<f64>,
    megabytes_per_second: f64,
    private_mib: f64,
    resident_mib: f64,
}

pub(super) async fn run(context: &Context, sandboxes: &Sandboxes, count: u32) -> Result<ExitCode, Failure> {
    let spinner = context.out.spinner("measuring");
    let measured = measure(context, sandboxes, count).await;
    spinner.finish_and_clear();
    report(context, &measured?);
    Ok(ExitCode::SUCCESS)
}

async fn measure(context: &Context, sandboxes: &Sandboxes, count: u32) -> Result<Measurements, Failure> {
    let (mut start_times, mut bare) = (Vec::new(), Vec::new());
    let clock = &context.clock;
    // Alternate between the two, so that a load spike on the machine affects both.
    for _ in 0..count {
        let before = clock.elapsed();
        bare_bubblewrap(context).await?;
        bare.push(millis(clock.elapsed().saturating_sub(before)));
        let before = clock.elapsed();
        let handle = start(context, sandboxes, fresh_id(context)?, Mode::Offline, CountingRecorder).await?;
        start_times.push(millis(clock.elapsed().saturating_sub(before)));
        sandboxes.provider.terminate(&handle.id).await?;
    }
    let handle = start(context, sandboxes, fresh_id(context)?, Mode::Offline, CountingRecorder).await?;
    let inside = inside(context, &handle.inside).await;
    sandboxes.provider.terminate(&handle.id).await?;
    Ok(Measurements { start: start_times, bare, ..inside? })
}

/// Runs `true` in the same namespaces without a supervisor: the baseline cost of the kernel and bubblewrap.
async fn bare_bubblewrap(context: &Context) -> Result<(), Failure> {
    let program =
        context.config.program("bwrap").ok_or_else(|| Failure::missing("bwrap is not on the PATH"))?;
    let status = Command::new(program)
        .args(["--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "/bin/true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await;
    match status {
        Ok(status) if status.success() => Ok(()),
        _ => Err(Failure::missing("bubblewrap does not run: see `proliferate doctor`")),
    }
}

async fn inside(context: &Context, inside: &Sandboxd) -> Result<Measurements, Failure> {
    let clock = &context.clock;
    let mut round_trip = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let before = clock.elapsed();
        inside.status().await?;
        round_trip.push(millis(clock.elapsed().saturating_sub(before)));
    }
    let memory = run_for_output(inside, &["cat", "/proc/1/status", "/proc/2/status"]).await?;
    let mib = |name: &str| {
        let lines = memory.lines().filter_map(|line| line.strip_prefix(name));
        lines.filter_map(|text| text.trim().trim_end_matches(" kB").parse::<f64>().ok()).sum::<f64>() / 1024.0
    };
    let before = clock.elapsed();
    let argv = ["head", "-c", &TRANSFER_BYTES.to_string(), "/dev/zero"].map(str::to_owned).to_vec();
    let mut handle = inside.exec(Exec { argv, ..Exec::default() }).await?;
    let mut got = 0;
    while let Some((_, bytes)) = handle.output.next().await? {
        got += bytes.len();
    }
    if got != TRANSFER_BYTES {
        return Err(Failure::failed(format!("{got} of {TRANSFER_BYTES} bytes came through")));
    }
    let seconds = clock.elapsed().saturating_sub(before).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "half a gigabyte is exact")]
    let megabytes = TRANSFER_BYTES as f64 / 1e6;
    Ok(Measurements {
        start: Vec::new(),
        bare: Vec::new(),
        round_trip,
        megabytes_per_second: megabytes / seconds,
        private_mib: mib("RssAnon:"),
        resident_mib: mib("VmRSS:"),
    })
}

async fn run_for_output(inside: &Sandboxd, argv: &[&str]) -> Result<String, Failure> {
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    let exec = Exec { argv, timeout_ms: Some(10_000), ..Exec::default() };
    let collected = inside.run(exec, "", PRINTED_BYTES).await?;
    Ok(String::from_utf8_lossy(&collected.stdout).into_owned())
}

const PRINTED_BYTES: usize = 64 * 1024;

fn report(context: &Context, figures: &Measurements) {
    let Measurements { start, bare, round_trip, megabytes_per_second, private_mib, resident_mib } = figures;
    let (start, bare, trip) = (Percentiles::of(start), Percentiles::of(bare), Percentiles::of(round_trip));
    let ratio = start.p50 / bare.p50;
    if context.out.is_json() {
        let spread = |spread: &Percentiles| json!({ "p50": spread.p50, "p95": spread.p95 });
        let value = json!({ "startMs": spread(&start), "bareBubblewrapMs": spread(&bare), "ratio": ratio,
            "roundTripMs": spread(&trip), "megabytesPerSecond": megabytes_per_second, "supervisorPrivateMib": private_mib,
            "supervisorResidentMib": resident_mib });
        return json_line(&value);
    }
    line(&format!("start to a ready supervisor   p50 {:.1} ms  p95 {:.1} ms", start.p50, start.p95));
    line(&format!(
        "bare bubblewrap /bin/true     p50 {:.1} ms  p95 {:.1} ms  ratio {ratio:.2}",
        bare.p50, bare.p95
    ));
    line(&format!("round trip                    p50 {:.3} ms  p95 {:.3} ms", trip.p50, trip.p95));
    line(&format!("throughput                    {megabytes_per_second:.0} MB/s"));
    line(&format!(
        "supervisor inside             {private_mib:.1} MiB of its own; {resident_mib:.1} MiB with pages of the program \
         that all share"
    ));
}

struct Percentiles {
    p50: f64,
    p95: f64,
}

impl Percentiles {
    fn of(times: &[f64]) -> Self {
        let mut sorted = times.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |share: usize| sorted.get((sorted.len() * share / 100).min(sorted.len().saturating_sub(1)));
        Self { p50: at(50).copied().unwrap_or_default(), p95: at(95).copied().unwrap_or_default() }
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
