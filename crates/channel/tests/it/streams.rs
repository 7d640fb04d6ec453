//! Streams between honest peers: integrity, isolation, memory bounds and fairness.

use bytes::Bytes;
use channel::frame::Frame;
use channel::{
    CHUNK_OVERHEAD, Incoming, Lane, MAX_CONTROL, MAX_PAYLOAD, Receiver, Stream, StreamError, Usage, WINDOW,
};
use clock::Rng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, copy_bidirectional, duplex};

use crate::common::{hostile_callee, pair, pair_over, pattern, with_timeout};

/// Echoes all data and finishes with the request as its result.
async fn echo(mut incoming: Incoming) {
    while let Some((request, stream)) = incoming.next().await {
        tokio::spawn(echo_one(request, stream));
    }
}

async fn echo_one(request: Bytes, mut stream: Stream) -> Result<(), StreamError> {
    while let Some(chunk) = stream.receiver.recv().await? {
        stream.sender.send(chunk.lane, chunk.bytes).await?;
    }
    stream.finish(request)
}

async fn read_all(receiver: &mut Receiver) -> Result<Vec<u8>, StreamError> {
    let mut all = Vec::new();
    while let Some(chunk) = receiver.recv().await? {
        all.extend_from_slice(&chunk.bytes);
    }
    Ok(all)
}

#[tokio::test(start_paused = true)]
async fn fifty_concurrent_streams_stay_intact_and_separate() {
    let pair = pair().await;
    tokio::spawn(echo(pair.incoming));
    let rng = Rng::seeded(50);
    let mut all = tokio::task::JoinSet::new();
    for n in 0..50_usize {
        let length = u32::from_le_bytes(rng.bytes()) as usize % (2 * WINDOW);
        let caller = pair.caller.clone();
        all.spawn(async move {
            let Stream { mut sender, mut receiver, .. } = caller.open(format!("request {n}")).await.unwrap();
            let content = pattern(n, length);
            let send = async {
                sender.send(Lane::Main, content.clone()).await.unwrap();
                sender.end();
            };
            let ((), got) = tokio::join!(send, read_all(&mut receiver));
            assert!(got.unwrap() == content, "stream {n} of {length} bytes came back changed");
            assert_eq!(receiver.outcome().await.unwrap(), format!("request {n}"));
        });
    }
    with_timeout(async { while all.join_next().await.transpose().unwrap().is_some() {} }).await;
}

#[tokio::test(start_paused = true)]
async fn stalled_reader_costs_its_window_and_delays_no_other_stream() {
    let mut pair = pair().await;
    let stalled = pair.caller.open("large").await.unwrap();
    let (_, mut flood) = pair.incoming.next().await.unwrap();
    let flooding = tokio::spawn(async move { flood.sender.send(Lane::Main, vec![0; 50 * WINDOW]).await });
    tokio::spawn(async move {
        while let Some((request, stream)) = pair.incoming.next().await {
            stream.finish(request).unwrap();
        }
    });
    for n in 0..200 {
        let mut small = with_timeout(pair.caller.open(format!("{n}"))).await.unwrap();
        assert_eq!(with_timeout(small.receiver.outcome()).await.unwrap(), format!("{n}"));
        assert!(pair.caller.usage().incoming <= WINDOW, "{:?}", pair.caller.usage());
    }
    assert!(pair.caller.usage().incoming > WINDOW / 2, "the reader was never stalled");
    assert!(!flooding.is_finished());
    drop(stalled);
    assert_eq!(with_timeout(flooding).await.unwrap(), Err(StreamError::Reset("dropped".to_owned())));
    // The last small stream may still be open; the stalled one must be gone.
    assert_eq!(pair.caller.usage().incoming, 0);
}

#[tokio::test(start_paused = true)]
async fn unread_writer_costs_its_window() {
    let (_attacker, caller, _running) = hostile_callee(64).await;
    let mut stream = caller.open("").await.unwrap();
    let sending = tokio::spawn(async move { stream.sender.send(Lane::Main, vec![0; 50 * WINDOW]).await });
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!sending.is_finished());
    let outgoing = caller.usage().outgoing;
    assert!(outgoing > 0 && outgoing <= WINDOW, "{outgoing}");
}

