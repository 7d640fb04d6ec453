//! The closed loop behind all HTTP commands: each worker has one keep-alive connection and sends its next
//! request when the previous one is answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use serde_json::{Value, json};

use crate::Result;
use crate::clock::{self, now_ns, secs_since};
use crate::context::Context;
use crate::http::Connection;
use crate::latency::Latency;

const WARM_UP_SECS: f64 = 1.0;
/// Answers that arrive later than this after the end are not counted.
const LATE_NS: u64 = 2_000_000_000;
/// Number of characters of an answer that are included in the result.
const SAMPLE: usize = 160;

pub struct Request {
    pub method: &'static str,
    pub path: String,
    pub token: String,
    pub body: Option<String>,
}

impl Request {
    pub fn get(path: String, token: String) -> Self {
        Self { method: "GET", path, token, body: None }
    }

    pub fn post(path: String, token: String, body: String) -> Self {
        Self { method: "POST", path, token, body: Some(body) }
    }
}

#[derive(Clone, Copy)]
pub enum Length {
    /// Duration in seconds, after a warm-up that is not counted.
    Secs(f64),
    /// Total number of requests of all workers, all counted.
    Requests(usize),
}

struct Schedule {
    length: Length,
    issued: AtomicUsize,
    from: u64,
    until: u64,
}

impl Schedule {
    fn new(length: Length) -> Self {
        let (from, until) = match length {
            Length::Secs(secs) => {
                let from = now_ns() + clock::ns(WARM_UP_SECS);
                (from, from + clock::ns(secs))
            }
            Length::Requests(_) => (now_ns(), u64::MAX - LATE_NS),
        };
        Self { length, issued: AtomicUsize::new(0), from, until }
    }

    /// The number of a worker's next request, or `None` if the run is over.
    fn next(&self, sent: u64) -> Option<u64> {
        match self.length {
            Length::Secs(_) => (now_ns() < self.until).then_some(sent + 1),
            Length::Requests(count) => {
                let number = self.issued.fetch_add(1, Ordering::Relaxed);
                (number < count).then_some(number as u64)
            }
        }
    }

    fn counts(&self, sent_at: u64, answered_at: u64) -> bool {
        sent_at >= self.from && answered_at <= self.until + LATE_NS
    }
}

struct Tally {
    latency: Latency,
    codes: BTreeMap<u16, u64>,
    errors: u64,
    sample: (u16, Bytes),
}

impl Tally {
    fn new() -> Self {
        Self { latency: Latency::new(), codes: BTreeMap::new(), errors: 0, sample: (0, Bytes::new()) }
    }

    fn add(&mut self, other: Self) {
        self.latency.add(&other.latency);
        for (code, count) in other.codes {
            *self.codes.entry(code).or_default() += count;
        }
        self.errors += other.errors;
        self.sample = other.sample;
    }
}

/// Runs the loop; `make` gets the index of the worker and the number of the request. Fails if an answer has
/// another status than the expected ones, because refusals are faster than the work that is measured.
pub async fn closed_loop<F>(
    context: &Context,
    workers: usize,
    length: Length,
    expected: &[u16],
    make: F,
) -> Result<Value>
where
    F: Fn(usize, u64) -> Request + Send + Sync + 'static,
{
    context.wait_quiet().await;
    let make = Arc::new(make);
    let schedule = Arc::new(Schedule::new(length));
    let running: Vec<_> = (0..workers)
        .map(|worker| {
            let (make, schedule, addr) = (make.clone(), schedule.clone(), context.common.addr.clone());
            tokio::spawn(async move { work(&addr, &schedule, |number| make(worker, number)).await })
        })
        .collect();
    clock::sleep_until(schedule.from).await;
    let usage = context.begin_usage();
    let mut total = Tally::new();
    for worker in running {
        total.add(worker.await?);
    }
    let span = secs_since(schedule.from);
    let requests = total.latency.count();
    let unexpected: u64 =
        total.codes.iter().filter(|(code, _)| !expected.contains(code)).map(|(_, n)| n).sum();
    let codes: BTreeMap<String, u64> =
        total.codes.into_iter().map(|(code, count)| (code.to_string(), count)).collect();
    let sample: String = String::from_utf8_lossy(&total.sample.1).chars().take(SAMPLE).collect();
    if total.errors > 0 || unexpected > 0 {
        let lost = total.errors;
        let message =
            format!("void: {unexpected} unexpected answers and {lost} lost ones of {codes:?}: {sample}");
        return Err(message.into());
    }
    Ok(json!({"conc": workers, "requests": requests,
        "req_per_s": (requests as f64 / span * 10.0).round() / 10.0, "span_s": span, "codes": codes,
        "errors": total.errors, "lat": total.latency.summary(),
        "sample": format!("{} {sample}", total.sample.0), "usage": usage.report()}))
}

async fn work(addr: &str, schedule: &Schedule, make: impl Fn(u64) -> Request) -> Tally {
    let mut connection = Connection::new(addr);
    let mut tally = Tally::new();
    let mut sent = 0;
    while let Some(number) = schedule.next(sent) {
        sent += 1;
        let Request { method, path, token, body } = make(number);
        let sent_at = now_ns();
        match connection.send(method, &path, &token, body).await {
            Ok((code, answer)) => {
                let answered_at = now_ns();
                if schedule.counts(sent_at, answered_at) {
                    tally.latency.record_ns(answered_at - sent_at);
                    *tally.codes.entry(code).or_default() += 1;
                }
                tally.sample = (code, answer);
            }
            Err(_) => tally.errors += 1,
        }
    }
    tally
}
