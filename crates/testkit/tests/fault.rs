//! The fault proxy in front of an echo server: each fault must have its effect, and must end when it is
//! healed.

#![expect(clippy::unwrap_used, reason = "test helpers may panic like tests")]

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use clock::Clock;
use testkit::{Direction, FaultProxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::timeout;

/// Aborts a test that would hang; no test should come near it.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);
const ONE_HOUR: Duration = Duration::from_hours(1);
/// The minimum delay of a short fault. Timers never fire early, so this lower bound holds on any machine.
const SHORT_DELAY: Duration = Duration::from_millis(20);

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
    timeout(TEST_TIMEOUT, TcpStream::connect(proxy.address())).await.unwrap()
}

async fn read(stream: &mut TcpStream, length: usize) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; length];
    timeout(TEST_TIMEOUT, stream.read_exact(&mut buffer)).await.unwrap()?;
    Ok(buffer)
}

/// Sends a few bytes and waits for the echo, so that the connection is known to work end to end.
async fn round_trip(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"ping").await?;
    assert_eq!(read(stream, 4).await?, b"ping");
    Ok(())
}

async fn measure(work: impl Future<Output = io::Result<()>>) -> Duration {
    let clock = Clock::system();
    let began = clock.elapsed();
    work.await.unwrap();
    clock.elapsed().saturating_sub(began)
}

async fn wait_received(proxy: &FaultProxy, direction: Direction, bytes: u64) {
    timeout(TEST_TIMEOUT, proxy.wait_for(|counts| counts.received(direction) >= bytes)).await.unwrap();
}

#[tokio::test]
async fn without_faults_everything_passes_in_both_directions() {
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
        timeout(TEST_TIMEOUT, async { tokio::join!(send, reader.read_to_end(&mut back)) }).await.unwrap();
    received.unwrap();
    assert!(back == data);
    let counts = proxy.counts();
    assert_eq!(counts.connections, 1);
    for direction in [Direction::ToTarget, Direction::ToClient] {
        assert_eq!((counts.received(direction), counts.forwarded(direction)), (200_000, 200_000));
    }
}

#[tokio::test]
async fn latency_delays_data_until_healed() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    proxy.latency(Direction::ToClient, ONE_HOUR);
    stream.write_all(b"late").await.unwrap();
    wait_received(&proxy, Direction::ToClient, 4).await;
    assert_eq!(proxy.counts().forwarded(Direction::ToClient), 0);
    proxy.heal().await.unwrap();
    assert_eq!(read(&mut stream, 4).await.unwrap(), b"late");
}

#[tokio::test]
async fn latency_ends_by_itself() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    proxy.latency(Direction::ToTarget, SHORT_DELAY);
    assert!(measure(round_trip(&mut stream)).await >= SHORT_DELAY, "the data was not delayed");
}

#[tokio::test]
async fn a_throttled_stream_is_slow_until_healed() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    proxy.throttle(Direction::ToClient, NonZeroU32::MIN);
    let data: Vec<u8> = (0..10_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    stream.write_all(&data).await.unwrap();
    wait_received(&proxy, Direction::ToClient, 1).await;
    let trickled = proxy.counts().forwarded(Direction::ToClient);
    assert!(trickled < TEST_TIMEOUT.as_secs(), "at one byte per second, {trickled} bytes have passed");
    proxy.heal().await.unwrap();
    assert!(read(&mut stream, data.len()).await.unwrap() == data);
}

#[tokio::test]
async fn a_throttled_stream_progresses_by_itself() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    // The four bytes are sent one by one.
    proxy.throttle(Direction::ToTarget, NonZeroU32::new(100).unwrap());
    assert!(measure(round_trip(&mut stream)).await >= SHORT_DELAY, "the data was not delayed");
}

#[tokio::test]
async fn a_reset_happens_after_exactly_the_given_bytes() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    proxy.reset_after(Direction::ToClient, 7);
    let mut stream = connect(&proxy).await.unwrap();
    stream.write_all(b"0123456789").await.unwrap();
    let mut back = Vec::new();
    let error = timeout(TEST_TIMEOUT, stream.read_to_end(&mut back)).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    assert_eq!(back, b"0123456");
    assert_eq!(proxy.counts().forwarded(Direction::ToClient), 7);
    proxy.heal().await.unwrap();
    round_trip(&mut connect(&proxy).await.unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_reset_now_affects_only_open_connections() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    round_trip(&mut stream).await.unwrap();
    proxy.reset_now();
    assert_eq!(read(&mut stream, 1).await.unwrap_err().kind(), ErrorKind::ConnectionReset);
    round_trip(&mut connect(&proxy).await.unwrap()).await.unwrap();
    assert_eq!(proxy.counts().connections, 2);
}

#[tokio::test]
async fn a_black_hole_discards_data_and_resets_when_healed() {
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
async fn a_healed_black_hole_without_loss_keeps_the_connection() {
    let proxy = FaultProxy::start(echo_server().await).await.unwrap();
    let mut stream = connect(&proxy).await.unwrap();
    round_trip(&mut stream).await.unwrap();
    proxy.black_hole(Direction::ToTarget);
    proxy.heal().await.unwrap();
    round_trip(&mut stream).await.unwrap();
}

#[tokio::test]
async fn refusing_affects_only_new_connections_and_keeps_the_port() {
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
async fn a_missing_target_resets_and_a_dropped_proxy_closes_its_connections() {
    // Bound but never listening, so that nobody else can use this address.
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
