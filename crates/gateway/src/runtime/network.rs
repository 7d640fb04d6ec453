//! The network access of sandboxes: enforces the egress rules of their organization, keeps those rules fresh, and
//! records every attempt.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use chrono::TimeDelta;
use clock::{Clock, Rng};
use egress::{
    AddressPolicy, Config, Denial, Kind, Limits, Mode, Proxy, Record, RecordItem, Recorder, Records,
    RequestEnd, RuleError, Rules, SystemResolver, Target, Verdict, record_queue,
};
use futures_util::FutureExt as _;
use parking_lot::{Mutex, MutexGuard};
use proto::http::EgressRules;
use proto::{EgressKind, EgressMode, EgressOutcome, OrgId, SessionId};
use sandbox::SandboxId;
use store::{EgressPolicy, NewEgressRecord, Store, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The refresh interval, which bounds how soon a changed rule takes effect.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);
/// The maximum clock skew between instances at which no rule change is missed.
const MAX_CLOCK_SKEW: TimeDelta = TimeDelta::seconds(60);
/// The maximum number of concurrent DNS lookups per sandbox.
const MAX_LOOKUPS: usize = 8;
/// The maximum number of records per sandbox that wait for the database, and the batch size of writes.
const QUEUE_CAPACITY: usize = 4096;
const MAX_BATCH: usize = 256;
/// The number of attempts to write a batch while the database is unavailable, and the delay between them. New
/// records wait in the queue meanwhile.
const MAX_ATTEMPTS: u32 = 60;
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The sandbox that a network belongs to, with its organization and session.
#[derive(Clone, Debug)]
pub struct Network {
    pub org: OrgId,
    pub session: Option<SessionId>,
    pub sandbox: SandboxId,
}

/// The networks of all running sandboxes.
pub struct Networks {
    store: Store,
    /// The private addresses that the operator lets sandboxes reach.
    private: Vec<String>,
    clock: Clock,
    rng: Rng,
    /// The rules of each organization that has a running sandbox.
    rules: Mutex<HashMap<OrgId, watch::Sender<Arc<Rules>>>>,
    /// The tasks that write records, and the signal that no more records will come.
    writing: TaskTracker,
    closing: CancellationToken,
}

impl Networks {
    pub fn start(store: Store, private: Vec<String>, clock: Clock, rng: Rng) -> Arc<Self> {
        let (rules, writing, closing) = (Mutex::default(), TaskTracker::new(), CancellationToken::new());
        let networks = Arc::new(Self { store, private, clock, rng, rules, writing, closing });
        tokio::spawn(keep_fresh(Arc::downgrade(&networks)));
        networks
    }

    /// Creates the egress proxy of one sandbox. Its attempts are recorded for as long as anyone holds the proxy.
    pub async fn proxy(&self, network: Network) -> Result<Proxy, StoreError> {
        let rules = self.follow(network.org).await?;
        let (queue, records) = record_queue(QUEUE_CAPACITY);
        let (store, clock, rng) = (self.store.clone(), self.clock.clone(), self.rng.clone());
        let closing = self.closing.clone();
        self.writing.spawn(keep_records(records, network, store, clock, rng, closing));
        Ok(proxy(rules, queue, &self.clock))
    }

    /// Waits until all records are written. The caller has closed all connections before, so that no more records
    /// come.
    pub async fn close(&self) {
        self.closing.cancel();
        self.writing.close();
        self.writing.wait().await;
    }

    /// Whether an organization's rules alone allow its sandboxes to reach this target.
    pub(crate) async fn decide(&self, org: OrgId, target: &Target) -> Result<Result<(), Denial>, StoreError> {
        let rules = self.follow(org).await?.borrow().clone();
        Ok(rules.decide(target).map(drop))
    }

    /// Subscribes to the rules of an organization and their changes.
    async fn follow(&self, org: OrgId) -> Result<watch::Receiver<Arc<Rules>>, StoreError> {
        if let Some(known) = self.rules().get(&org) {
            return Ok(known.subscribe());
        }
        let rules = self.read(&self.store.egress_policy(org).await?);
        Ok(self.rules().entry(org).or_insert_with(|| watch::Sender::new(rules)).subscribe())
    }

