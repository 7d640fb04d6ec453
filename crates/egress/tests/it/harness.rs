//! A proxy with a test environment: rules that can change, a scripted resolver, captured records.
//!
//! [`PUBLIC`] counts as public; every other loopback address is classified as usual, and refused.

use std::future::poll_fn;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use chrono::DateTime;
use clock::Clock;
use egress::{
    AddressPolicy, Config, Limits, Mode, Proxy, Record, RecordItem, Records, Rules, ScriptedResolver,
    record_queue,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;

/// Stands in for the public internet.
pub(crate) const PUBLIC: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 10));
/// The host itself, which no sandbox may reach.
pub(crate) const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// The timeout for a test that would hang; no test normally gets near it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_mins(1);

pub(crate) struct World {
    pub(crate) address: SocketAddr,
    pub(crate) proxy: Proxy,
    pub(crate) resolver: Arc<ScriptedResolver>,
    pub(crate) clock: Clock,
    rules: watch::Sender<Arc<Rules>>,
    records: Records,
    accepting: AbortOnDropHandle<()>,
}

/// Rules that allow public hosts on every port that a test server may get.
pub(crate) fn open() -> Rules {
    Rules::new(Mode::Open).allow("*:1024-65535").unwrap()
}

pub(crate) struct Setup {
    pub(crate) rules: Rules,
    pub(crate) resolver: ScriptedResolver,
    pub(crate) limits: Limits,
    pub(crate) stand_ins: Vec<IpAddr>,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            rules: open(),
            resolver: ScriptedResolver::new().answer("site.test", [PUBLIC]),
            limits: Limits::default(),
            stand_ins: vec![PUBLIC],
        }
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        Self::with(Setup::default()).await
    }

    pub(crate) async fn with(setup: Setup) -> Self {
        let (rules, watched) = watch::channel(Arc::new(setup.rules));
        let (recorder, records) = record_queue(1_000);
        let resolver = Arc::new(setup.resolver);
        let clock = Clock::manual(DateTime::from_timestamp(1_700_000_000, 0).unwrap());
        let strict = AddressPolicy::strict();
        let proxy = Proxy::new(Config {
            rules: watched,
            resolver: Arc::clone(&resolver) as _,
            addresses: setup.stand_ins.into_iter().fold(strict, AddressPolicy::with_stand_in),
            limits: setup.limits,
            clock: clock.clone(),
            recorder: Arc::new(recorder),
        });
        let listener = TcpListener::bind((HOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let accepting = AbortOnDropHandle::new(tokio::spawn(accept(listener, proxy.clone())));
        Self { address, proxy, resolver, clock, rules, records, accepting }
    }

    pub(crate) fn change_rules(&self, rules: Rules) {
        self.rules.send_replace(Arc::new(rules));
    }

    pub(crate) async fn connect(&self) -> Wire {
        Wire(BufReader::new(TcpStream::connect(self.address).await.unwrap()))
    }

    /// Sends bytes on a new connection and returns everything that is received until it ends.
    pub(crate) async fn request(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut wire = self.connect().await;
        wire.send(bytes).await;
        wire.read_rest().await
    }

    pub(crate) async fn get(&self, url: &str) -> String {
        self.request(format!("GET {url} HTTP/1.1\r\nHost: ignored\r\nConnection: close\r\n\r\n")).await
    }

    /// Waits for the next record.
    pub(crate) async fn record(&mut self) -> Record {
        match timeout(TEST_TIMEOUT, self.records.next()).await.unwrap() {
            Some(RecordItem::Record(record)) => record,
            other => panic!("expected a record, got {other:?}"),
        }
    }

    /// Stops accepting and drops every connection.
    pub(crate) fn stop(&self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, proxy: Proxy) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let proxy = proxy.clone();
        connections.spawn(async move { proxy.serve(stream).await });
    }
}

/// The sandbox's end of a connection.
pub(crate) struct Wire(pub(crate) BufReader<TcpStream>);

impl Wire {
    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.0.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Reads until the connection ends; a reset counts as an end.
    pub(crate) async fn read_rest(&mut self) -> String {
        let mut all = Vec::new();
        let _ = timeout(TEST_TIMEOUT, self.0.read_to_end(&mut all)).await.unwrap();
        String::from_utf8_lossy(&all).into_owned()
    }

    /// Reads one response: its head, and its body by `Content-Length`.
    pub(crate) async fn response(&mut self) -> (String, String) {
        let head = self.read_until("\r\n\r\n").await;
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
        timeout(TEST_TIMEOUT, self.0.read_exact(&mut body)).await.unwrap().unwrap();
        (head, String::from_utf8(body).unwrap())
    }

    pub(crate) async fn read_until(&mut self, end: &str) -> String {
        let mut found = Vec::new();
        while !found.ends_with(end.as_bytes()) {
            found.push(timeout(TEST_TIMEOUT, self.0.read_u8()).await.unwrap().unwrap());
        }
        String::from_utf8(found).unwrap()
    }

    /// Pauses the tokio clock and advances it just past `limit`: the proxy must stay quiet until then, and
    /// afterwards respond or close the connection.
    pub(crate) async fn expect_quiet_for(&self, limit: Duration) {
        let moment = Duration::from_millis(100);
        assert!(self.is_quiet().await);
        tokio::time::pause();
        tokio::time::advance(limit.saturating_sub(moment)).await;
        assert!(self.is_quiet().await, "the proxy gave up before the time limit");
        tokio::time::advance(moment * 2).await;
        assert!(!self.is_quiet().await, "the proxy waits longer than the time limit");
    }

    /// Whether the proxy has neither closed the connection nor sent anything, once all other tasks had time to run.
    async fn is_quiet(&self) -> bool {
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
            let mut byte = [0];
            let mut buffer = ReadBuf::new(&mut byte);
            let peeked = poll_fn(|cx| Poll::Ready(self.0.get_ref().poll_peek(cx, &mut buffer).is_ready()));
            if peeked.await {
                return false;
            }
        }
        true
    }

    /// Opens a tunnel, which must succeed.
    pub(crate) async fn tunnel(&mut self, target: &str) {
        self.send(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n")).await;
        let head = self.read_until("\r\n\r\n").await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    }
}
