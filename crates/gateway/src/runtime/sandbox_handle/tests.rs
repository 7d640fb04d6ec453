//! Tests of sandbox handles, with a fake provider that the test controls.

use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use channel::Key;
use clock::{Clock, Rng};
use egress::{AddressPolicy, Config, Limits, Mode, Rules, SystemResolver};
use sandbox::{
    Capabilities, CleanCopy, EnsureOutcome, ExpiryOwner, Isolation, LeftOut, Provider, SandboxInfo,
};
use sandboxd::protocol::{Exec, ExitReason};
use sandboxd::server::Worker;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::super::network::{CountingRecorder, proxy_of};
use super::*;

#[tokio::test]
async fn connections_beyond_those_that_are_served_wait_and_are_not_dropped() {
    let (_rules, rules) = watch::channel(Arc::new(Rules::new(Mode::Offline)));
    let proxy = Proxy::new(Config {
        rules,
        resolver: Arc::new(SystemResolver::new(1)),
        addresses: AddressPolicy::strict(),
        limits: Limits { connections: 2 * MAX_SERVED, ..Limits::default() },
        clock: Clock::system(),
        recorder: Arc::new(CountingRecorder),
    });
    let proxied = ProxiedConnections::default();
    let servers = Servers { proxy: proxy.clone(), gateway: None, ports: Ports::OWN_NAMESPACE, proxied };
    let (_servers, served) = watch::channel(Arc::new(servers));
    let (to, injected) = mpsc::channel(1);
    let serving = tokio::spawn(serve(injected, served));
    let mut ours = Vec::new();
    for _ in 0..=MAX_SERVED {
        let (one, other) = tokio::io::duplex(4096);
        to.send(InjectedConnection { port: PROXY_PORT, stream: Box::new(other) }).await.unwrap();
        ours.push(one);
    }
    for mut stream in ours {
        stream.write_all(b"GET http://x.test/ HTTP/1.1\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("offline"), "{answer:?}");
    }
    assert_eq!(proxy.counters().refused, MAX_SERVED as u64 + 1);
    serving.abort();
}

#[tokio::test]
async fn a_connection_that_is_open_when_all_is_closed_is_on_record() {
    let origin = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let host = origin.local_addr().unwrap().to_string();
    let rules = Rules::new(Mode::Open).allow_private(&host).unwrap();
    let (queue, mut records) = egress::record_queue(10);
    let (proxy, proxied) = (proxy_of(rules, queue, &Clock::system()), ProxiedConnections::default());
    let servers = Servers { proxy, gateway: None, ports: Ports::OWN_NAMESPACE, proxied: proxied.clone() };
    let (_servers, served) = watch::channel(Arc::new(servers));
    let (to, injected) = mpsc::channel(1);
    let serving = tokio::spawn(serve(injected, served));
    let (mut ours, other) = tokio::io::duplex(4096);
    to.send(InjectedConnection { port: PROXY_PORT, stream: Box::new(other) }).await.unwrap();
    ours.write_all(format!("CONNECT {host} HTTP/1.1\r\n\r\n").as_bytes()).await.unwrap();
    let (mut reached, _) = origin.accept().await.unwrap();
    let mut answer = [0; 12];
    ours.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200");
    ours.write_all(b"hello").await.unwrap();
    reached.read_exact(&mut [0; 5]).await.unwrap();
    proxied.close().await;
    let recorded = futures_util::FutureExt::now_or_never(records.next()).flatten();
    let Some(egress::RecordItem::Record(record)) = recorded else { panic!("{recorded:?}") };
    assert_eq!((record.ended, record.bytes_up), (egress::RequestEnd::Cancelled, 5));
    serving.abort();
}

/// A fake provider of one sandbox.
struct FakeProvider {
    ensured: EnsureOutcome,
    /// The port of its supervisor, or `None` if it cannot be reached.
    supervisor: Option<u16>,
    dialled: AtomicU32,
    undone: parking_lot::Mutex<Vec<&'static str>>,
}

impl FakeProvider {
    fn new(ensured: EnsureOutcome, supervisor: Option<u16>) -> Arc<Self> {
        let (dialled, undone) = (AtomicU32::default(), parking_lot::Mutex::default());
        Arc::new(Self { ensured, supervisor, dialled, undone })
    }

    fn undone(&self) -> Vec<&'static str> {
        self.undone.lock().clone()
    }

    fn note(&self, what: &'static str) {
        self.undone.lock().push(what);
    }
}

