//! Measures the channel's latency and throughput over TCP loopback: `cargo run --release -p channel --example
//! speed`.

#![expect(clippy::print_stdout, reason = "printing the results is its purpose")]

use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use channel::{Caller, Incoming, Key, Lane, Limits, Stream, accept, connect};
use clock::{Clock, Rng};
use tokio::net::{TcpListener, TcpStream};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const ROUND_TRIPS: usize = 20_000;
const TRANSFER_BYTES: usize = 1 << 30;
const CHUNK_BYTES: usize = 64 * 1024;

#[tokio::main]
async fn main() -> Outcome {
    let (caller, incoming) = channel_over_tcp().await?;
    tokio::spawn(serve(incoming));
    let clock = Clock::system();
    report("round trip, idle channel", &round_trips(&caller, &clock).await?);
    println!("callee to caller: {:.0} MB/s", download(&caller, &clock).await?);
    println!("caller to callee: {:.0} MB/s", upload(&caller, &clock).await?);
    let busy = caller.clone();
    let load = tokio::spawn(async move {
        let clock = Clock::system();
        while download(&busy, &clock).await.is_ok() {}
    });
    report("round trip, during a download", &round_trips(&caller, &clock).await?);
    load.abort();
    Ok(())
}

async fn channel_over_tcp() -> Outcome<(Caller, Incoming)> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr()?), listener.accept());
    let (near, (far, _)) = (near?, far?);
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (key, rng) = (Key::new([7; 32]), Rng::system());
    let (caller, incoming) = tokio::join!(
        connect(near, &key, Limits::default(), &rng),
        accept(far, &key, Limits::default(), &rng)
    );
    let ((caller, near), (incoming, far)) = (caller?, incoming?);
    tokio::spawn(near.run());
    tokio::spawn(far.run());
    Ok((caller, incoming))
}

async fn serve(mut incoming: Incoming) {
    while let Some((request, stream)) = incoming.next().await {
        tokio::spawn(async move {
            match request.as_ref() {
                b"download" => serve_download(stream).await,
                b"upload" => serve_upload(stream).await,
                _ => stream.finish(request).map_err(Into::into),
            }
        });
    }
}

async fn serve_download(mut stream: Stream) -> Outcome {
    let chunk = Bytes::from(vec![0x5a; CHUNK_BYTES]);
    for _ in 0..TRANSFER_BYTES / CHUNK_BYTES {
        stream.sender.send(Lane::Main, chunk.clone()).await?;
    }
    Ok(stream.finish("")?)
}

async fn serve_upload(mut stream: Stream) -> Outcome {
    while stream.receiver.recv().await?.is_some() {}
    Ok(stream.finish("")?)
}

async fn round_trips(caller: &Caller, clock: &Clock) -> Outcome<Vec<Duration>> {
    let mut times = Vec::with_capacity(ROUND_TRIPS);
    for _ in 0..ROUND_TRIPS {
        let begun = clock.elapsed();
        caller.open("hello").await?.receiver.outcome().await?;
        times.push(clock.elapsed().saturating_sub(begun));
    }
    times.sort();
    Ok(times)
}

fn report(what: &str, times: &[Duration]) {
    let at = |part: usize| times[times.len() * part / 100];
    println!("{what}: p50 {:?}, p95 {:?}, p99 {:?}", at(50), at(95), at(99));
}

async fn download(caller: &Caller, clock: &Clock) -> Outcome<f64> {
    let begun = clock.elapsed();
    let mut stream = caller.open("download").await?;
    let mut bytes = 0;
    while let Some(chunk) = stream.receiver.recv().await? {
        bytes += chunk.bytes.len();
    }
    rate(bytes, clock.elapsed().saturating_sub(begun))
}

async fn upload(caller: &Caller, clock: &Clock) -> Outcome<f64> {
    let begun = clock.elapsed();
    let mut stream = caller.open("upload").await?;
    let chunk = Bytes::from(vec![0x5a; CHUNK_BYTES]);
    for _ in 0..TRANSFER_BYTES / CHUNK_BYTES {
        stream.sender.send(Lane::Main, chunk.clone()).await?;
    }
    stream.sender.end();
    stream.receiver.outcome().await?;
    rate(TRANSFER_BYTES, clock.elapsed().saturating_sub(begun))
}

fn rate(bytes: usize, time: Duration) -> Outcome<f64> {
    Ok(f64::from(u32::try_from(bytes)?) / 1e6 / time.as_secs_f64())
}
