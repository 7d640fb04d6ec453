//! What happened, for each request: to whom, by which rule, how much, how long, how it ended. Reporting never holds
//! traffic up, and what could not be reported is counted.

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
use crate::rules::{Denial, Grounds};

/// One request, or one connection that did not become a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    pub started: DateTime<Utc>,
    pub duration: Duration,
    pub kind: Kind,
    /// `None` when the request could not be read.
    pub target: Option<Target>,
    /// The address that was connected to, or that was the reason to refuse.
    pub address: Option<IpAddr>,
    pub verdict: Verdict,
    /// Bytes written to the target: all of a tunnel, head and body of a plain request.
    pub bytes_up: u64,
    /// Bytes read from the target.
    pub bytes_down: u64,
    pub ended: Ended,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Connect,
    Http,
    /// The request could not be read.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Allowed(Grounds),
    Refused(Refusal),
}

/// Why a request was refused, in words that its sender can act on. Only normalised names are in it, and never an
/// address that a name resolved to: that would tell a sandbox about the network around it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{0}")]
    Rule(Denial),
    #[error(
        "{target} leads to a {class} address, and sandboxes reach the public internet only: an administrator can add \
         an exception for a private `host:port`"
    )]
    Address { target: Target, class: AddressClass },
    #[error("the request is malformed: {0}")]
    Malformed(HeadError),
    #[error("this sandbox has {0} connections open, which is the most: close some and try again")]
    TooManyConnections(usize),
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    Complete,
    Refused,
    Failed(Failure),
    /// The proxy was stopped.
    Cancelled,
}

/// Why a request that was allowed did not come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The name does not resolve.
    NotFound,
    /// Nobody answers at the address.
    Unreachable,
    /// Resolving or connecting took too long.
    TimedOut,
    /// Nothing passed for too long.
    Idle,
    /// The client's body stopped coming.
    BodyStalled,
    ClientGone,
    TargetGone,
    /// The client's body is malformed.
    BadBody,
    /// The client's body is longer than allowed.
    BodyTooLong,
    /// The target does not speak HTTP/1.1 as it should.
    BadResponse,
    /// The rules changed meanwhile, and refuse it now.
    RefusedSince,
}

/// Where records go. Called while traffic waits, so it must not block; [`record_queue`] makes one that does not.
pub trait Recorder: Send + Sync + 'static {
    fn record(&self, record: Record);
}

/// A recorder that queues at most `capacity` records, and the end they come out of.
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

/// What comes out of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum News {
    Record(Record),
    /// So many records found the queue full since this was last said.
    Lost(u64),
}

impl Records {
    /// The next record or loss; `None` when all senders are gone and everything was said.
    pub async fn next(&mut self) -> Option<News> {
        if let Some(lost) = self.take_lost() {
            return Some(lost);
        }
        match self.receiver.recv().await {
            Some(record) => Some(News::Record(record)),
            None => self.take_lost(),
        }
    }

    fn take_lost(&self) -> Option<News> {
        Some(self.lost.swap(0, Ordering::SeqCst)).filter(|lost| *lost > 0).map(News::Lost)
    }
}

/// Sums over all requests that have ended, and the connections of now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub connections: u64,
    pub allowed: u64,
    pub refused: u64,
    pub bytes_up: u64,
    pub bytes_down: u64,
}

/// Opens and closes entries.
pub(crate) struct Book {
    clock: Clock,
    recorder: Arc<dyn Recorder>,
    allowed: AtomicU64,
    refused: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
}

impl Book {
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
        let ended = if matches!(verdict, Verdict::Refused(_)) { Ended::Refused } else { Ended::Cancelled };
        let (started, duration) = (self.clock.now(), Duration::ZERO);
        let (bytes_up, bytes_down) = (0, 0);
        let record =
            Record { started, duration, kind, target, address: None, verdict, bytes_up, bytes_down, ended };
        Entry { book: self, record, since: self.clock.elapsed(), meter: Arc::default() }
    }
}

/// A record in the making. It is reported when it goes out of scope, so that no way out forgets it, not even the
/// one of a dropped future.
pub(crate) struct Entry<'a> {
    book: &'a Book,
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

    pub(crate) fn reached(&mut self, address: IpAddr) {
        self.record.address = Some(address);
    }

    pub(crate) fn refuse(&mut self, refusal: Refusal) {
        self.record.verdict = Verdict::Refused(refusal);
        self.record.ended = Ended::Refused;
    }

    pub(crate) fn end(&mut self, ended: Ended) {
        self.record.ended = ended;
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let Self { book, record, .. } = self;
        record.duration = book.clock.elapsed().saturating_sub(self.since);
        (record.bytes_up, record.bytes_down) = (self.meter.up(), self.meter.down());
        book.bytes_up.fetch_add(record.bytes_up, Ordering::Relaxed);
        book.bytes_down.fetch_add(record.bytes_down, Ordering::Relaxed);
        let counter = match record.verdict {
            Verdict::Allowed(_) => &book.allowed,
            Verdict::Refused(_) => &book.refused,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        book.recorder.record(record.clone());
    }
}
