//! Two honest ends do random things to each other: what is said is what is heard, in order, and nothing is left.

use bytes::Bytes;
use channel::{Chunk, Controls, Incoming, Lane, Receiver, Sender, Stream, StreamError, Usage};
use proptest::prelude::*;

use crate::common::{pair_over, pattern, soon};

/// What one side does in a conversation, beside reading all it gets.
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

/// All that one side heard: its lanes as they were mixed, with neighbours joined; its messages.
type Heard = (Vec<(Lane, Vec<u8>)>, Vec<Bytes>);

fn join(heard: &mut Vec<(Lane, Vec<u8>)>, Chunk { lane, bytes }: Chunk) {
    match heard.last_mut() {
        _ if bytes.is_empty() => {}
        Some((last, joined)) if *last == lane => joined.extend_from_slice(&bytes),
        _ => heard.push((lane, bytes.to_vec())),
    }
}

fn said(part: &Part) -> Heard {
    let mut pieces = Vec::new();
    for (n, (errors, length)) in part.pieces.iter().enumerate() {
        join(&mut pieces, Chunk { lane: lane(*errors), bytes: pattern(n, *length) });
    }
    (pieces, part.controls.iter().enumerate().map(|(n, length)| pattern(n, *length)).collect())
}

fn lane(errors: bool) -> Lane {
    if errors { Lane::Errors } else { Lane::Main }
}

async fn say_pieces(sender: &mut Sender, part: &Part) -> Result<(), StreamError> {
    for (n, (errors, length)) in part.pieces.iter().enumerate() {
        sender.send(lane(*errors), pattern(n, *length)).await?;
    }
    sender.end();
    Ok(())
}

async fn hear_pieces(receiver: &mut Receiver) -> Result<Vec<(Lane, Vec<u8>)>, StreamError> {
    let mut heard = Vec::new();
    while let Some(chunk) = receiver.recv().await? {
        join(&mut heard, chunk);
    }
    Ok(heard)
}

/// Says and hears in turn: with at most eight messages each way, windows suffice that nobody waits for ever.
async fn exchange(controls: &mut Controls, ours: &Part, theirs: &Part) -> Result<Vec<Bytes>, StreamError> {
    let mut heard = Vec::new();
    for n in 0..ours.controls.len().max(theirs.controls.len()) {
        if let Some(length) = ours.controls.get(n) {
            controls.send(pattern(n, *length)).await?;
        }
        if n < theirs.controls.len() {
            heard.extend(controls.recv().await?);
        }
    }
    Ok(heard)
}

async fn play(stream: &mut Stream, ours: &Part, theirs: &Part) -> Result<Heard, StreamError> {
    let Stream { sender, receiver, controls } = stream;
    let (said, pieces, messages) =
        tokio::join!(say_pieces(sender, ours), hear_pieces(receiver), exchange(controls, ours, theirs));
    said?;
    Ok((pieces?, messages?))
}

async fn callee(mut incoming: Incoming, plans: Vec<(Part, Part)>) -> Incoming {
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..plans.len() {
        let (request, mut stream) = incoming.next().await.unwrap();
        let (near, far) = plans[usize::from(request[0])].clone();
        all.spawn(async move {
            assert!(play(&mut stream, &far, &near).await.unwrap() == said(&near));
            if let Some(length) = far.result {
                stream.finish(pattern(9, length)).unwrap();
            } else {
                // A reset overtakes what is not yet written, so the other side must have heard it.
                assert_eq!(stream.controls.recv().await.unwrap().unwrap(), "heard");
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
            assert!(play(&mut stream, &near, &far).await.unwrap() == said(&far));
            if far.result.is_none() {
                stream.controls.send("heard").await.unwrap();
            }
            let planned = match far.result {
                Some(length) => Ok(pattern(9, length)),
                None => Err(StreamError::Reset("as planned".to_owned())),
            };
            assert!(stream.receiver.outcome().await == planned);
        });
    }
    soon(async { while all.join_next().await.transpose().unwrap().is_some() {} }).await;
    let incoming = soon(far).await.unwrap();
    while pair.caller.usage() != Usage::default() || incoming.usage() != Usage::default() {
        soon(tokio::task::yield_now()).await;
    }
    assert!(!pair.near.is_finished() && !pair.far.is_finished());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn what_is_said_is_heard(
        between in prop_oneof![64..2000_usize, 2000..200_000_usize],
        plans in prop::collection::vec((part(), part()), 1..10),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.unwrap().block_on(run(between, plans));
    }
}