    /// Reloads recently changed rules, and drops the rules of organizations without sandboxes.
    async fn refresh(&self) {
        self.rules().retain(|_, rules| rules.receiver_count() > 0);
        if self.rules().is_empty() {
            return;
        }
        let changed = match self.store.egress_policies_since(self.clock.now() - MAX_CLOCK_SKEW).await {
            Ok(changed) => changed,
            Err(error) => return tracing::warn!(%error, "cannot refresh the egress rules"),
        };
        for policy in changed {
            let new = self.read(&policy);
            if let Some(rules) = self.rules().get(&policy.org_id) {
                rules.send_if_modified(|old| {
                    let differs = *old != new;
                    *old = new;
                    differs
                });
            }
        }
    }

    /// Parses stored rules. They are validated before they are stored; if one is invalid anyway, the sandboxes go
    /// offline.
    fn read(&self, policy: &EgressPolicy) -> Arc<Rules> {
        let rules = rules(policy.mode, &policy.allow, &policy.deny, &self.private);
        Arc::new(rules.unwrap_or_else(|error| {
            tracing::error!(org = %policy.org_id, %error, "stored rules are wrong: its sandboxes are offline");
            Rules::new(Mode::Offline)
        }))
    }

    fn rules(&self) -> MutexGuard<'_, HashMap<OrgId, watch::Sender<Arc<Rules>>>> {
        self.rules.lock()
    }
}

/// Creates an egress proxy with fixed rules, for a sandbox that belongs to no organization.
pub fn proxy_of(rules: Rules, recorder: impl Recorder, clock: &Clock) -> Proxy {
    let (_, rules) = watch::channel(Arc::new(rules));
    proxy(rules, recorder, clock)
}

/// Counts the attempts of an unused sandbox in the metrics, without storing them.
pub struct CountingRecorder;

impl Recorder for CountingRecorder {
    fn record(&self, record: Record) {
        count(&record);
    }
}

/// Validates rules, and reports the first invalid entry.
pub fn check_rules(wanted: &EgressRules) -> Result<(), RuleError> {
    rules(wanted.mode, &wanted.allow, &wanted.deny, &[]).map(drop)
}

fn rules(
    mode: EgressMode,
    allow: &[String],
    deny: &[String],
    private: &[String],
) -> Result<Rules, RuleError> {
    let mode = match mode {
        EgressMode::Open => Mode::Open,
        EgressMode::AllowList => Mode::AllowList,
        EgressMode::Offline => Mode::Offline,
    };
    let rules = allow.iter().try_fold(Rules::new(mode), |rules, entry| rules.allow(entry))?;
    let rules = deny.iter().try_fold(rules, |rules, entry| rules.deny(entry))?;
    private.iter().try_fold(rules, |rules, entry| rules.allow_private(entry))
}

fn proxy(rules: watch::Receiver<Arc<Rules>>, recorder: impl Recorder, clock: &Clock) -> Proxy {
    Proxy::new(Config {
        rules,
        resolver: Arc::new(SystemResolver::new(MAX_LOOKUPS)),
        addresses: AddressPolicy::strict(),
        limits: Limits::default(),
        clock: clock.clone(),
        recorder: Arc::new(recorder),
    })
}

async fn keep_fresh(networks: Weak<Networks>) {
    loop {
        tokio::time::sleep(REFRESH_INTERVAL).await;
        let Some(networks) = networks.upgrade() else { return };
        networks.refresh().await;
    }
}

