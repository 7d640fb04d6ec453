//! What is fuzzed alive: one honest end behind a valid handshake, and whatever bytes come to it.

use std::time::Duration;

use channel::handshake::{Role, shake};
use channel::{
    CONTROL_WINDOW, Caller, Incoming, Key, Lane, Limits, Stream, StreamError, Usage, WINDOW, accept, connect,
};
use clock::Rng;
use tokio::io::{AsyncWriteExt as _, DuplexStream, copy, duplex, sink, split};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use testkit::fuzz::Dice;

/// Simulated: long for what happens here, shorter than the idle limit, so that a hang is not taken for an ending.
const HANG: Duration = Duration::from_secs(20);
/// Between two looks at what is held, and between two pieces of input.
const STEP: Duration = Duration::from_millis(1);

/// A callee hears this from a caller that knows the key. It must end and never hold more than `window` per stream.
pub(crate) fn callee(window: usize, input: &[u8], dice: &Dice) -> Result<String, String> {
    simulated(async {
        let (near, far) = duplex(64 + dice.below(100_000));
        let (key, rng) = (key(), Rng::seeded(1));
        let (attacker, accepted) =
            tokio::join!(attacker(near, Role::Caller), accept(far, &key, Limits::default(), &rng));
        let (incoming, driver) = accepted.map_err(|error| error.to_string())?;
        let feeding = feed(attacker, input, dice);
        let (end, held, ()) = tokio::join!(driver.run(), serve(incoming, window), feeding);
        held.map(|()| shape(&end))
    })
}

/// A caller with one conversation of each kind hears this from a callee that knows the key.
pub(crate) fn caller(window: usize, input: &[u8], dice: &Dice) -> Result<String, String> {
    simulated(async {
        let (near, far) = duplex(64 + dice.below(100_000));
        let (key, rng) = (key(), Rng::seeded(1));
        let (attacker, connected) =
            tokio::join!(attacker(near, Role::Callee), connect(far, &key, Limits::default(), &rng));
        let (caller, driver) = connected.map_err(|error| error.to_string())?;
        let feeding = async {
            // The attacker waits until there is something to lie about.
            sleep(STEP).await;
            feed(attacker, input, dice).await;
        };
        let (end, held, ()) = tokio::join!(driver.run(), call(caller, window), feeding);
        held.map(|()| shape(&end))
    })
}

/// How the channel ended, whatever the numbers in it.
fn shape(end: &impl std::fmt::Debug) -> String {
    format!("{end:?}").chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

pub(crate) fn key() -> Key {
    Key::new([0x42; 32])
}

/// Runs with simulated time; what does not end is a finding.
fn simulated(work: impl Future<Output = Result<String, String>>) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async { timeout(HANG, work).await.unwrap_or(Err("it hangs".to_owned())) })
}

async fn attacker(mut io: DuplexStream, role: Role) -> DuplexStream {
    shake(&mut io, role, &key(), &Limits::default(), &Rng::seeded(2)).await.unwrap();
    io
}

/// Says the input in pieces, then hangs up. It mostly listens, and sometimes lets the other side choke.
async fn feed(io: DuplexStream, input: &[u8], dice: &Dice) {
    let (mut reader, mut writer) = split(io);
    let listens = dice.below(4) > 0;
    let listen = async {
        if listens {
            let _ = copy(&mut reader, &mut sink()).await;
        } else {
            std::future::pending::<()>().await;
        }
    };
    let speak = async {
        let mut rest = input;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(1 + dice.below(rest.len().min(20_000)));
            if writer.write_all(now).await.is_err() {
                return;
            }
            rest = later;
            sleep(STEP).await;
        }
    };
    tokio::select! {
        () = listen => {}
        () = speak => {}
    }
}

/// Takes every conversation and looks at what is held whenever everything has settled.
async fn serve(mut incoming: Incoming, window: usize) -> Result<(), String> {
    let mut handlers = JoinSet::new();
    loop {
        tokio::select! {
            next = incoming.next() => match next {
                Some((request, stream)) => {
                    handlers.spawn(behave(request.first().copied().unwrap_or_default(), stream));
                }
                None => break,
            },
            () = sleep(STEP) => within(incoming.usage(), window)?,
        }
    }
    settle(handlers, || incoming.usage(), window).await
}

async fn call(caller: Caller, window: usize) -> Result<(), String> {
    let mut handlers = JoinSet::new();
    for kind in 0..KINDS {
        let stream = caller.open(vec![kind]).await.map_err(|error| error.to_string())?;
        handlers.spawn(behave(kind, stream));
    }
    settle(handlers, || caller.usage(), window).await
}

/// All handlers must end, at the latest when the channel does; a panic of one is a finding.
async fn settle(
    mut handlers: JoinSet<Result<(), StreamError>>,
    usage: impl Fn() -> Usage,
    window: usize,
) -> Result<(), String> {
    loop {
        tokio::select! {
            next = handlers.join_next() => match next {
                // How a conversation ends is the attacker's choice, and no finding.
                Some(ended) => drop(ended.map_err(|error| error.to_string())?),
                None => return Ok(()),
            },
            () = sleep(STEP) => within(usage(), window)?,
        }
    }
}

fn within(usage: Usage, window: usize) -> Result<(), String> {
    let written = usage.streams * (WINDOW + CONTROL_WINDOW);
    let fits = usage.streams <= 64 && usage.fullest <= window + CONTROL_WINDOW && usage.outgoing <= written;
    if fits { Ok(()) } else { Err(format!("more is held than allowed: {usage:?}")) }
}

const KINDS: u8 = 7;

/// The things that users of a stream do.
async fn behave(kind: u8, mut stream: Stream) -> Result<(), StreamError> {
    match kind % KINDS {
        0 => {
            while let Some(chunk) = stream.receiver.recv().await? {
                stream.sender.send(chunk.lane, chunk.bytes).await?;
            }
            stream.finish("echoed")
        }
        1 => Ok(()),
        2 => stream.finish("done"),
        // It holds on to what it never reads.
        3 => {
            while stream.controls.recv().await?.is_some() {}
            Ok(())
        }
        4 => {
            stream.sender.send(Lane::Main, vec![0; 3 * WINDOW]).await?;
            stream.sender.end();
            stream.receiver.outcome().await.map(drop)
        }
        5 => {
            stream.receiver.recv().await?;
            stream.reset("enough");
            Ok(())
        }
        _ => {
            while let Some(message) = stream.controls.recv().await? {
                stream.controls.send(message).await?;
            }
            stream.finish("")
        }
    }
}