#[tokio::test(start_paused = true)]
async fn a_small_request_overtakes_a_large_transfer() {
    let (mut attacker, caller, _running) = hostile_callee(64).await;
    let mut large = caller.open("large").await.unwrap();
    // Four full frames would cost slightly more than the window.
    large.sender.send(Lane::Main, vec![0; WINDOW - 4 * CHUNK_OVERHEAD]).await.unwrap();
    tokio::task::yield_now().await;
    let _small = caller.open("small").await.unwrap();
    let mut before = 0;
    while let Some(frame) = with_timeout(attacker.recv()).await {
        match frame {
            Frame::Data(..) => before += 1,
            Frame::Open(2, _) => break,
            other => assert_eq!(other, Frame::Open(1, Bytes::from_static(b"large"))),
        }
    }
    assert!(before <= 3, "{before} frames of the transfer came first");
}

#[tokio::test(start_paused = true)]
async fn transfers_share_the_connection_fairly() {
    let (mut attacker, caller, _running) = hostile_callee(64).await;
    let (mut one, mut two) = (caller.open("").await.unwrap(), caller.open("").await.unwrap());
    one.sender.send(Lane::Main, vec![0; 3 * MAX_PAYLOAD]).await.unwrap();
    two.sender.send(Lane::Main, vec![0; 3 * MAX_PAYLOAD]).await.unwrap();
    let mut order = Vec::new();
    while order.len() < 6 {
        if let Frame::Data(id, ..) = with_timeout(attacker.recv()).await.unwrap() {
            order.push(id);
        }
    }
    assert_eq!(order, [1, 2, 1, 2, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn stdout_and_stderr_keep_their_lanes_and_order() {
    let mut pair = pair().await;
    let mut stream = pair.caller.open("exec").await.unwrap();
    let (_, mut program) = pair.incoming.next().await.unwrap();
    program.sender.send(Lane::Main, "out").await.unwrap();
    program.sender.send(Lane::Errors, "err").await.unwrap();
    program.sender.send(Lane::Main, "more").await.unwrap();
    program.finish("{\"exit\":0}").unwrap();
    let mut got = Vec::new();
    while let Some(chunk) = with_timeout(stream.receiver.recv()).await.unwrap() {
        got.push((chunk.lane, chunk.bytes));
    }
    let wanted = [(Lane::Main, "out"), (Lane::Errors, "err"), (Lane::Main, "more")];
    assert_eq!(got, wanted.map(|(lane, text)| (lane, Bytes::from_static(text.as_bytes()))));
    assert_eq!(stream.receiver.outcome().await.unwrap(), "{\"exit\":0}");
}

#[tokio::test(start_paused = true)]
async fn a_signal_reaches_a_program_that_does_not_read_its_input() {
    let mut pair = pair().await;
    let Stream { mut sender, mut controls, mut receiver } = pair.caller.open("exec").await.unwrap();
    let input = tokio::spawn(async move { sender.send(Lane::Main, vec![0; 2 * WINDOW]).await });
    let (_, mut program) = pair.incoming.next().await.unwrap();
    while pair.incoming.usage().incoming < WINDOW / 2 {
        tokio::task::yield_now().await;
    }
    controls.send("kill").await.unwrap();
    assert_eq!(with_timeout(program.controls.recv()).await.unwrap().unwrap(), "kill");
    program.finish("killed").unwrap();
    assert_eq!(with_timeout(receiver.outcome()).await.unwrap(), "killed");
    assert_eq!(with_timeout(input).await.unwrap(), Err(StreamError::Finished));
}

#[tokio::test(start_paused = true)]
async fn control_messages_wait_for_their_reader_and_are_bounded() {
    let mut pair = pair().await;
    let mut stream = pair.caller.open("").await.unwrap();
    let long = vec![0; MAX_CONTROL + 1];
    let refused = StreamError::TooLong { length: MAX_CONTROL + 1, most: MAX_CONTROL };
    assert_eq!(stream.controls.send(long).await, Err(refused));
    let sending = tokio::spawn(async move {
        for n in 0..100 {
            stream.controls.send(pattern(n, MAX_CONTROL)).await?;
        }
        stream.controls.send("last").await?;
        Ok::<_, StreamError>(stream)
    });
    let (_, mut callee) = pair.incoming.next().await.unwrap();
    for n in 0..100 {
        assert!(with_timeout(callee.controls.recv()).await.unwrap().unwrap() == pattern(n, MAX_CONTROL));
    }
    assert_eq!(with_timeout(callee.controls.recv()).await.unwrap().unwrap(), "last");
    with_timeout(sending).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn oversized_requests_and_results_are_refused_locally() {
    let mut pair = pair().await;
    let (long, error) =
        (vec![0; MAX_PAYLOAD + 1], StreamError::TooLong { length: MAX_PAYLOAD + 1, most: MAX_PAYLOAD });
    assert_eq!(pair.caller.open(long.clone()).await.err(), Some(error.clone()));
    let mut stream = pair.caller.open(vec![0; MAX_PAYLOAD]).await.unwrap();
    let (request, callee) = pair.incoming.next().await.unwrap();
    assert_eq!(request.len(), MAX_PAYLOAD);
    assert_eq!(callee.finish(long), Err(error));
    assert_eq!(with_timeout(stream.receiver.outcome()).await, Err(StreamError::Reset("dropped".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn file_copy_reports_its_outcome() {
    let mut pair = pair_over(1000).await;
    let mut stream = pair.caller.open("read").await.unwrap();
    let (_, mut file) = pair.incoming.next().await.unwrap();
    let sent = pattern(1, 3 * WINDOW + 17);
    let content = sent.clone();
    tokio::spawn(async move {
        copy(&mut &content[..], &mut file).await.unwrap();
        file.finish("ok").unwrap();
    });
    let mut got = Vec::new();
    with_timeout(stream.read_to_end(&mut got)).await.unwrap();
    assert!(got == sent);
    assert_eq!(stream.receiver.outcome().await.unwrap(), "ok");
}

#[tokio::test(start_paused = true)]
async fn port_forwarding_preserves_half_closes() {
    let mut pair = pair().await;
    let mut stream = pair.caller.open("dial").await.unwrap();
    let (_, mut forwarded) = pair.incoming.next().await.unwrap();
    let (mut socket, mut server) = duplex(100);
    tokio::spawn(async move { copy_bidirectional(&mut forwarded, &mut socket).await });
    stream.write_all(b"question").await.unwrap();
    stream.shutdown().await.unwrap();
    let mut question = String::new();
    with_timeout(server.read_to_string(&mut question)).await.unwrap();
    server.write_all(b"answer").await.unwrap();
    drop(server);
    let mut answer = String::new();
    with_timeout(stream.read_to_string(&mut answer)).await.unwrap();
    assert_eq!((question.as_str(), answer.as_str()), ("question", "answer"));
}

#[tokio::test(start_paused = true)]
async fn open_waits_for_a_permit_and_leaks_nothing() {
    let mut pair = pair().await;
    let mut open = Vec::new();
    for _ in 0..64 {
        open.push(pair.caller.open("").await.unwrap());
    }
    let caller = pair.caller.clone();
    let next = tokio::spawn(async move { caller.open("one more").await });
    for _ in 0..64 {
        pair.incoming.next().await.unwrap().1.finish("").unwrap();
    }
    assert!(!next.is_finished());
    open.remove(7).receiver.outcome().await.unwrap();
    drop(with_timeout(next).await.unwrap().unwrap());
    let (request, one_more) = with_timeout(pair.incoming.next()).await.unwrap();
    assert_eq!(request, "one more");
    drop((open, one_more));
    while pair.caller.usage() != Usage::default() || pair.incoming.usage() != Usage::default() {
        tokio::task::yield_now().await;
    }
}
