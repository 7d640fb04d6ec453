//! Checks that hold for every provider; each provider runs them in its tests.
//!
//! If a provider declares that it lacks a capability, the check expects the typed error instead.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::error::{Capability, SandboxError};
use crate::provider::{ExpiryOwner, LeftOut, Provider, SandboxState};
use crate::spec::{SandboxId, SnapshotId, Spec};

/// The provider under test.
pub struct Subject<'a> {
    pub provider: &'a dyn Provider,
    /// Describes a sandbox whose PID 1 echoes every connection on `port`, several at a time.
    pub echo: &'a (dyn Fn(&str) -> Spec + Send + Sync),
    pub port: u16,
}

/// Runs all checks; the error names the first one that fails.
pub async fn run(subject: &Subject<'_>) -> Result<Vec<&'static str>, String> {
    let mut passed = Vec::new();
    macro_rules! check {
        ($name:ident) => {
            $name(subject).await.map_err(|why| format!("{}: {why}", stringify!($name)))?;
            passed.push(stringify!($name));
        };
    }
    check!(ensure_starts_once_and_then_recovers);
    check!(dial_reaches_the_program_inside);
    check!(unknown_sandboxes_are_errors);
    check!(snapshots_can_be_started);
    check!(pause_stops_and_resume_continues);
    check!(halt_ends_the_processes_and_keeps_the_files);
    check!(terminate_is_idempotent);
    check!(foreign_sandboxes_are_only_disconnected);
    Ok(passed)
}

fn fail<T>(what: &str, got: &T) -> String
where
    T: Debug,
{
    format!("{what}, got {got:?}")
}

#[expect(clippy::needless_pass_by_value, reason = "`map_err` passes the error by value")]
fn text(error: SandboxError) -> String {
    error.to_string()
}

async fn state(subject: &Subject<'_>, id: &SandboxId) -> Result<Option<SandboxState>, String> {
    let list = subject.provider.list().await.map_err(text)?;
    Ok(list.into_iter().find(|listed| listed.id == *id).map(|listed| listed.state))
}

async fn ensure_starts_once_and_then_recovers(subject: &Subject<'_>) -> Result<(), String> {
    let spec = (subject.echo)("conform");
    let first = subject.provider.ensure(&spec).await.map_err(text)?;
    if first.recovered
        || first.id != spec.id
        || first.made_files != subject.provider.capabilities().owns_processes
    {
        return Err(fail("the first ensure must create a new sandbox", &first));
    }
    let second = subject.provider.ensure(&spec).await.map_err(text)?;
    if !second.recovered {
        return Err(fail("the second ensure must find it", &second));
    }
    let want = if subject.provider.capabilities().owns_processes {
        SandboxState::Running
    } else {
        SandboxState::Unknown
    };
    match state(subject, &spec.id).await? {
        Some(now) if now == want => Ok(()),
        other => Err(fail("it must be listed", &other)),
    }
}

/// Sends data through the echo server inside, which may still be starting.
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
        other => Err(fail("the echo server must answer", &other)),
    }
}

async fn dial_reaches_the_program_inside(subject: &Subject<'_>) -> Result<(), String> {
    let id = (subject.echo)("conform").id;
    let (one, two) = tokio::join!(echo(subject, &id), echo(subject, &id));
    one.and(two)
}

async fn unknown_sandboxes_are_errors(subject: &Subject<'_>) -> Result<(), String> {
    let nobody = SandboxId::new("nobody").map_err(text)?;
    match subject.provider.dial(&nobody, subject.port).await.map(drop) {
        Err(SandboxError::NotFound(id)) if id == nobody => {}
        other => return Err(fail("dialling an unknown sandbox must be NotFound", &other)),
    }
    subject.provider.terminate(&nobody).await.map_err(text)
}

