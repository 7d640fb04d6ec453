//! A pool of pre-booted sandboxes, so that the first prompt of a new session reaches an agent at once.
//!
//! A pooled sandbox belongs to no session: it has no network access, and its token is in no database until a session
//! takes it. A restarted gateway does not reuse its old pool; it ends what a crash has left of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent::{AgentClient, Endpoint};
use egress::{Mode, Rules};
use parking_lot::{Mutex, MutexGuard};
use sandbox::{Provider, SandboxId};
use secrecy::{ExposeSecret as _, SecretString};
use store::TokenHash;
use tokio::sync::Notify;

use super::Runtime;
use super::launch::{AGENT_READY_TIMEOUT, LaunchError};
use super::network::{CountingRecorder, proxy_of};
use super::prepare::{AgentPaths, AgentSettings};
use super::sandbox_handle::{SandboxHandle, SandboxRequest};
use crate::config::{Engine, Sandboxes as Settings};
use crate::identity::{Credential, CredentialKind};
use crate::telemetry::millis;

/// The prefix of the names of pooled sandboxes.
const POOL_PREFIX: &str = "pool-";
/// The delay after a failed boot. Each further delay is twice as long, up to the maximum.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(2);

/// The sandboxes that are ready to be taken.
pub struct Pool {
    size: usize,
    ready: Mutex<Vec<PooledSandbox>>,
    taken: Notify,
}

/// A booted sandbox that no session uses. Dropping it ends the sandbox.
pub(super) struct PooledSandbox {
    pub(super) handle: SandboxHandle,
    pub(super) client: Arc<dyn AgentClient>,
    pub(super) token: SecretString,
    pub(super) token_hash: TokenHash,
    pub(super) paths: AgentPaths,
    pub(super) end_on_drop: EndOnDrop,
}

/// A guard that ends a sandbox on drop, unless a session has taken it.
pub(super) struct EndOnDrop(Option<(Arc<dyn Provider>, SandboxId)>);

impl EndOnDrop {
    /// Disarms the guard: the sandbox keeps running.
    pub(super) fn disarm(mut self) {
        self.0 = None;
    }

    async fn end_now(mut self) {
        if let Some((provider, id)) = self.0.take() {
            end(&provider, &id).await;
        }
    }
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        if let Some((provider, id)) = self.0.take() {
            tokio::spawn(async move { end(&provider, &id).await });
        }
    }
}

async fn end(provider: &Arc<dyn Provider>, id: &SandboxId) {
    if let Err(error) = provider.terminate(id).await {
        tracing::error!(sandbox = %id, %error, "cannot end a pooled sandbox; the next start ends it");
    }
}

impl Pool {
    /// Creates the pool. Only engines whose sandboxes have their own ports support one.
    pub fn of(settings: &Settings) -> Self {
        let size = match settings.engine {
            Engine::Local => settings.pool_size.unwrap_or(0),
            Engine::Attach(_) | Engine::Process => 0,
        };
        Self { size, ready: Mutex::default(), taken: Notify::new() }
    }

    /// Takes a ready sandbox, which from then on belongs to the caller.
    pub(super) fn take(&self) -> Option<PooledSandbox> {
        let taken = self.ready().pop()?;
        self.count();
        self.taken.notify_one();
        Some(taken)
    }

    /// The number of ready sandboxes.
    pub fn waiting(&self) -> usize {
        self.ready().len()
    }

    fn put(&self, pooled: PooledSandbox) {
        self.ready().push(pooled);
        self.count();
    }

    fn count(&self) {
        let waiting = u32::try_from(self.waiting()).unwrap_or(u32::MAX);
        metrics::gauge!("proliferate_pool_waiting").set(f64::from(waiting));
    }

    fn ready(&self) -> MutexGuard<'_, Vec<PooledSandbox>> {
        self.ready.lock()
    }
}

/// Ends what an earlier gateway process left of its pool: sandboxes that no session took.
pub(crate) async fn sweep(runtime: &Runtime) -> Result<usize, LaunchError> {
    let mut swept = 0;
    for listed in runtime.sandboxes.provider.list().await? {
        let pooled = listed.id.as_str().starts_with(POOL_PREFIX);
        if pooled && !runtime.store.is_sandbox_of_session(listed.id.as_str()).await? {
            end(&runtime.sandboxes.provider, &listed.id).await;
            swept += 1;
        }
    }
    Ok(swept)
}

