//! Records: exact, complete, and never delaying traffic.

use std::time::Duration;

use chrono::DateTime;
use egress::{AllowReason, Kind, RecordItem, Recorder, RequestEnd, Verdict, record_queue};
use tokio::net::TcpListener;

use crate::harness::{PUBLIC, World};
use crate::origin::{HELLO, Origin};

#[tokio::test]
async fn plain_request_is_recorded_with_exact_byte_counts() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let mut world = World::new().await;
    let url = format!("http://SITE.test:{}/", site.port());
    world.request(format!("POST {url} HTTP/1.1\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc")).await;
    let record = world.record().await;
    assert_eq!(record.bytes_up, site.requests()[0].len() as u64);
    assert_eq!(record.bytes_down, HELLO.len() as u64);
    assert_eq!((record.kind, record.ended, record.address), (Kind::Http, RequestEnd::Complete, Some(PUBLIC)));
    assert_eq!(record.target.unwrap().to_string(), format!("site.test:{}", site.port()));
    let Verdict::Allowed(AllowReason::Listed(rule)) = record.verdict else { panic!("{:?}", record.verdict) };
    assert_eq!(rule.to_string(), "*:1024-65535");
    let counters = world.proxy.counters();
    assert_eq!((counters.allowed, counters.refused), (1, 0));
    assert_eq!((counters.bytes_up, counters.bytes_down), (record.bytes_up, record.bytes_down));
}

#[tokio::test]
async fn each_request_of_a_connection_has_its_own_record() {
    let listener = TcpListener::bind((PUBLIC, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut world = World::new().await;
    let mut wire = world.connect().await;
    let start = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
    for round in 0..3 {
        wire.send(format!("GET http://site.test:{port}/ HTTP/1.1\r\n\r\n")).await;
        let (mut target, _) = listener.accept().await.unwrap();
        world.clock.advance(Duration::from_secs(7));
        tokio::io::AsyncWriteExt::write_all(&mut target, HELLO.as_bytes()).await.unwrap();
        assert_eq!(wire.response().await.1, "hello");
        let record = world.record().await;
        assert_eq!((record.started - start).num_seconds(), round * 7);
        assert_eq!(record.duration, Duration::from_secs(7));
    }
}

#[tokio::test]
async fn full_queue_counts_lost_records_and_never_blocks() {
    let site = Origin::start(PUBLIC, HELLO).await;
    let mut world = World::new().await;
    world.get(&format!("http://site.test:{}/", site.port())).await;
    let record = world.record().await;

    let (queue, mut records) = record_queue(2);
    for _ in 0..5 {
        queue.record(record.clone());
    }
    assert_eq!(records.next().await, Some(RecordItem::Lost(3)));
    assert_eq!(records.next().await, Some(RecordItem::Record(record.clone())));
    queue.record(record.clone());
    queue.record(record.clone());
    drop(queue);
    let mut rest = Vec::new();
    while let Some(news) = records.next().await {
        rest.push(news);
    }
    let kept = RecordItem::Record(record);
    assert_eq!(rest, [RecordItem::Lost(1), kept.clone(), kept]);
}
