//! One record per request: its target, the rule that decided, bytes, duration and outcome. Recording never delays
//! traffic, and records that could not be queued are counted.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};
use clock::Clock;
use tokio::sync::mpsc;

use crate::address::AddressClass;
use crate::fields::HeadError;
use crate::host::Target;
use crate::meter::Meter;
use crate::rules::{AllowReason, Denial};

/// One request, or one connection on which no request could be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub started: DateTime<Utc>,
    pub duration: Duration,
    pub kind: Kind,
    /// `None` when the request could not be parsed.
    pub target: Option<Target>,
    /// The address that was connected to, or that caused the refusal.
    pub address: Option<IpAddr>,
    pub verdict: Verdict,
    /// Bytes written to the target: everything in a tunnel, head and body of a plain request.
    pub bytes_up: u64,
    /// Bytes read from the target.
    pub bytes_down: u64,
    pub ended: RequestEnd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Connect,
    Http,
    /// The request could not be parsed.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Allowed(AllowReason),
    Refused(Refusal),
}

/// Why a request was refused, in words that its sender can act on. It contains only normalised names, and never an
/// address that a name resolved to, which would reveal the network around the sandbox.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Rule(Denial),
    #[error(
        "{target} resolves to a {class} address, but sandboxes may only reach the public internet: an administrator can add \
         an exception for a private `host:port`"
    )]
    Address { target: Target, class: AddressClass },
    #[error("the request is malformed: {0}")]
    Malformed(HeadError),
    #[error("this sandbox already has {0} connections open, which is the limit: close some and try again")]
    TooManyConnections(usize),
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestEnd {
    Complete,
    Refused,
    Failed(Failure),
    /// The proxy was stopped.
    Cancelled,
}

/// Why an allowed request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The name does not resolve.
    NotFound,
    /// No connection could be made to the address.
    Unreachable,
    /// Resolving or connecting timed out.
    TimedOut,
    /// No byte passed for too long.
    Idle,
    /// The client stopped sending its body.
    BodyStalled,
    ClientGone,
    TargetGone,
    /// The client's body is malformed.
    BadBody,
    /// The client's body is longer than allowed.
    BodyTooLong,
    /// The target does not send valid HTTP/1.1.
    BadResponse,
    /// The rules changed during the request and no longer allow it.
    RefusedSince,
}

/// Receives the records. It is called while traffic waits, so it must not block; [`record_queue`] creates one that
/// does not.
pub trait Recorder: Send + Sync + 'static {
    fn record(&self, record: Record);
}

/// Creates a recorder that queues at most `capacity` records, and the receiving end of the queue.
pub fn record_queue(capacity: usize) -> (RecordQueue, Records) {
    let (sender, receiver) = mpsc::channel(capacity);
    let lost = Arc::<AtomicU64>::default();
    (RecordQueue { sender, lost: Arc::clone(&lost) }, Records { receiver, lost })
}

/// The sending end; see [`record_queue`].
#[derive(Debug, Clone)]
pub struct RecordQueue {
    sender: mpsc::Sender<Record>,
    lost: Arc<AtomicU64>,
}

impl Recorder for RecordQueue {
    fn record(&self, record: Record) {
        if self.sender.try_send(record).is_err() {
            self.lost.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// The receiving end; see [`record_queue`].
#[derive(Debug)]
pub struct Records {
    receiver: mpsc::Receiver<Record>,
    lost: Arc<AtomicU64>,
}

/// An item from the record queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecordItem {
    Record(Record),
    /// This many records were dropped because the queue was full, since this was last reported.
    Lost(u64),
}

impl Records {
    /// The next record or loss; `None` when all senders are dropped and everything was delivered.
    pub async fn next(&mut self) -> Option<RecordItem> {
        if let Some(lost) = self.take_lost() {
            return Some(lost);
        }
        match self.receiver.recv().await {
            Some(record) => Some(RecordItem::Record(record)),
            None => self.take_lost(),
        }
    }

    fn take_lost(&self) -> Option<RecordItem> {
        Some(self.lost.swap(0, Ordering::SeqCst)).filter(|lost| *lost > 0).map(RecordItem::Lost)
    }
}

/// Totals over all finished requests, and the number of open connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub connections: u64,
    pub allowed: u64,
    pub refused: u64,
    pub bytes_up: u64,
    pub bytes_down: u64,
}

/// Creates records and keeps the totals.
pub(crate) struct RequestLog {
    clock: Clock,
    recorder: Arc<dyn Recorder>,
    allowed: AtomicU64,
    refused: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
}

impl RequestLog {
    pub(crate) fn new(clock: Clock, recorder: Arc<dyn Recorder>) -> Self {
        let zero = AtomicU64::default;
        Self { clock, recorder, allowed: zero(), refused: zero(), bytes_up: zero(), bytes_down: zero() }
    }

    pub(crate) fn counters(&self, connections: u64) -> Counters {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            connections,
            allowed: load(&self.allowed),
            refused: load(&self.refused),
            bytes_up: load(&self.bytes_up),
            bytes_down: load(&self.bytes_down),
        }
    }

    pub(crate) fn open(&self, kind: Kind, target: Option<Target>, verdict: Verdict) -> Entry<'_> {
        let ended =
            if matches!(verdict, Verdict::Refused(_)) { RequestEnd::Refused } else { RequestEnd::Cancelled };
        let (started, duration) = (self.clock.now(), Duration::ZERO);
        let (bytes_up, bytes_down) = (0, 0);
        let record =
            Record { started, duration, kind, target, address: None, verdict, bytes_up, bytes_down, ended };
        Entry { log: self, record, since: self.clock.elapsed(), meter: Arc::default() }
    }
}

/// A record in progress. It is reported on drop, so that no code path can forget it, not even a dropped future.
pub(crate) struct Entry<'a> {
    log: &'a RequestLog,
    record: Record,
    since: Duration,
    meter: Arc<Meter>,
}

impl Entry<'_> {
    pub(crate) fn meter(&self) -> Arc<Meter> {
        Arc::clone(&self.meter)
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.record.address
    }

    pub(crate) fn set_address(&mut self, address: IpAddr) {
        self.record.address = Some(address);
    }

    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        self.record.verdict = Verdict::Refused(refusal);
        self.record.ended = RequestEnd::Refused;
    }

    pub(crate) fn end(&mut self, ended: RequestEnd) {
        self.record.ended = ended;
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let Self { log, record, .. } = self;
        record.duration = log.clock.elapsed().saturating_sub(self.since);
        (record.bytes_up, record.bytes_down) = (self.meter.up(), self.meter.down());
        log.bytes_up.fetch_add(record.bytes_up, Ordering::Relaxed);
        log.bytes_down.fetch_add(record.bytes_down, Ordering::Relaxed);
        let counter = match record.verdict {
            Verdict::Allowed(_) => &log.allowed,
            Verdict::Refused(_) => &log.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        log.recorder.record(record.clone());
    }
}