/// Keeps the pool full until the gateway stops, and then ends the unused sandboxes. Boots one sandbox at a time.
pub(crate) async fn maintain_pool(runtime: Arc<Runtime>) {
    let pool = &runtime.pool;
    match sweep(&runtime).await {
        Ok(0) => {}
        Ok(swept) => tracing::info!(swept, "pooled sandboxes of an earlier run were ended"),
        Err(error) => tracing::warn!(%error, "cannot end the pooled sandboxes of an earlier run"),
    }
    let mut pause = FIRST_PAUSE;
    while !runtime.closing.is_cancelled() && pool.size > 0 {
        if pool.waiting() >= pool.size {
            tokio::select! {
                () = pool.taken.notified() => {}
                () = runtime.closing.cancelled() => {}
            }
            continue;
        }
        match fill(&runtime).await {
            Ok(()) => pause = FIRST_PAUSE,
            Err(error) => {
                metrics::counter!("proliferate_pool_failures_total").increment(1);
                tracing::warn!(%error, seconds = pause.as_secs(), "no pooled sandbox; trying again");
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = runtime.closing.cancelled() => {}
                }
                pause = LONGEST_PAUSE.min(pause * 2);
            }
        }
    }
    let waiting = std::mem::take(&mut *pool.ready());
    for pooled in waiting {
        pooled.end_on_drop.end_now().await;
    }
}

/// Boots one sandbox for the pool, unless the gateway is stopping.
async fn fill(runtime: &Runtime) -> Result<(), LaunchError> {
    let id = SandboxId::new(format!("{POOL_PREFIX}{}", runtime.rng.uuid(runtime.clock.now()).simple()))?;
    let end_on_drop = EndOnDrop(Some((runtime.sandboxes.provider.clone(), id.clone())));
    let since = runtime.clock.elapsed();
    let booted = tokio::select! {
        booted = boot(runtime, id) => booted,
        () = runtime.closing.cancelled() => {
            end_on_drop.end_now().await;
            return Ok(());
        }
    };
    match booted {
        Ok((handle, client, token, paths)) => {
            let took = runtime.clock.elapsed().saturating_sub(since);
            metrics::histogram!("proliferate_pool_boot_seconds").record(took.as_secs_f64());
            tracing::info!(sandbox = %handle.id, millis = millis(took), "a sandbox waits in the pool");
            let (token, token_hash) = (token.text, token.hash);
            runtime.pool.put(PooledSandbox { handle, client, token, token_hash, paths, end_on_drop });
            Ok(())
        }
        Err(error) => {
            end_on_drop.end_now().await;
            Err(error)
        }
    }
}

async fn boot(
    runtime: &Runtime,
    id: SandboxId,
) -> Result<(SandboxHandle, Arc<dyn AgentClient>, Credential, AgentPaths), LaunchError> {
    let programs = runtime.agent_programs()?;
    let token = Credential::new(CredentialKind::Sandbox, &runtime.rng);
    let secret = token.text.expose_secret().to_owned();
    let request = SandboxRequest {
        id: id.clone(),
        env: BTreeMap::from([("SANDBOX_MCP_AUTH_TOKEN".to_owned(), secret)]),
        snapshot: None,
        proxy: proxy_of(Rules::new(Mode::Offline), CountingRecorder, &runtime.clock),
        gateway: Some(runtime.router()?),
        programs: programs.mounts(),
    };
    let handle = runtime.sandboxes.start(request).await?;
    let paths = AgentPaths::of(runtime, &handle, &programs);
    let (model, chat_models) = runtime.agent_models(None).await;
    let settings = AgentSettings {
        token: token.text.clone(),
        session: None,
        model,
        chat_models,
        instructions: String::new(),
        tools: Vec::new(),
    };
    paths.write(&handle.inside, &settings).await?;
    paths.start(&handle.inside, &settings).await?;
    let client = runtime.agent_client(&id, handle.agent_port, &Endpoint::local())?;
    client.wait_until_ready(AGENT_READY_TIMEOUT).await?;
    Ok((handle, client, token, paths))
}
