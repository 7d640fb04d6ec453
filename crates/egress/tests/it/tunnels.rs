//! `CONNECT`: all bytes and half-closes pass, and no tunnel stays open for ever.

use egress::{AllowReason, Failure, Kind, Limits, Mode, RequestEnd, Rules, Verdict};
use testkit::{Direction, FaultProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::harness::{HOST, PUBLIC, Setup, World, open};
use crate::origin::echo;

#[tokio::test]
async fn tunnel_relays_all_bytes_and_half_closes() {
    let (site, _task) = echo(PUBLIC).await;
    let mut world = World::new().await;
    let mut wire = world.connect().await;
    // Bytes directly after the request belong to the tunnel.
    wire.send(format!("CONNECT site.test:{} HTTP/1.1\r\n\r\nearly", site.port())).await;
    let data: Vec<u8> = (0..300_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let (mut reader, mut writer) = tokio::io::split(wire.0);
    let sending = async {
        writer.write_all(&data).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    let (read, ()) = tokio::join!(reader.read_to_end(&mut got), sending);
    read.unwrap();
    let body = got.strip_prefix(b"HTTP/1.1 200 Connection established\r\n\r\nearly").unwrap();
    assert!(body == data);
    let record = world.record().await;
    assert_eq!((record.bytes_up, record.bytes_down), (300_005, 300_005));
    assert_eq!(
        (record.kind, record.ended, record.address),
        (Kind::Connect, RequestEnd::Complete, Some(PUBLIC))
    );
    assert!(matches!(record.verdict, Verdict::Allowed(AllowReason::Listed(_))));
}

#[tokio::test]
async fn each_side_may_continue_after_the_other_half_closed() {
    let listener = TcpListener::bind((PUBLIC, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut world = World::new().await;
    let mut wire = world.connect().await;
    wire.tunnel(&format!("site.test:{port}")).await;
    let (mut target, _) = listener.accept().await.unwrap();
    wire.0.shutdown().await.unwrap();
    assert_eq!(target.read(&mut [0; 9]).await.unwrap(), 0, "the client's half-close must reach the target");
    target.write_all(b"still here").await.unwrap();
    drop(target);
    assert_eq!(wire.read_rest().await, "still here");
    assert_eq!(world.record().await.ended, RequestEnd::Complete);

    let mut wire = world.connect().await;
    wire.tunnel(&format!("site.test:{port}")).await;
    let (mut target, _) = listener.accept().await.unwrap();
    target.shutdown().await.unwrap();
    assert_eq!(wire.read_rest().await, "");
    wire.send("me too").await;
    wire.0.shutdown().await.unwrap();
    let mut got = String::new();
    target.read_to_string(&mut got).await.unwrap();
    assert_eq!(got, "me too");
    assert_eq!(world.record().await.bytes_up, 6);
}

#[tokio::test]
async fn idle_half_open_tunnel_is_closed() {
    let listener = TcpListener::bind((PUBLIC, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut world = World::new().await;
    let mut wire = world.connect().await;
    wire.tunnel(&format!("site.test:{port}")).await;
    let (mut target, _) = listener.accept().await.unwrap();
    wire.0.shutdown().await.unwrap();
    assert_eq!(target.read(&mut [0; 9]).await.unwrap(), 0);
    wire.expect_quiet_for(Limits::default().tunnel_idle).await;
    let record = world.record().await;
    assert_eq!(record.ended, RequestEnd::Failed(Failure::Idle));
    assert_eq!(world.proxy.counters().connections, 0);
}

#[tokio::test]
async fn a_reset_of_the_target_ends_the_tunnel() {
    let (site, _task) = echo(HOST).await;
    let fault = FaultProxy::start(site).await.unwrap();
    let mut world = World::with(Setup { stand_ins: vec![HOST], ..Setup::default() }).await;
    let mut wire = world.connect().await;
    wire.tunnel(&format!("127.0.0.1:{}", fault.address().port())).await;
    wire.send("ping").await;
    let mut pong = [0; 4];
    wire.0.read_exact(&mut pong).await.unwrap();
    fault.reset_now();
    wire.read_rest().await;
    let record = world.record().await;
    assert_eq!(record.ended, RequestEnd::Failed(Failure::TargetGone));
    assert_eq!((record.bytes_up, record.bytes_down), (4, 4));
    assert_eq!(fault.counts().forwarded(Direction::ToTarget), 4);
}

#[tokio::test]
async fn stopping_the_proxy_closes_and_records_tunnels() {
    let (site, _task) = echo(PUBLIC).await;
    let mut world = World::new().await;
    let mut wire = world.connect().await;
    wire.tunnel(&format!("site.test:{}", site.port())).await;
    world.stop();
    assert_eq!(wire.read_rest().await, "");
    assert_eq!(world.record().await.ended, RequestEnd::Cancelled);
}

#[tokio::test]
async fn tunnel_ends_only_when_changed_rules_refuse_it() {
    let (site, _task) = echo(PUBLIC).await;
    let host = format!("site.test:{}", site.port());
    let refusals = [
        Rules::new(Mode::Offline),
        Rules::new(Mode::AllowList),
        open().deny("site.test").unwrap(),
        // By the address that the name resolved to.
        open().deny(&PUBLIC.to_string()).unwrap(),
    ];
    for rules in refusals {
        let mut world = World::new().await;
        let mut wire = world.connect().await;
        wire.tunnel(&host).await;
        world.change_rules(open().deny("other.test").unwrap());
        wire.send("ping").await;
        wire.read_until("ping").await;
        world.change_rules(rules);
        assert_eq!(wire.read_rest().await, "");
        let record = world.record().await;
        assert_eq!((record.ended, record.bytes_up), (RequestEnd::Failed(Failure::RefusedSince), 4));
        assert!(matches!(record.verdict, Verdict::Allowed(_)));
    }
}

#[tokio::test]
async fn in_flight_request_ends_when_changed_rules_refuse_it() {
    let listener = TcpListener::bind((PUBLIC, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut world = World::new().await;
    let mut wire = world.connect().await;
    wire.send(format!("GET http://site.test:{port}/ HTTP/1.1\r\n\r\n")).await;
    let (mut target, _) = listener.accept().await.unwrap();
    target.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome").await.unwrap();
    wire.read_until("some").await;
    world.change_rules(Rules::new(Mode::Offline));
    assert_eq!(wire.read_rest().await, "");
    assert_eq!(world.record().await.ended, RequestEnd::Failed(Failure::RefusedSince));
}