async fn snapshots_can_be_started(subject: &Subject<'_>) -> Result<(), String> {
    let provider = subject.provider;
    let id = (subject.echo)("conform").id;
    let mut spec = (subject.echo)("conform-fork");
    let snapshot = match (
        provider.capabilities().durable_snapshot,
        provider.snapshot(&id, &LeftOut::default(), Arc::new(|_| Ok(()))).await,
    ) {
        (false, Err(SandboxError::Unsupported(Capability::DurableSnapshot))) => None,
        (true, Ok(snapshot)) => Some(snapshot),
        (_, other) => return Err(fail("a snapshot must work as declared", &other)),
    };
    if provider.capabilities().fork {
        spec.snapshot.clone_from(&snapshot);
        provider.ensure(&spec).await.map_err(text)?;
        echo(subject, &spec.id).await?;
        provider.terminate(&spec.id).await.map_err(text)?;
        spec.snapshot = Some(SnapshotId::new("never-made").map_err(text)?);
        match provider.ensure(&spec).await {
            Err(SandboxError::NoSnapshot(_)) => {}
            other => return Err(fail("an unknown snapshot must be an error", &other)),
        }
    } else {
        spec.snapshot = Some(SnapshotId::new("never-made").map_err(text)?);
        match provider.ensure(&spec).await {
            Err(SandboxError::Unsupported(Capability::Fork)) => {}
            other => return Err(fail("a fork must be unsupported as declared", &other)),
        }
    }
    if let Some(snapshot) = snapshot {
        provider.remove_snapshot(&snapshot).await.map_err(text)?;
    }
    match state(subject, &spec.id).await? {
        None => Ok(()),
        other => Err(fail("the fork must be gone", &other)),
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
            other => Err(fail("a pause must be unsupported as declared", &other)),
        };
    }
    provider.pause(&id).await.map_err(text)?;
    match state(subject, &id).await? {
        Some(SandboxState::Paused) => {}
        other => return Err(fail("it must be paused", &other)),
    }
    provider.resume(&id).await.map_err(text)?;
    echo(subject, &id).await?;
    provider.pause(&id).await.map_err(text)?;
    let again = provider.ensure(&(subject.echo)("conform")).await.map_err(text)?;
    if !again.recovered {
        return Err(fail("ensure must resume a paused sandbox", &again));
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
        other => return Err(fail("it must be dead and still listed", &other)),
    }
    let again = provider.ensure(&spec).await.map_err(text)?;
    if again.recovered || again.made_files {
        return Err(fail("it must restart with its files", &again));
    }
    echo(subject, &spec.id).await
}

async fn terminate_is_idempotent(subject: &Subject<'_>) -> Result<(), String> {
    let id = (subject.echo)("conform").id;
    subject.provider.terminate(&id).await.map_err(text)?;
    subject.provider.terminate(&id).await.map_err(text)?;
    match subject.provider.dial(&id, subject.port).await.map(drop) {
        Err(SandboxError::NotFound(_)) => {}
        other => return Err(fail("dialling a terminated sandbox must be NotFound", &other)),
    }
    match state(subject, &id).await? {
        None => Ok(()),
        other => Err(fail("a terminated sandbox must not be listed", &other)),
    }
}

/// For sandboxes that somebody else runs, `terminate` only disconnects: the gateway has nothing to stop, pause or
/// keep, so an unused sandbox never fails any of these calls.
async fn foreign_sandboxes_are_only_disconnected(subject: &Subject<'_>) -> Result<(), String> {
    let capabilities = subject.provider.capabilities();
    let foreign = capabilities.expiry == ExpiryOwner::Nobody;
    if foreign == capabilities.owns_processes {
        return Err(fail("a provider that owns processes must own their expiry", &capabilities));
    }
    if !foreign {
        return Ok(());
    }
    if capabilities.memory_pause || capabilities.durable_snapshot || capabilities.fork {
        return Err(fail("a provider without processes must not pause, snapshot or fork", &capabilities));
    }
    let spec = (subject.echo)("conform");
    subject.provider.ensure(&spec).await.map_err(text)?;
    subject.provider.terminate(&spec.id).await.map_err(text)?;
    let again = subject.provider.ensure(&spec).await.map_err(text)?;
    if again.recovered {
        return Err(fail("a terminated sandbox must be connected as a new one", &again));
    }
    echo(subject, &spec.id).await?;
    subject.provider.terminate(&spec.id).await.map_err(text)
}
