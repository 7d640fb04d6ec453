//! Fuzzes a live peer: an honest end completes a valid handshake and then receives arbitrary bytes.

use std::time::Duration;

use channel::handshake::{Role, perform_handshake};
use channel::{
    CONTROL_WINDOW, Caller, Incoming, Key, Lane, Limits, Stream, StreamError, Usage, WINDOW, accept, connect,
};
use clock::Rng;
use tokio::io::{AsyncWriteExt as _, DuplexStream, copy, duplex, sink, split};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use testkit::fuzz::Dice;

/// A generous limit in simulated time, but below the idle limit, so that a hang is not mistaken for a clean end.
const HANG_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause between two memory checks, and between two parts of the input.
const STEP_DURATION: Duration = Duration::from_millis(1);

/// Feeds the input to a callee from a caller that knows the key. The callee must end and must never hold more than
/// `window` bytes per stream.
pub(crate) fn callee(window: usize, input: &[u8], dice: &Dice) -> Result<String, String> {
    in_simulated_time(async {
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

/// Feeds the input to a caller, with one stream of each kind open, from a callee that knows the key.
pub(crate) fn caller(window: usize, input: &[u8], dice: &Dice) -> Result<String, String> {
    in_simulated_time(async {
        let (near, far) = duplex(64 + dice.below(100_000));
        let (key, rng) = (key(), Rng::seeded(1));
        let (attacker, connected) =
            tokio::join!(attacker(near, Role::Callee), connect(far, &key, Limits::default(), &rng));
        let (caller, driver) = connected.map_err(|error| error.to_string())?;
        let feeding = async {
            // Wait until the caller has opened its streams, so that the input can refer to them.
            sleep(STEP_DURATION).await;
            feed(attacker, input, dice).await;
        };
        let (end, held, ()) = tokio::join!(driver.run(), call(caller, window), feeding);
        held.map(|()| shape(&end))
    })
}

/// How the channel ended, without the numbers in its error.
fn shape(end: &impl std::fmt::Debug) -> String {
    format!("{end:?}").chars().filter(|letter| !letter.is_ascii_digit()).collect()
}

pub(crate) fn key() -> Key {
    Key::new([0x42; 32])
}

/// Runs `work` in simulated time; a hang is a finding.
fn in_simulated_time(work: impl Future<Output = Result<String, String>>) -> Result<String, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.map_err(|error| error.to_string())?;
    runtime.block_on(async { timeout(HANG_TIMEOUT, work).await.unwrap_or(Err("the peer hangs".to_owned())) })
}

async fn attacker(mut io: DuplexStream, role: Role) -> DuplexStream {
    perform_handshake(&mut io, role, &key(), &Limits::default(), &Rng::seeded(2)).await.unwrap();
    io
}

/// Sends the input in parts, then disconnects. Mostly it also reads; sometimes it lets the other side block.
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
            sleep(STEP_DURATION).await;
        }
    };
    tokio::select! {
        () = listen => {}
        () = speak => {}
    }
}

/// Accepts every stream and checks the memory in use whenever nothing else can run.
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
            () = sleep(STEP_DURATION) => check_usage(incoming.usage(), window)?,
        }
    }
    settle(handlers, || incoming.usage(), window).await
}

async fn call(caller: Caller, window: usize) -> Result<(), String> {
    let mut handlers = JoinSet::new();
    for kind in 0..FRAME_KINDS {
        let stream = caller.open(vec![kind]).await.map_err(|error| error.to_string())?;
        handlers.spawn(behave(kind, stream));
    }
    settle(handlers, || caller.usage(), window).await
}

/// All handlers must end, at the latest when the channel does; a panic in one is a finding.
async fn settle(
    mut handlers: JoinSet<Result<(), StreamError>>,
    usage: impl Fn() -> Usage,
    window: usize,
) -> Result<(), String> {
    loop {
        tokio::select! {
            next = handlers.join_next() => match next {
                // The attacker decides how a stream ends, so any result is fine.
                Some(ended) => drop(ended.map_err(|error| error.to_string())?),
                None => return Ok(()),
            },
            () = sleep(STEP_DURATION) => check_usage(usage(), window)?,
        }
    }
}

fn check_usage(usage: Usage, window: usize) -> Result<(), String> {
    let written = usage.streams * (WINDOW + CONTROL_WINDOW);
    let fits = usage.streams <= 64 && usage.fullest <= window + CONTROL_WINDOW && usage.outgoing <= written;
    if fits { Ok(()) } else { Err(format!("more is held than allowed: {usage:?}")) }
}

const FRAME_KINDS: u8 = 7;

/// Uses a stream in one of the ways that real users do.
async fn behave(kind: u8, mut stream: Stream) -> Result<(), StreamError> {
    match kind % FRAME_KINDS {
        0 => {
            while let Some(chunk) = stream.receiver.recv().await? {
                stream.sender.send(chunk.lane, chunk.bytes).await?;
            }
            stream.finish("echoed")
        }
        1 => Ok(()),
        2 => stream.finish("done"),
        // Never reads the data it receives.
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
