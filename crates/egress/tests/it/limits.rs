//! Limits on what a hostile client costs: bytes, time, connections.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use clock::Clock;
use egress::{
    AddressPolicy, Config, Failure, HeadError, Kind, Limits, Lookup, Proxy, RecordItem, Refusal, RequestEnd,
    Resolve, Verdict, record_queue,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::harness::{PUBLIC, Setup, World, open};
use crate::origin::{HELLO, Origin, echo};

async fn malformed(world: &mut World) -> HeadError {
    match world.record().await.verdict {
        Verdict::Refused(Refusal::Malformed(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn slow_headers_are_cut_off_after_ten_seconds() {
    let mut world = World::new().await;
    for part in ["", "GET http://si", "GET http://site.test/ HTTP/1.1\r\nA: b\r\n"] {
        let mut wire = world.connect().await;
        wire.send(part).await;
        wire.expect_quiet_for(Duration::from_secs(10)).await;
        assert!(wire.read_rest().await.starts_with("HTTP/1.1 408 "), "{part:?}");
        assert_eq!(malformed(&mut world).await, HeadError::TooSlow);
        tokio::time::resume();
    }
}

#[tokio::test]
async fn idle_keep_alive_connection_is_closed() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let world = World::new().await;
    let mut wire = world.connect().await;
    wire.send(format!("GET http://site.test:{}/ HTTP/1.1\r\n\r\n", site.port())).await;
    wire.response().await;
    wire.expect_quiet_for(Limits::default().keep_alive).await;
    assert_eq!(wire.read_rest().await, "");
}

#[tokio::test]
async fn oversized_heads_are_refused() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let mut world = World::new().await;
    let get = format!("GET http://site.test:{}/ HTTP/1.1\r\n", site.port());
    let fits = 16 * 1024 - get.len() - "A: \r\n\r\n".len() - "Connection: close\r\n".len();
    let with_field = |length| format!("{get}Connection: close\r\nA: {}\r\n\r\n", "x".repeat(length));
    assert!(world.request(with_field(fits)).await.starts_with("HTTP/1.1 200 "));
    world.record().await;
    let endless = format!("GET http://site.test/{}", "x".repeat(100_000));
    for head in [with_field(fits + 1), endless] {
        assert!(world.request(head).await.starts_with("HTTP/1.1 431 "));
        assert_eq!(malformed(&mut world).await, HeadError::TooLong);
    }
    let with_fields = |count| format!("{get}Connection: close\r\n{}\r\n", "A: b\r\n".repeat(count));
    assert!(world.request(with_fields(99)).await.starts_with("HTTP/1.1 200 "));
    world.record().await;
    assert!(world.request(with_fields(100)).await.starts_with("HTTP/1.1 431 "));
    assert_eq!(malformed(&mut world).await, HeadError::TooManyFields);
}

#[tokio::test]
async fn endless_body_is_cut_off_and_not_buffered() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let limits = Limits { request_body: 1_000_000, ..Limits::default() };
    let mut world = World::with(Setup { limits, ..Setup::default() }).await;
    let mut wire = world.connect().await;
    wire.send(format!(
        "POST http://site.test:{}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        site.port()
    ))
    .await;
    let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
    for _ in 0..300 {
        // The proxy closes the connection before the end.
        if wire.0.write_all(chunk.as_bytes()).await.is_err() {
            break;
        }
    }
    assert!(wire.read_rest().await.starts_with("HTTP/1.1 413 "));
    let record = world.record().await;
    assert_eq!(record.ended, RequestEnd::Failed(Failure::BodyTooLong));
    assert!((900_000..1_100_000).contains(&record.bytes_up), "{}", record.bytes_up);

    let length = "Content-Length: 1000001";
    let answer =
        world.request(format!("POST http://site.test:{}/ HTTP/1.1\r\n{length}\r\n\r\nx", site.port())).await;
    assert!(answer.starts_with("HTTP/1.1 413 "), "the announced length must be refused: {answer}");
}

#[tokio::test]
async fn endless_lines_within_a_body_are_cut_off() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let mut world = World::new().await;
    let post =
        format!("POST http://site.test:{}/ HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", site.port());
    let extension = format!("4;{}\r\nabcd\r\n", "x".repeat(1_000));
    let trailer = format!("0\r\n{}", format!("A: {}\r\n", "x".repeat(1_000)).repeat(20));
    for body in [extension, trailer, "0".repeat(1_000)] {
        assert!(world.request(format!("{post}{body}")).await.starts_with("HTTP/1.1 400 "));
        assert_eq!(world.record().await.ended, RequestEnd::Failed(Failure::BadBody));
    }
}

#[tokio::test]
async fn stalled_bodies_and_responses_time_out() {
    let listener = TcpListener::bind((PUBLIC, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut world = World::new().await;
    for (request, status, failure) in [
        (
            format!("POST http://site.test:{port}/ HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"),
            "408",
            Failure::BodyStalled,
        ),
        (format!("GET http://site.test:{port}/ HTTP/1.1\r\n\r\n"), "504", Failure::Idle),
    ] {
        let mut wire = world.connect().await;
        wire.send(request).await;
        let _target = listener.accept().await.unwrap();
        wire.expect_quiet_for(Limits::default().exchange_idle).await;
        assert!(wire.read_rest().await.starts_with(&format!("HTTP/1.1 {status} ")));
        assert_eq!(world.record().await.ended, RequestEnd::Failed(failure));
        tokio::time::resume();
    }
}

#[tokio::test]
async fn connections_beyond_the_limit_get_an_error() {
    let (site, _task) = echo(PUBLIC).await;
    let mut world = World::new().await;
    let mut open = Vec::new();
    for _ in 0..64 {
        let mut wire = world.connect().await;
        wire.tunnel(&format!("site.test:{}", site.port())).await;
        open.push(wire);
    }
    assert_eq!(world.proxy.counters().connections, 64);
    let answer = world.request(format!("CONNECT site.test:{} HTTP/1.1\r\n\r\n", site.port())).await;
    assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("too_many_connections"), "{answer}");
    let record = world.record().await;
    assert_eq!(record.verdict, Verdict::Refused(Refusal::TooManyConnections(64)));
    assert_eq!((record.kind, record.target.unwrap().port), (Kind::Connect, site.port()));
    open.pop();
    world.record().await;
    world.connect().await.tunnel(&format!("site.test:{}", site.port())).await;
}

#[tokio::test]
async fn flood_of_connections_is_refused_and_recorded() {
    let limits = Limits { connections: 1, ..Limits::default() };
    let mut world = World::with(Setup { limits, ..Setup::default() }).await;
    let _first = world.connect().await;
    while world.proxy.counters().connections < 1 {
        tokio::task::yield_now().await;
    }
    let mut flood = Vec::new();
    for number in 1..=60 {
        let mut wire = world.connect().await;
        wire.send(format!("GET http://site{number}.test/ HTTP/1.1\r\n\r\n")).await;
        flood.push(wire);
    }
    let mut hosts = BTreeSet::new();
    for mut wire in flood {
        assert!(wire.response().await.0.starts_with("HTTP/1.1 503 "));
        let record = world.record().await;
        assert_eq!(
            (record.kind, record.verdict),
            (Kind::Http, Verdict::Refused(Refusal::TooManyConnections(1)))
        );
        hosts.insert(record.target.unwrap().host.to_string());
    }
    assert_eq!(hosts, (1..=60).map(|number| format!("site{number}.test")).collect());
    // A silent connection times out like any other.
    let silent = world.connect().await;
    silent.expect_quiet_for(Duration::from_secs(10)).await;
    assert_eq!(world.record().await.kind, Kind::Unknown);
}

#[tokio::test]
async fn requests_above_the_rate_wait_and_are_recorded() {
    let limits = Limits { connections: 2, requests_at_once: 3, requests_per_second: 1, ..Limits::default() };
    let mut world = World::with(Setup { limits, ..Setup::default() }).await;
    let refused = "GET http://127.0.0.1:1/ HTTP/1.1\r\n\r\n";
    let mut wire = world.connect().await;
    for _ in 0..3 {
        wire.send(refused).await;
        assert!(wire.response().await.0.starts_with("HTTP/1.1 403 "));
    }
    // Malformed and rejected requests are recorded too, and are subject to the same rate limit.
    let mut malformed = world.connect().await;
    malformed.send("?\r\n\r\n").await;
    malformed.expect_quiet_for(Duration::from_secs(1)).await;
    assert!(malformed.read_rest().await.starts_with("HTTP/1.1 400 "));
    tokio::time::resume();
    drop(malformed);
    let has = async |connections| {
        while world.proxy.counters().connections != connections {
            tokio::task::yield_now().await;
        }
    };
    has(1).await;
    let _second = world.connect().await;
    has(2).await;
    let mut third = world.connect().await;
    third.send(refused).await;
    third.expect_quiet_for(Duration::from_secs(2)).await;
    assert!(third.read_rest().await.starts_with("HTTP/1.1 503 "));
    tokio::time::resume();
    for _ in 0..5 {
        assert!(matches!(world.record().await.verdict, Verdict::Refused(_)));
    }
    // After a pause, a burst of three is allowed again.
    world.clock.advance(Duration::from_mins(1));
    for _ in 0..3 {
        wire.send(refused).await;
        assert!(wire.response().await.0.starts_with("HTTP/1.1 403 "));
        assert_eq!(world.record().await.target.unwrap().to_string(), "127.0.0.1:1");
    }
}

/// A name server that never answers.
struct Silent;

impl Resolve for Silent {
    fn lookup<'a>(&'a self, _: &'a str) -> Lookup<'a> {
        Box::pin(std::future::pending())
    }
}

/// Also shows that the proxy accepts streams other than sockets.
#[tokio::test(start_paused = true)]
async fn silent_name_server_times_out() {
    let (recorder, mut records) = record_queue(1);
    let (_rules, rules) = watch::channel(Arc::new(open()));
    let proxy = Proxy::new(Config {
        rules,
        resolver: Arc::new(Silent),
        addresses: AddressPolicy::strict(),
        limits: Limits::default(),
        clock: Clock::system(),
        recorder: Arc::new(recorder),
    });
    let (mut client, server) = tokio::io::duplex(100);
    let talking = async {
        client.write_all(b"CONNECT site.test:443 HTTP/1.1\r\n\r\n").await.unwrap();
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        got
    };
    let ((), got) = tokio::join!(proxy.serve(server), talking);
    assert!(got.starts_with("HTTP/1.1 504 "), "{got}");
    let Some(RecordItem::Record(record)) = records.next().await else { panic!("no record") };
    assert_eq!(record.ended, RequestEnd::Failed(Failure::TimedOut));
}
