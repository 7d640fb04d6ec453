//! Two honest peers perform random operations: everything sent arrives in order, and nothing leaks.

use bytes::Bytes;
use channel::{Chunk, Controls, Incoming, Lane, Receiver, Sender, Stream, StreamError, Usage};
use proptest::prelude::*;

use crate::common::{pair_over, pattern, with_timeout};

/// What one side does on a stream, in addition to reading everything it receives.
#[derive(Clone, Debug)]
struct Part {
    pieces: Vec<(bool, usize)>,
    controls: Vec<usize>,
    result: Option<usize>,
}

fn part() -> impl Strategy<Value = Part> {
    let length = prop_oneof![4 => 0..3000_usize, 1 => 0..400_000_usize];
    let pieces = prop::collection::vec((any::<bool>(), length), 0..6);
    let controls = prop::collection::vec(0..16_000_usize, 0..8);
    let result = prop::option::weighted(0.8, 0..1000_usize);
    (pieces, controls, result).prop_map(|(pieces, controls, result)| Part { pieces, controls, result })
}

/// Everything that one side received: the data in order, with adjacent chunks of a lane joined, and the control
/// messages.
type Received = (Vec<(Lane, Vec<u8>)>, Vec<Bytes>);

fn join(received: &mut Vec<(Lane, Vec<u8>)>, Chunk { lane, bytes }: Chunk) {
    match received.last_mut() {
        _ if bytes.is_empty() => {}
        Some((last, joined)) if *last == lane => joined.extend_from_slice(&bytes),
        _ => received.push((lane, bytes.to_vec())),
    }
}

fn expected_from(part: &Part) -> Received {
    let mut pieces = Vec::new();
    for (n, (errors, length)) in part.pieces.iter().enumerate() {
        join(&mut pieces, Chunk { lane: lane(*errors), bytes: pattern(n, *length) });
    }
    (pieces, part.controls.iter().enumerate().map(|(n, length)| pattern(n, *length)).collect())
}

fn lane(errors: bool) -> Lane {
    if errors { Lane::Errors } else { Lane::Main }
}

async fn send_pieces(sender: &mut Sender, part: &Part) -> Result<(), StreamError> {
    for (n, (errors, length)) in part.pieces.iter().enumerate() {
        sender.send(lane(*errors), pattern(n, *length)).await?;
    }
    sender.end();
    Ok(())
}

async fn receive_pieces(receiver: &mut Receiver) -> Result<Vec<(Lane, Vec<u8>)>, StreamError> {
    let mut pieces = Vec::new();
    while let Some(chunk) = receiver.recv().await? {
        join(&mut pieces, chunk);
    }
    Ok(pieces)
}

/// Sends and receives in turn: at most eight messages each way fit into the windows, so neither side blocks.
async fn exchange(controls: &mut Controls, ours: &Part, theirs: &Part) -> Result<Vec<Bytes>, StreamError> {
    let mut received = Vec::new();
    for n in 0..ours.controls.len().max(theirs.controls.len()) {
        if let Some(length) = ours.controls.get(n) {
            controls.send(pattern(n, *length)).await?;
        }
        if n < theirs.controls.len() {
            received.extend(controls.recv().await?);
        }
    }
    Ok(received)
}

async fn play(stream: &mut Stream, ours: &Part, theirs: &Part) -> Result<Received, StreamError> {
    let Stream { sender, receiver, controls } = stream;
    let (sent, pieces, messages) =
        tokio::join!(send_pieces(sender, ours), receive_pieces(receiver), exchange(controls, ours, theirs));
    sent?;
    Ok((pieces?, messages?))
}

async fn callee(mut incoming: Incoming, plans: Vec<(Part, Part)>) -> Incoming {
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..plans.len() {
        let (request, mut stream) = incoming.next().await.unwrap();
        let (near, far) = plans[usize::from(request[0])].clone();
        all.spawn(async move {
            assert!(play(&mut stream, &far, &near).await.unwrap() == expected_from(&near));
            if let Some(length) = far.result {
                stream.finish(pattern(9, length)).unwrap();
            } else {
                // A reset discards unwritten data, so wait until the other side has received everything.
                assert_eq!(stream.controls.recv().await.unwrap().unwrap(), "received");
                stream.reset("as planned");
            }
        });
    }
    while all.join_next().await.transpose().unwrap().is_some() {}
    incoming
}

async fn run(between: usize, plans: Vec<(Part, Part)>) {
    let pair = pair_over(between).await;
    let far = tokio::spawn(callee(pair.incoming, plans.clone()));
    let mut all = tokio::task::JoinSet::new();
    for (n, (near, far)) in plans.into_iter().enumerate() {
        let mut stream = pair.caller.open(vec![u8::try_from(n).unwrap()]).await.unwrap();
        all.spawn(async move {
            assert!(play(&mut stream, &near, &far).await.unwrap() == expected_from(&far));
            if far.result.is_none() {
                stream.controls.send("received").await.unwrap();
            }
            let planned = match far.result {
                Some(length) => Ok(pattern(9, length)),
                None => Err(StreamError::Reset("as planned".to_owned())),
            };
            assert!(stream.receiver.outcome().await == planned);
        });
    }
    with_timeout(async { while all.join_next().await.transpose().unwrap().is_some() {} }).await;
    let incoming = with_timeout(far).await.unwrap();
    while pair.caller.usage() != Usage::default() || incoming.usage() != Usage::default() {
        with_timeout(tokio::task::yield_now()).await;
    }
    assert!(!pair.near.is_finished() && !pair.far.is_finished());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn everything_sent_is_received(
        between in prop_oneof![64..2000_usize, 2000..200_000_usize],
        plans in prop::collection::vec((part(), part()), 1..10),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(run(between, plans));
    }
}
