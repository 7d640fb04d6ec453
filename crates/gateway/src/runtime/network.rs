//! The network of sandboxes: the rules of their organisation, kept fresh, and a record of every attempt.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use chrono::TimeDelta;
use clock::{Clock, Rng};
use egress::{
    AddressPolicy, Config, Denial, Ended, Kind, Limits, Mode, News, Proxy, Record, Recorder, Records,
    RuleError, Rules, SystemResolver, Target, Verdict, record_queue,
};
use futures_util::FutureExt as _;
use proto::http::EgressRules;
use proto::{EgressKind, EgressMode, EgressOutcome, OrgId, SessionId};
use sandbox::SandboxId;
use store::{EgressPolicy, NewEgressRecord, Store, StoreError};
use tokio::sync::watch;

/// How soon a changed rule counts.
const FRESH: Duration = Duration::from_millis(500);
/// Clocks of instances may differ by this much without a change being missed.
const SKEW: TimeDelta = TimeDelta::seconds(60);
/// Name lookups of one sandbox at a time.
const LOOKUPS: usize = 8;
/// Records of one sandbox that may wait for the database, and how many are written at once.
const QUEUE: usize = 4096;
const BATCH: usize = 256;
/// How many rows of a sandbox are written in a minute; the rest is summed up in one. A refusal costs a sandbox nothing, so
/// those have a share of their own and hide nothing that was reached.
const MINUTE: Duration = Duration::from_mins(1);
const REACHED: u32 = 6000;
const REFUSED: u32 = 600;

/// Whose network it is.
#[derive(Clone, Debug)]
pub struct Network {
    pub org: OrgId,
    pub session: Option<SessionId>,
    pub sandbox: SandboxId,
}

/// The networks of all running sandboxes.
pub struct Networks {
    store: Store,
    /// Private addresses that the operator lets sandboxes reach.
    private: Vec<String>,
    clock: Clock,
    rng: Rng,
    /// The rules of each organisation that has a sandbox.
    rules: Mutex<HashMap<OrgId, watch::Sender<Arc<Rules>>>>,
}

impl Networks {
    pub fn start(store: Store, private: Vec<String>, clock: Clock, rng: Rng) -> Arc<Self> {
        let networks = Arc::new(Self { store, private, clock, rng, rules: Mutex::default() });
        tokio::spawn(keep_fresh(Arc::downgrade(&networks)));
        networks
    }

    /// The way out of one sandbox; its attempts are recorded as long as anybody holds it.
    pub async fn proxy(&self, network: Network) -> Result<Proxy, StoreError> {
        let rules = self.follow(network.org).await?;
        let (queue, records) = record_queue(QUEUE);
        tokio::spawn(keep_records(
            records,
            network,
            self.store.clone(),
            self.clock.clone(),
            self.rng.clone(),
        ));
        Ok(proxy(rules, queue, &self.clock))
    }

    /// Whether sandboxes of an organisation might go there, by its rules alone.
    pub(super) async fn decide(&self, org: OrgId, target: &Target) -> Result<Result<(), Denial>, StoreError> {
        let rules = self.follow(org).await?.borrow().clone();
        Ok(rules.decide(target).map(drop))
    }

    /// The rules of an organisation, now and after each change.
    async fn follow(&self, org: OrgId) -> Result<watch::Receiver<Arc<Rules>>, StoreError> {
        if let Some(known) = self.rules().get(&org) {
            return Ok(known.subscribe());
        }
        let rules = self.read(&self.store.egress_policy(org).await?);
        Ok(self.rules().entry(org).or_insert_with(|| watch::Sender::new(rules)).subscribe())
    }

    /// Reads all that changed lately, and forgets organisations that have no sandbox any more.
    async fn refresh(&self) {
        self.rules().retain(|_, rules| rules.receiver_count() > 0);
        if self.rules().is_empty() {
            return;
        }
        let changed = match self.store.egress_policies_since(self.clock.now() - SKEW).await {
            Ok(changed) => changed,
            Err(error) => return tracing::warn!(%error, "rules of the network may be old"),
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

    /// Rules are checked before they are stored. Should one be wrong all the same, nothing is reached.
    fn read(&self, policy: &EgressPolicy) -> Arc<Rules> {
        let rules = rules(policy.mode, &policy.allow, &policy.deny, &self.private);
        Arc::new(rules.unwrap_or_else(|error| {
            tracing::error!(org = %policy.org_id, %error, "stored rules are wrong: its sandboxes are offline");
            Rules::new(Mode::Offline)
        }))
    }

    fn rules(&self) -> MutexGuard<'_, HashMap<OrgId, watch::Sender<Arc<Rules>>>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A way out that keeps no records, for a sandbox that an operator runs by hand.
pub fn proxy_of(rules: Rules, clock: &Clock) -> Proxy {
    struct Nowhere;
    impl Recorder for Nowhere {
        fn record(&self, _: Record) {}
    }
    let (_, rules) = watch::channel(Arc::new(rules));
    proxy(rules, Nowhere, clock)
}

/// Says which entry is wrong, if one is.
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
        resolver: Arc::new(SystemResolver::new(LOOKUPS)),
        addresses: AddressPolicy::strict(),
        limits: Limits::default(),
        clock: clock.clone(),
        recorder: Arc::new(recorder),
    })
}