/// Writes records until the sandbox's proxy is dropped or the gateway closes, and the queue is empty.
async fn keep_records(
    mut records: Records,
    network: Network,
    store: Store,
    clock: Clock,
    rng: Rng,
    closing: CancellationToken,
) {
    loop {
        let first = tokio::select! {
            biased;
            first = records.next() => first,
            () = closing.cancelled() => None,
        };
        let Some(first) = first else { return };
        let (mut batch, mut next) = (Vec::new(), Some(first));
        while let Some(news) = next {
            match news {
                RecordItem::Record(record) => {
                    count(&record);
                    batch.push(row(&record, &network, rng.uuid(clock.now())));
                }
                RecordItem::Lost(lost) => {
                    metrics::counter!("proliferate_egress_records_lost_total").increment(lost);
                    tracing::warn!(sandbox = %network.sandbox, lost, "attempts were not recorded: too many at once");
                }
            }
            next = if batch.len() < MAX_BATCH { records.next().now_or_never().flatten() } else { None };
        }
        let written = batch.len();
        if let Err(error) = until_kept(|| store.add_egress_records(batch.clone())).await {
            metrics::counter!("proliferate_egress_records_lost_total").increment(written as u64);
            tracing::error!(sandbox = %network.sandbox, %error, written, "attempts were not recorded");
        }
    }
}

/// Retries a write for a while when the database is unavailable. The write must be idempotent: a batch that was
/// already written is not written twice.
async fn until_kept<F: Future<Output = Result<(), StoreError>>>(
    write: impl Fn() -> F,
) -> Result<(), StoreError> {
    for _ in 1..MAX_ATTEMPTS {
        match write().await {
            Err(error) if error.is_unavailable() => tokio::time::sleep(RETRY_DELAY).await,
            done => return done,
        }
    }
    write().await
}

fn count(record: &Record) {
    let verdict = if matches!(record.verdict, Verdict::Allowed(_)) { "allowed" } else { "refused" };
    metrics::counter!("proliferate_egress_requests_total", "verdict" => verdict).increment(1);
    metrics::counter!("proliferate_egress_bytes_total", "direction" => "up").increment(record.bytes_up);
    metrics::counter!("proliferate_egress_bytes_total", "direction" => "down").increment(record.bytes_down);
}

/// The outcome of an attempt, and the reason if it did not complete.
pub fn outcome_of(record: &Record) -> (EgressOutcome, Option<String>) {
    match (&record.verdict, record.ended) {
        (Verdict::Refused(refusal), _) => (EgressOutcome::Refused, Some(refusal.to_string())),
        (_, RequestEnd::Complete) => (EgressOutcome::Complete, None),
        (_, RequestEnd::Failed(failure)) => (EgressOutcome::Failed, Some(format!("{failure:?}"))),
        (_, RequestEnd::Cancelled | RequestEnd::Refused) => (EgressOutcome::Cancelled, None),
    }
}

fn row(record: &Record, network: &Network, id: uuid::Uuid) -> NewEgressRecord {
    let (outcome, reason) = outcome_of(record);
    let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    NewEgressRecord {
        id,
        org_id: network.org,
        session_id: network.session,
        sandbox_id: network.sandbox.to_string(),
        kind: match record.kind {
            Kind::Connect => EgressKind::Connect,
            Kind::Http => EgressKind::Http,
            Kind::Unknown => EgressKind::Unknown,
        },
        host: record.target.as_ref().map(|target| target.host.to_string()),
        port: record.target.as_ref().map(|target| target.port),
        address: record.address.map(|address| address.to_string()),
        outcome,
        reason,
        bytes_up: whole(record.bytes_up),
        bytes_down: whole(record.bytes_down),
        started_at: record.started,
        duration_ms: i64::try_from(record.duration.as_millis()).unwrap_or(i64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn records_are_written_when_the_database_is_back() {
        let outcomes = |fail: u32, how: fn() -> StoreError| async move {
            let tried = Cell::new(0);
            let write = || {
                tried.set(tried.get() + 1);
                std::future::ready(if tried.get() <= fail { Err(how()) } else { Ok(()) })
            };
            (until_kept(write).await.is_ok(), tried.get())
        };
        let away = || StoreError::NotCommitted("it is away".to_owned());
        assert_eq!(outcomes(0, away).await, (true, 1));
        assert_eq!(outcomes(7, away).await, (true, 8));
        assert_eq!(outcomes(1000, away).await, (false, MAX_ATTEMPTS));
        assert_eq!(outcomes(7, || StoreError::Missing("it")).await, (false, 1), "no time mends that");
    }
}
