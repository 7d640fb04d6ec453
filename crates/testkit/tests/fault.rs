//! The fault proxy in front of a real echo server: each fault must be seen, and must end when it is healed.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as the tests do")]

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use clock::Clock;
use testkit::{Direction, FaultProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// Ends a test that would hang; no test expects to come near it.
const PATIENCE: Duration = Duration::from_secs(30);
const FOR_EVER: Duration = Duration::from_hours(1);
/// The least time that a short fault costs. A timer never ends early, so this bound holds on any machine.
const BRIEF: Duration = Duration::from_millis(20);

async fn echo_server() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
                let _ = writer.shutdown().await;
            });
        }
    });
    address
}

async fn connect(proxy: &FaultProxy) -> io::Result<TcpStream> {
    timeout(PATIENCE, TcpStream::connect(proxy.address())).await.unwrap()
}

async fn read(stream: &mut TcpStream, length: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; length];
    timeout(PATIENCE, stream.read_exact(&mut buffer)).await.unwrap()?;
    Ok(buffer)
}

/// Sends a word and waits for it to come back, so that the connection is known to stand from end to end.
async fn round_trip(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"ping").await?;
    assert_eq!(read(stream, 4).await?, b"ping");
    Ok(())
}

async fn took(work: impl Future<Output = io::Result<()>>) -> Duration {
    let clock = Clock::system();
    let began = clock.elapsed();
    work.await.unwrap();
    clock.elapsed().saturating_sub(began)
}

async fn wait_received(proxy: &FaultProxy, direction: Direction, bytes: u64) {
    timeout(PATIENCE, proxy.wait_for(|counts| counts.received(direction) >= bytes)).await.unwrap();
}

#[tokio::test]
async fn without_faults_every_byte_and_the_end_pass_both_ways() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    let data: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let (mut reader, mut writer) = stream.split();
    let send = async {
        writer.write_all(&data).await.unwrap();
        writer.shutdown().await.unwrap();
    };
    let mut back = Vec::new();
    let ((), received) =
        timeout(PATIENCE, async { tokio::join!(send, reader.read_to_end(&mut back)) }).await.unwrap();
    received.unwrap();
    assert!(back == data);
    let counts = proxy.counts();
    assert_eq!(counts.connections, 1);
    for direction in [Direction::ToTarget, Direction::ToClient] {
        assert_eq!((counts.received(direction), counts.forwarded(direction)), (200_000, 200_000));
    }
}

#[tokio::test]
async fn latency_holds_data_back_until_healed() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    proxy.latency(Direction::ToClient, FOR_EVER);
    stream.write_all(b"late").await.unwrap();
    wait_received(&proxy, Direction::ToClient, 4).await;
    assert_eq!(proxy.counts().forwarded(Direction::ToClient), 0);
    proxy.heal().await.unwrap();
    assert_eq!(read(&mut stream, 4).await.unwrap(), b"late");
}

#[tokio::test]
async fn latency_ends_by_itself_too() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    proxy.latency(Direction::ToTarget, BRIEF);
    assert!(took(round_trip(&mut stream)).await >= BRIEF, "nothing was held back");
}

#[tokio::test]
async fn a_throttled_stream_trickles_and_comes_whole_when_healed() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    proxy.throttle(Direction::ToClient, NonZeroU32::MIN);
    let data: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    stream.write_all(&data).await.unwrap();
    wait_received(&proxy, Direction::ToClient, 1).await;
    let trickled = proxy.counts().forwarded(Direction::ToClient);
    assert!(trickled < PATIENCE.as_secs(), "one byte a second, and yet {trickled} bytes have passed");
    proxy.heal().await.unwrap();
    assert!(read(&mut stream, data.len()).await.unwrap() == data);
}

#[tokio::test]
async fn a_throttled_stream_moves_on_by_itself() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    // Four bytes, one after the other.
    proxy.throttle(Direction::ToTarget, NonZeroU32::new(100).unwrap());
    assert!(took(round_trip(&mut stream)).await >= BRIEF, "nothing was held back");
}

#[tokio::test]
async fn a_reset_comes_after_exactly_the_asked_bytes() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    proxy.reset_after(Direction::ToClient, 7);
    let mut stream = connect(&proxy).await.unwrap();
    stream.write_all(b"0123456789").await.unwrap();
    let mut back = Vec::new();
    let error = timeout(PATIENCE, stream.read_to_end(&mut back)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(back, b"0123456");
    assert_eq!(proxy.counts().forwarded(Direction::ToClient), 7);
    proxy.heal().await.unwrap();
    round_trip(&mut connect(&proxy).await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_reset_now_hits_open_connections_and_no_later_one() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    round_trip(&mut stream).await.unwrap();
    proxy.reset_now();
    assert_eq!(read(&mut stream, 1).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    round_trip(&mut connect(&proxy).await.unwrap()).await.unwrap();
    assert_eq!(proxy.counts().connections, 2);
}

#[tokio::test]
async fn a_black_hole_swallows_and_breaks_the_stream_when_healed() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    round_trip(&mut stream).await.unwrap();
    proxy.black_hole(Direction::ToTarget);
    stream.write_all(b"lost").await.unwrap();
    wait_received(&proxy, Direction::ToTarget, 8).await;
    assert_eq!(proxy.counts().forwarded(Direction::ToTarget), 4);
    proxy.heal().await.unwrap();
    assert_eq!(read(&mut stream, 1).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    round_trip(&mut connect(&proxy).await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_healed_black_hole_that_lost_nothing_leaves_the_connection_alone() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    round_trip(&mut stream).await.unwrap();
    proxy.black_hole(Direction::ToTarget);
    proxy.heal().await.unwrap();
    round_trip(&mut stream).await.unwrap();
}

#[tokio::test]
async fn refusing_stops_new_connections_only_and_keeps_the_port() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    round_trip(&mut stream).await.unwrap();
    proxy.refuse().await;
    assert_eq!(connect(&proxy).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    round_trip(&mut stream).await.unwrap();
    proxy.heal().await.unwrap();
    round_trip(&mut connect(&proxy).await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_missing_target_is_a_reset_and_a_dropped_proxy_ends_its_connections() {
    // Bound and kept, but never listening: nobody else can be at this address.
    let nobody = TcpSocket::new_v4().unwrap();
    nobody.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let proxy = FaultProxy::start(nobody.local_addr().unwrap()).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    assert_eq!(read(&mut stream, 1).await.unwrap_err().kind(), ErrorKind::ConnectionReset);

    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    round_trip(&mut stream).await.unwrap();
    let address = proxy.address();
    drop(proxy);
    read(&mut stream, 1).await.unwrap_err();
    assert_eq!(TcpStream::connect(address).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}