async fn keep_fresh(networks: Weak<Networks>) {
    loop {
        tokio::time::sleep(FRESH).await;
        let Some(networks) = networks.upgrade() else { return };
        networks.refresh().await;
    }
}

/// Writes records until the sandbox's proxy is gone and all are written.
async fn keep_records(mut records: Records, network: Network, store: Store, clock: Clock, rng: Rng) {
    let (mut shares, mut minute) = ([Share::of(REACHED), Share::of(REFUSED)], clock.elapsed());
    loop {
        let first = tokio::time::timeout(MINUTE, records.next()).await;
        let over = matches!(first, Ok(None));
        let mut first = first.ok().flatten();
        let mut batch = Vec::new();
        if over || clock.elapsed().saturating_sub(minute) >= MINUTE {
            batch.extend(shares.iter_mut().filter_map(|share| share.end(&network)));
            minute = clock.elapsed();
        }
        for _ in 0..BATCH {
            let next = first.take().or_else(|| records.next().now_or_never().flatten());
            let Some(news) = next else { break };
            match news {
                News::Record(record) => {
                    count(&record);
                    let refused = matches!(record.verdict, Verdict::Refused(_));
                    let row = row(&record, &network, rng.uuid(clock.now()));
                    batch.extend(shares[usize::from(refused)].take(row));
                }
                News::Lost(lost) => {
                    metrics::counter!("proliferate_egress_records_lost_total").increment(lost);
                    tracing::warn!(sandbox = %network.sandbox, lost, "attempts were not recorded: too many at once");
                }
            }
        }
        write(&store, batch, &network).await;
        if over {
            return;
        }
    }
}

async fn write(store: &Store, batch: Vec<NewEgressRecord>, network: &Network) {
    let written = batch.len();
    if written == 0 {
        return;
    }
    if let Err(error) = store.add_egress_records(batch).await {
        metrics::counter!("proliferate_egress_records_lost_total").increment(written as u64);
        tracing::error!(sandbox = %network.sandbox, %error, written, "attempts were not recorded");
    }
}

/// What may still be written in this minute, and the sum of what was not.
struct Share {
    most: u32,
    written: u32,
    rest: Option<(u64, NewEgressRecord)>,
}

impl Share {
    fn of(most: u32) -> Self {
        Self { most, written: 0, rest: None }
    }

    fn take(&mut self, row: NewEgressRecord) -> Option<NewEgressRecord> {
        if self.written < self.most {
            self.written += 1;
            return Some(row);
        }
        if let Some((count, sum)) = &mut self.rest {
            *count += 1;
            sum.bytes_up = sum.bytes_up.saturating_add(row.bytes_up);
            sum.bytes_down = sum.bytes_down.saturating_add(row.bytes_down);
            sum.duration_ms = (row.started_at - sum.started_at).num_milliseconds().max(0);
        } else {
            let kind = EgressKind::Unknown;
            self.rest = Some((1, NewEgressRecord { kind, host: None, port: None, address: None, ..row }));
        }
        None
    }

    /// Ends the minute; the row for what was left out.
    fn end(&mut self, network: &Network) -> Option<NewEgressRecord> {
        self.written = 0;
        let (left_out, sum) = self.rest.take()?;
        tracing::warn!(sandbox = %network.sandbox, left_out, "attempts were summed up in one row: too many in a minute");
        let reason = format!("{left_out} more attempts within a minute, of which only this sum is kept");
        Some(NewEgressRecord { reason: Some(reason), ..sum })
    }
}

fn count(record: &Record) {
    let verdict = if matches!(record.verdict, Verdict::Allowed(_)) { "allowed" } else { "refused" };
    metrics::counter!("proliferate_egress_requests_total", "verdict" => verdict).increment(1);
    metrics::counter!("proliferate_egress_bytes_total", "direction" => "up").increment(record.bytes_up);
    metrics::counter!("proliferate_egress_bytes_total", "direction" => "down").increment(record.bytes_down);
}

fn row(record: &Record, network: &Network, id: uuid::Uuid) -> NewEgressRecord {
    let (outcome, reason) = match (&record.verdict, record.ended) {
        (Verdict::Refused(refusal), _) => (EgressOutcome::Refused, Some(refusal.to_string())),
        (_, Ended::Complete) => (EgressOutcome::Complete, None),
        (_, Ended::Failed(failure)) => (EgressOutcome::Failed, Some(format!("{failure:?}"))),
        (_, Ended::Cancelled | Ended::Refused) => (EgressOutcome::Cancelled, None),
    };
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
