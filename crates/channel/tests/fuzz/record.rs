//! Records the frames of two honest peers into the corpus, as seeds that reach deep into the protocol.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use bytes::BytesMut;
use channel::frame::Frame;
use channel::{Caller, Incoming, Lane, Limits, StreamError, accept, connect};
use clock::Rng;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, duplex, split};

use crate::live::key;

/// Records a channel and writes the frames of each side to `caller-recorded.hex` and `callee-recorded.hex`.
pub(crate) async fn record() {
    let ((near, near_end), (far, far_end)) = (duplex(100_000), duplex(100_000));
    let ((near_out, near_in), (far_out, far_in)) = (split(near_end), split(far_end));
    let taps = [tokio::spawn(tap(near_out, far_in)), tokio::spawn(tap(far_out, near_in))];
    let (key, rng) = (key(), Rng::seeded(9));
    let (caller, incoming) = tokio::join!(
        connect(near, &key, Limits::default(), &rng),
        accept(far, &key, Limits::default(), &rng)
    );
    let ((caller, near), (incoming, far)) = (caller.unwrap(), incoming.unwrap());
    let (near, far) = (tokio::spawn(near.run()), tokio::spawn(far.run()));
    let (asked, answered) = tokio::join!(call(caller), answer(incoming));
    asked.and(answered).unwrap();
    near.await.unwrap().unwrap();
    far.await.unwrap().unwrap();
    for (name, tap) in ["caller", "callee"].into_iter().zip(taps) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("corpus/{name}-recorded.hex"));
        fs::write(path, format_frames(name, tap.await.unwrap())).unwrap();
    }
}

async fn tap(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> BytesMut {
    let (mut received, mut forwarded) = (BytesMut::new(), 0);
    while from.read_buf(&mut received).await.is_ok_and(|length| length > 0) {
        if to.write_all(&received[forwarded..]).await.is_err() {
            break;
        }
        forwarded = received.len();
    }
    let _ = to.shutdown().await;
    received
}

/// Formats one frame per line, after a comment line that describes it.
fn format_frames(name: &str, mut received: BytesMut) -> String {
    let mut text = format!("# Frames of an honest {name}: `cargo run -p channel --example fuzz record`.\n");
    while let Some(frame) = Frame::decode(&mut received).unwrap() {
        if !matches!(frame, Frame::Hello(_)) {
            let mut bytes = BytesMut::new();
            frame.encode(&mut bytes);
            writeln!(text, "# {frame:?}\n{}", hex::encode(bytes)).unwrap();
        }
    }
    text
}

async fn call(caller: Caller) -> Result<(), StreamError> {
    // The first byte of a request selects what the fuzzed callee does; see `live::behave`.
    let mut exec = caller.open("\0 exec").await?;
    exec.sender.send(Lane::Main, "some input").await?;
    exec.controls.send("{\"rows\":24}").await?;
    exec.sender.send(Lane::Errors, vec![b'e'; 700]).await?;
    exec.sender.end();
    exec.receiver.outcome().await?;
    let mut stalls = caller.open("\u{3} never read").await?;
    stalls.sender.send(Lane::Main, vec![b'x'; 4000]).await?;
    let mut file = caller.open("\u{4} flood").await?;
    while file.receiver.recv().await?.is_some() {}
    file.sender.end();
    caller.open("\u{5} reset").await?.reset("no longer wanted");
    let mut talk = caller.open("\u{6} controls").await?;
    talk.controls.send("signal").await?;
    talk.controls.recv().await?;
    drop(stalls);
    talk.sender.finish("bye")
}

async fn answer(mut incoming: Incoming) -> Result<(), StreamError> {
    while let Some((request, mut stream)) = incoming.next().await {
        match request.first() {
            Some(0) => {
                while let Some(chunk) = stream.receiver.recv().await? {
                    stream.sender.send(chunk.lane, chunk.bytes).await?;
                }
                stream.controls.send("{\"pid\":7}").await?;
                stream.finish("{\"exit\":0}")?;
            }
            Some(4) => {
                stream.sender.send(Lane::Main, vec![b'f'; 3000]).await?;
                stream.sender.end();
                stream.finish("{\"length\":3000}")?;
            }
            Some(6) => {
                let message = stream.controls.recv().await?.unwrap_or_default();
                stream.controls.send(message).await?;
                stream.receiver.outcome().await?;
                stream.finish("")?;
            }
            // The other streams end by themselves, or are closed by the caller.
            _ => drop(tokio::spawn(async move { stream.controls.recv().await })),
        }
    }
    Ok(())
}