#[async_trait]
impl Provider for FakeProvider {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            memory_pause: false,
            durable_snapshot: false,
            fork: false,
            injected_ports: true,
            owns_processes: true,
            expiry: ExpiryOwner::Gateway,
            isolation: Isolation::None,
        }
    }

    async fn ensure(&self, _: &Spec) -> Result<EnsureOutcome, SandboxError> {
        Ok(self.ensured.clone())
    }

    async fn snapshot(&self, id: &SandboxId, _: &LeftOut, _: CleanCopy) -> Result<SnapshotId, SandboxError> {
        Err(SandboxError::NotFound(id.clone()))
    }

    async fn remove_snapshot(&self, _: &SnapshotId) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn pause(&self, _: &SandboxId) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn resume(&self, _: &SandboxId) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn halt(&self, _: &SandboxId) -> Result<(), SandboxError> {
        self.note("processes");
        Ok(())
    }

    async fn terminate(&self, _: &SandboxId) -> Result<(), SandboxError> {
        self.note("files");
        Ok(())
    }

    async fn list(&self) -> Result<Vec<SandboxInfo>, SandboxError> {
        Ok(Vec::new())
    }

    async fn dial(&self, _: &SandboxId, _: u16) -> Result<Box<dyn ByteStream>, SandboxError> {
        self.dialled.fetch_add(1, Ordering::SeqCst);
        let port = self.supervisor.ok_or(SandboxError::BrokerDied)?;
        let stream = tokio::net::TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        Ok(Box::new(stream.map_err(|error| SandboxError::Refused { port, kind: error.kind() })?))
    }

    async fn listeners(&self, _: &SandboxId) -> Result<mpsc::Receiver<InjectedConnection>, SandboxError> {
        Ok(mpsc::channel(1).1)
    }
}

#[tokio::test]
async fn a_start_that_does_not_become_ready_removes_only_files_that_it_made() {
    let directory = tempfile::tempdir().unwrap();
    for (recovered, made_files, undone) in
        [(true, false, vec![]), (false, false, vec!["processes"]), (false, true, vec!["files"])]
    {
        let id = SandboxId::new("one").unwrap();
        let fake = FakeProvider::new(EnsureOutcome { id: id.clone(), recovered, made_files }, None);
        let request = SandboxRequest {
            id,
            env: BTreeMap::new(),
            snapshot: None,
            proxy: proxy_of(Rules::new(Mode::Offline), CountingRecorder, &Clock::system()),
            gateway: None,
            programs: BTreeMap::new(),
        };
        let started = Sandboxes::of(fake.clone(), directory.path()).start(request).await.map(drop);
        assert!(matches!(started, Err(SandboxError::BrokerDied)), "{started:?}");
        assert_eq!(fake.undone(), undone);
    }
}

#[tokio::test]
async fn a_supervisor_whose_channel_has_ended_is_reached_over_another() {
    let directory = tempfile::tempdir().unwrap();
    let id = SandboxId::new("one").unwrap();
    let (home, workspace) = (directory.path().join("home"), directory.path().join("home/workspace"));
    std::fs::create_dir_all(&workspace).unwrap();
    let (logs, env_store) = (directory.path().join("logs"), directory.path().join("store"));
    let options = Options { port: 0, home, workspace, logs, env_store, ..Options::default() };
    let (clock, rng) = (Clock::system(), Rng::system());
    let key = super::super::key::RootKey::open(&directory.path().join("key"), &rng).unwrap().of(&id);
    let worker = Worker::bind(&options, key.clone(), clock, rng.clone()).await.unwrap();
    let port = worker.port();
    tokio::spawn(worker.run());
    let ensured = EnsureOutcome { id: id.clone(), recovered: true, made_files: false };
    let fake = FakeProvider::new(ensured, Some(port));
    let sandboxes = Sandboxes::of(fake.clone(), directory.path());
    let channel = SharedChannel { port, channel: Mutex::new(ended(&key, &rng).await) };
    for _ in 0..2 {
        let inside = channel.get(&sandboxes, &id).await.unwrap();
        let exec = Exec { argv: vec!["/bin/true".to_owned()], timeout_ms: Some(20_000), ..Exec::default() };
        assert_eq!(inside.run(exec, "", 0).await.unwrap().done.ended, ExitReason::Exit(0));
    }
    assert_eq!(fake.dialled.load(Ordering::SeqCst), 1);
}

/// A channel whose peer is gone.
async fn ended(key: &Key, rng: &Rng) -> Sandboxd {
    let (ours, theirs) = tokio::io::duplex(4096);
    let limits = ChannelLimits::default();
    let (inside, accepted) =
        tokio::join!(Sandboxd::connect(ours, key, limits, rng), channel::accept(theirs, key, limits, rng));
    drop(accepted.map(drop));
    let inside = inside.unwrap();
    while !inside.is_closed() {
        tokio::task::yield_now().await;
    }
    inside
}
