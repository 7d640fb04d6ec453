//! What holds for every provider, as checks that each of them runs in its tests.
//!
//! A check that needs what a provider declares not to have asks for the typed refusal instead.

use std::fmt::Debug;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::error::{Capability, SandboxError};
use crate::provider::{ExpiryOwner, Provider, SandboxState};
use crate::spec::{SandboxId, SnapshotId, Spec};

/// A provider and how to use it in a test.
pub struct Subject<'a> {
    pub provider: &'a dyn Provider,
    /// Describes a sandbox whose first program answers every connection on `port` with what it was sent, and may be
    /// asked for more than one at a time.
    pub echo: &'a (dyn Fn(&str) -> Spec + Send + Sync),
    pub port: u16,
}

/// Names the first check that does not hold.
pub async fn run(subject: &Subject<'_>) -> Result<Vec<&'static str>, String> {
    let mut held = Vec::new();
    macro_rules! check {
        ($name:ident) => {
            $name(subject).await.map_err(|why| format!("{}: {why}", stringify!($name)))?;
            held.push(stringify!($name));
        };
    }
    check!(ensure_starts_once_and_finds_it_again);
    check!(dial_reaches_the_inside);
    check!(unknown_ones_are_told);
    check!(snapshots_come_back);
    check!(pause_stops_and_resume_continues);
    check!(halt_ends_the_processes_and_keeps_the_files);
    check!(terminate_ends_and_may_be_repeated);
    check!(what_is_not_ours_is_only_let_go);
    Ok(held)
}

fn fail<T>(what: &str, got: &T) -> String
where
    T: Debug,
{
    format!("{what}, got {got:?}")
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` takes")]
fn text(error: SandboxError) -> String {
    error.to_string()
}

async fn state(subject: &Subject<'_>, id: &SandboxId) -> Result<Option<SandboxState>, String> {
    let list = subject.provider.list().await.map_err(text)?;
    Ok(list.into_iter().find(|listed| listed.id == *id).map(|listed| listed.state))
}

async fn ensure_starts_once_and_finds_it_again(subject: &Subject<'_>) -> Result<(), String> {
    let spec = (subject.echo)("conform");
    let first = subject.provider.ensure(&spec).await.map_err(text)?;
    if first.recovered
        || first.id != spec.id
        || first.made_files != subject.provider.capabilities().owns_processes
    {
        return Err(fail("the first ensure makes a new one", &first));
    }
    let second = subject.provider.ensure(&spec).await.map_err(text)?;
    if !second.recovered {
        return Err(fail("the second ensure finds it", &second));
    }
    let want = if subject.provider.capabilities().owns_processes {
        SandboxState::Running
    } else {
        SandboxState::Unknown
    };
    match state(subject, &spec.id).await? {
        Some(now) if now == want => Ok(()),
        other => Err(fail("it is listed", &other)),
    }
}

/// Sends a word through the echo inside; it may still be starting.
async fn echo(subject: &Subject<'_>, id: &SandboxId) -> Result<(), String> {
    let mut tries = 0;
    let mut stream = loop {
        match subject.provider.dial(id, subject.port).await {
            Ok(stream) => break stream,
            Err(SandboxError::Refused { .. }) if tries < 500 => tries += 1,
            Err(error) => return Err(text(error)),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    let talk = async {
        stream.write_all(b"hello").await?;
        stream.shutdown().await?;
        let mut back = Vec::new();
        stream.read_to_end(&mut back).await?;
        std::io::Result::Ok(back)
    };
    match tokio::time::timeout(Duration::from_secs(20), talk).await {
        Ok(Ok(back)) if back == b"hello" => Ok(()),
        other => Err(fail("the echo answers", &other)),
    }
}

async fn dial_reaches_the_inside(subject: &Subject<'_>) -> Result<(), String> {
    let id = (subject.echo)("conform").id;
    let (one, two) = tokio::join!(echo(subject, &id), echo(subject, &id));
    one.and(two)
}

async fn unknown_ones_are_told(subject: &Subject<'_>) -> Result<(), String> {
    let nobody = SandboxId::new("nobody").map_err(text)?;
    match subject.provider.dial(&nobody, subject.port).await.map(drop) {
        Err(SandboxError::NotFound(id)) if id == nobody => {}
        other => return Err(fail("dialling nobody is NotFound", &other)),
    }
    subject.provider.terminate(&nobody).await.map_err(text)
}

async fn snapshots_come_back(subject: &Subject<'_>) -> Result<(), String> {
    let provider = subject.provider;
    let id = (subject.echo)("conform").id;
    let mut spec = (subject.echo)("conform-fork");
    let snapshot = match (provider.capabilities().durable_snapshot, provider.snapshot(&id, &[]).await) {
        (false, Err(SandboxError::Unsupported(Capability::DurableSnapshot))) => None,
        (true, Ok(snapshot)) => Some(snapshot),
        (_, other) => return Err(fail("a snapshot as declared", &other)),
    };
    if provider.capabilities().fork {
        spec.snapshot.clone_from(&snapshot);
        provider.ensure(&spec).await.map_err(text)?;
        echo(subject, &spec.id).await?;
        provider.terminate(&spec.id).await.map_err(text)?;
        spec.snapshot = Some(SnapshotId::new("never-made").map_err(text)?);
        match provider.ensure(&spec).await {
            Err(SandboxError::NoSnapshot(_)) => {}
            other => return Err(fail("an unknown snapshot is told", &other)),
        }
    } else {
        spec.snapshot = Some(SnapshotId::new("never-made").map_err(text)?);
        match provider.ensure(&spec).await {
            Err(SandboxError::Unsupported(Capability::Fork)) => {}
            other => return Err(fail("no fork as declared", &other)),
        }
    }
    if let Some(snapshot) = snapshot {
        provider.remove_snapshot(&snapshot).await.map_err(text)?;
    }
    match state(subject, &spec.id).await? {
        None => Ok(()),
        other => Err(fail("nothing is left of the fork", &other)),
    }
}

async fn pause_stops_and_resume_continues(subject: &Subject<'_>) -> Result<(), String> {
    let provider = subject.provider;
    let id = (subject.echo)("conform").id;
    if !provider.capabilities().memory_pause {
        return match (provider.pause(&id).await, provider.resume(&id).await) {
            (
                Err(SandboxError::Unsupported(Capability::MemoryPause)),
                Err(SandboxError::Unsupported(Capability::MemoryPause)),
            ) => Ok(()),
            other => Err(fail("no pause as declared", &other)),
        };
    }
    provider.pause(&id).await.map_err(text)?;
    match state(subject, &id).await? {
        Some(SandboxState::Paused) => {}
        other => return Err(fail("it is paused", &other)),
    }
    provider.resume(&id).await.map_err(text)?;
    echo(subject, &id).await?;
    provider.pause(&id).await.map_err(text)?;
    let again = provider.ensure(&(subject.echo)("conform")).await.map_err(text)?;
    if !again.recovered {
        return Err(fail("ensure resumes a paused one", &again));
    }
    echo(subject, &id).await
}

async fn halt_ends_the_processes_and_keeps_the_files(subject: &Subject<'_>) -> Result<(), String> {
    let provider = subject.provider;
    let spec = (subject.echo)("conform");
    provider.halt(&spec.id).await.map_err(text)?;
    provider.halt(&spec.id).await.map_err(text)?;
    if !provider.capabilities().owns_processes {
        return echo(subject, &spec.id).await;
    }
    match state(subject, &spec.id).await? {
        Some(SandboxState::Dead) => {}
        other => return Err(fail("it is over and still there", &other)),
    }
    let again = provider.ensure(&spec).await.map_err(text)?;
    if again.recovered || again.made_files {
        return Err(fail("it starts anew with its files", &again));
    }
    echo(subject, &spec.id).await
}

async fn terminate_ends_and_may_be_repeated(subject: &Subject<'_>) -> Result<(), String> {
    let id = (subject.echo)("conform").id;
    subject.provider.terminate(&id).await.map_err(text)?;
    subject.provider.terminate(&id).await.map_err(text)?;
    match subject.provider.dial(&id, subject.port).await.map(drop) {
        Err(SandboxError::NotFound(_)) => {}
        other => return Err(fail("what is ended is NotFound", &other)),
    }
    match state(subject, &id).await? {
        None => Ok(()),
        other => Err(fail("what is ended is not listed", &other)),
    }
}

/// What somebody else runs is only let go: the gateway has nothing to end, to pause or to keep, so that nobody using
/// it is never a failure of any of these.
async fn what_is_not_ours_is_only_let_go(subject: &Subject<'_>) -> Result<(), String> {
    let capabilities = subject.provider.capabilities();
    let not_ours = capabilities.expiry == ExpiryOwner::Nobody;
    if not_ours == capabilities.owns_processes {
        return Err(fail("whoever owns processes owns their end", &capabilities));
    }
    if !not_ours {
        return Ok(());
    }
    if capabilities.memory_pause || capabilities.durable_snapshot || capabilities.fork {
        return Err(fail("what is not ours is not kept by us", &capabilities));
    }
    let spec = (subject.echo)("conform");
    subject.provider.ensure(&spec).await.map_err(text)?;
    subject.provider.terminate(&spec.id).await.map_err(text)?;
    let again = subject.provider.ensure(&spec).await.map_err(text)?;
    if again.recovered {
        return Err(fail("what was let go is connected anew", &again));
    }
    echo(subject, &spec.id).await?;
    subject.provider.terminate(&spec.id).await.map_err(text)
}
