//! Resolves names to addresses. It is a trait so that tests can script the answers of a hostile name server.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// The addresses of a name, or why there are none.
pub type Lookup<'a> = Pin<Box<dyn Future<Output = io::Result<Vec<IpAddr>>> + Send + 'a>>;

/// Called once per connection; the answer is checked and then used, without a second lookup.
pub trait Resolve: Send + Sync + 'static {
    /// `name` is in normal form: lower case, punycode, no trailing dot, not an address.
    fn lookup<'a>(&'a self, name: &'a str) -> Lookup<'a>;
}

/// The system's resolver. Create one per sandbox: it also limits concurrent lookups, and a sandbox that queries a
/// dead name server must not delay the others.
#[derive(Debug)]
pub struct SystemResolver {
    slots: Arc<Semaphore>,
}

impl SystemResolver {
    /// At most `at_once` lookups run concurrently; others wait.
    pub fn new(at_once: usize) -> Self {
        Self { slots: Arc::new(Semaphore::new(at_once)) }
    }
}

impl Resolve for SystemResolver {
    fn lookup<'a>(&'a self, name: &'a str) -> Lookup<'a> {
        Box::pin(async move {
            // The trailing dot disables the system's search domains, so `example.com` means only that.
            let name = format!("{name}.");
            let slot = Arc::clone(&self.slots).acquire_owned().await.map_err(io::Error::other)?;
            // A lookup continues on its thread when the caller gives up, so it keeps its slot until it ends.
            let lookup = tokio::spawn(async move {
                let found = tokio::net::lookup_host((name, 0)).await;
                drop(slot);
                found.map(|found| found.map(|address| address.ip()).collect())
            });
            lookup.await.map_err(io::Error::other)?
        })
    }
}

/// A resolver for tests that returns the scripted answers of a name in order, then repeats the last one.
#[derive(Debug, Default)]
pub struct ScriptedResolver {
    names: Mutex<HashMap<String, Script>>,
}

#[derive(Debug, Default)]
struct Script {
    answers: Vec<Vec<IpAddr>>,
    calls: usize,
}

impl ScriptedResolver {
    /// Knows no names: every lookup fails.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next answer for a name.
    #[must_use]
    pub fn answer(self, name: &str, addresses: impl IntoIterator<Item = IpAddr>) -> Self {
        self.with(name, |script| script.answers.push(addresses.into_iter().collect()));
        self
    }

    /// How often a name was looked up.
    pub fn calls(&self, name: &str) -> usize {
        self.with(name, |script| script.calls)
    }

    fn with<T>(&self, name: &str, act: impl FnOnce(&mut Script) -> T) -> T {
        let mut names = self.names.lock();
        act(names.entry(name.to_owned()).or_default())
    }
}

impl Resolve for ScriptedResolver {
    fn lookup<'a>(&'a self, name: &'a str) -> Lookup<'a> {
        let answer = self.with(name, |script| {
            let answer = script.answers.get(script.calls).or(script.answers.last()).cloned();
            script.calls += 1;
            answer
        });
        Box::pin(async move { answer.ok_or_else(|| io::ErrorKind::NotFound.into()) })
    }
}
