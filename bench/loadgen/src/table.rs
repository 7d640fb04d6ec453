//! Converts result lines to one table: per item the median [min-max] of each tag, and the ratio to a base
//! tag.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::Result;

#[derive(clap::Args)]
pub struct Options {
    files: Vec<String>,
    /// Compare the other tags with this one
    #[arg(long, default_value = "ceiling")]
    base: String,
    /// Omit results in which other processes used more than this percentage of a core
    #[arg(long, default_value_t = 30.0)]
    max_other: f64,
}

/// The item and the metric of a row.
type Row = (String, &'static str);

#[derive(Default)]
struct Results {
    rows: Vec<Row>,
    tags: Vec<String>,
    values: BTreeMap<(Row, String), Vec<f64>>,
    problems: Vec<String>,
    noisy: usize,
}

pub fn print(options: &Options) -> Result<()> {
    let mut results = Results::default();
    for file in &options.files {
        for line in std::fs::read_to_string(file)?.lines() {
            if let Ok(result) = serde_json::from_str::<Value>(line) {
                results.add(&result, options.max_other);
            }
        }
    }
    results.print(&options.base);
    println!(
        "\nresults omitted (other processes above {} % of a core): {}",
        options.max_other, results.noisy
    );
    results.problems.iter().for_each(|line| println!("check: {line}"));
    Ok(())
}

impl Results {
    fn add(&mut self, result: &Value, max_other: f64) {
        // A cold start is shorter than the clock ticks in which the CPU time of others is measured.
        if result["cmd"] != "cold" && number(&result["usage"]["other_cpu_pct"]) > max_other {
            self.noisy += 1;
            return;
        }
        let (item, tag) = (item(result), result["tag"].as_str().unwrap_or("").to_owned());
        let problems = number(&result["errors"]) + number(&result["seq_mismatch"]);
        if problems > 0.0 || result["codes"].as_object().is_some_and(|codes| codes.len() > 1) {
            let codes = &result["codes"];
            self.problems.push(format!("{item} {tag}: errors+mismatches {problems}, codes {codes}"));
        }
        if !self.tags.contains(&tag) {
            self.tags.push(tag.clone());
        }
        for (metric, value) in metrics(result) {
            let row = (item.clone(), metric);
            if !self.rows.contains(&row) {
                self.rows.push(row.clone());
            }
            self.values.entry((row, tag.clone())).or_default().push(value);
        }
    }

    fn print(&self, base: &str) {
        let others: Vec<&String> = self.tags.iter().filter(|tag| *tag != base).collect();
        let columns: String = others.iter().map(|tag| format!(" {tag} | {base}/{tag} |")).collect();
        println!("| item | metric | {base} |{columns}\n|{}", "---|".repeat(3 + 2 * others.len()));
        for row in &self.rows {
            let base_cell = self.cell(row, base);
            let columns: String = others
                .iter()
                .map(|tag| {
                    let cell = self.cell(row, tag);
                    format!(" {} | {} |", cell_text(cell.as_ref()), ratio(base_cell.as_ref(), cell.as_ref()))
                })
                .collect();
            println!("| {} | {} | {} |{columns}", row.0, row.1, cell_text(base_cell.as_ref()));
        }
    }

    fn cell(&self, row: &Row, tag: &str) -> Option<Cell> {
        self.values.get(&(row.clone(), tag.to_owned())).map(|values| Cell::new(values.clone()))
    }
}

struct Cell {
    median: f64,
    text: String,
}

impl Cell {
    fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (middle, count) = (values.len() / 2, values.len());
        let median =
            if count % 2 == 1 { values[middle] } else { f64::midpoint(values[middle - 1], values[middle]) };
        let (min, max) = (round(values[0]), round(values[count - 1]));
        Self { median, text: format!("{} [{min}-{max}] n={count}", round(median)) }
    }
}

fn cell_text(cell: Option<&Cell>) -> &str {
    cell.map_or("-", |cell| &cell.text)
}

fn ratio(base: Option<&Cell>, other: Option<&Cell>) -> String {
    match (base, other) {
        (Some(base), Some(other)) if other.median != 0.0 => round(base.median / other.median),
        _ => "-".to_owned(),
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

fn round(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn item(result: &Value) -> String {
    let whole = |key: &str| number(&result[key]) as u64;
    let command = result["cmd"].as_str().unwrap_or("?");
    match command {
        "stream" if whole("rate") == 0 => {
            format!("stream {}x{} max. rate", whole("sessions"), whole("clients"))
        }
        "stream" => format!("stream {}x{} {}/s", whole("sessions"), whole("clients"), whole("rate")),
        "hold" => format!("hold {}", whole("sessions")),
        "slow" => format!("slow {} stalled {}/s", whole("stalled"), whole("rate")),
        "cold" => "cold start".to_owned(),
        _ => format!("{command} c{}", whole("conc")),
    }
}

/// The figures of one result line: (metric, value).
fn metrics(result: &Value) -> Vec<(&'static str, f64)> {
    let gateway = &result["usage"]["gw"];
    let per = |key: &str| number(&gateway["cpu_s"]) / number(&result[key]).max(1.0);
    let latency = &result["lat"];
    let metrics = match result["cmd"].as_str().unwrap_or("") {
        "stream" => {
            // At an unlimited rate, latency only reflects the size of the buffers.
            let paced =
                |value: &Value| if number(&result["rate"]) > 0.0 { value.clone() } else { Value::Null };
            vec![
                ("frames/s", result["delivered_per_s"].clone()),
                ("p50 ms", paced(&latency["p50_ms"])),
                ("p99 ms", paced(&latency["p99_ms"])),
                ("in time %", paced(&result["delivered_in_window_pct"])),
                ("cpu us/frame", (per("delivered") * 1e6).into()),
                ("rss MiB", gateway["rss_mib"].clone()),
            ]
        }
        "cold" => vec![
            ("ready ms", result["ready_ms"].clone()),
            ("cpu s", result["cpu_s_at_ready"].clone()),
            ("idle rss MiB", result["rss_mib_idle"].clone()),
        ],
        "hold" => vec![
            ("KiB/session", result["mem"]["gw"]["kib_per_session_held"].clone()),
            ("rss MiB", result["mem"]["gw"]["rss_held_mib"].clone()),
            ("open p50 ms", result["open"]["p50_ms"].clone()),
            ("open all s", result["open_s"].clone()),
            ("hold cpu %", result["hold_usage"]["gw"]["cpu_pct"].clone()),
        ],
        "slow" => vec![
            ("reader p50 ms", latency["p50_ms"].clone()),
            ("reader p99 ms", latency["p99_ms"].clone()),
            ("reader frames", result["reader_got"].clone()),
            ("rss growth MiB", (number(&gateway["rss_mib"]) - number(&result["rss_before_mib"][0])).into()),
            ("stalled closed", result["stalled_closed"].clone()),
        ],
        _ => vec![
            ("req/s", result["req_per_s"].clone()),
            ("p50 ms", latency["p50_ms"].clone()),
            ("p99 ms", latency["p99_ms"].clone()),
            ("cpu ms/req", (per("requests") * 1e3).into()),
        ],
    };
    metrics.into_iter().filter_map(|(name, value)| Some((name, value.as_f64()?))).collect()
}
