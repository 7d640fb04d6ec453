//! Writes environments into running sandboxes after a secret or a specification was changed, whether or not an agent is
//! connected. A sandbox that already has the values is left alone, so that what its agent removed stays removed. One that does
//! not run gets the newest values when it starts.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use proto::{OrgId, SessionId};
use sandbox::{SandboxError, SandboxId, SandboxState};
use sandboxd::Sandboxd;
use store::{EnvironmentMark, SessionRecord};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::environment::{Applied, Environment, EnvironmentError};
use super::{Runtime, sandbox_of};

/// How often changes of secrets and specifications are looked for.
const REFRESH: Duration = Duration::from_secs(1);
/// How many sandboxes are written to at a time, and how long one may take while others wait. As many again may be tried
/// again.
const TOGETHER: usize = 8;
const PATIENCE: Duration = Duration::from_secs(10);
/// How many times writing to one sandbox is tried. If all fail, it gets the values at the next change, or when its session
/// wakes.
const MAX_ATTEMPTS: u32 = 60;

type Marks = HashMap<OrgId, EnvironmentMark>;
type States = HashMap<SandboxId, SandboxState>;

/// The sessions whose sandboxes may lack the newest values.
#[derive(Default)]
pub(crate) struct OutdatedEnvironments(Mutex<Sessions>);

#[derive(Default)]
struct Sessions {
    /// The number of failed attempts to write each session's values.
    outdated: HashMap<SessionId, u32>,
    /// The number of boots of each session in progress.
    booting: HashMap<SessionId, u32>,
    /// The sessions that were taken, until their attempt is over.
    writing: HashSet<SessionId>,
}

/// Keeps a session's environment from being written until it is dropped.
pub(super) struct Hold<'a> {
    environments: &'a OutdatedEnvironments,
    session: SessionId,
}

impl OutdatedEnvironments {
    pub(crate) fn add(&self, session: SessionId) {
        self.0.lock().outdated.insert(session, 0);
    }

    /// Holds a session back while it boots. Its repositories are not cloned yet, and git clones only into an empty directory.
    pub(super) fn hold(&self, session: SessionId) -> Hold<'_> {
        *self.0.lock().booting.entry(session).or_default() += 1;
        Hold { environments: self, session }
    }

    fn is_booting(&self, session: SessionId) -> bool {
        self.0.lock().booting.contains_key(&session)
    }

    /// Takes the sessions that are neither booting nor being written.
    fn take(&self) -> HashMap<SessionId, u32> {
        let mut sessions = self.0.lock();
        let Sessions { outdated, booting, writing } = &mut *sessions;
        let is_free = |session: &SessionId| !booting.contains_key(session) && !writing.contains(session);
        let taken: HashMap<_, _> = outdated.extract_if(|session, _| is_free(session)).collect();
        writing.extend(taken.keys());
        taken
    }

    /// The attempt to write a session that was taken is over.
    fn end(&self, session: SessionId) {
        self.0.lock().writing.remove(&session);
    }

    /// Adds a session again after these failed attempts, unless there were too many. Returns whether it will be tried again.
    fn add_failed(&self, session: SessionId, attempts: u32) -> bool {
        let again = attempts < MAX_ATTEMPTS;
        if again {
            // A change during the attempt has already added the session.
            self.0.lock().outdated.entry(session).or_insert(attempts);
        }
        again
    }
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        let mut sessions = self.environments.0.lock();
        if let Some(boots) = sessions.booting.get_mut(&self.session) {
            *boots -= 1;
            if *boots == 0 {
                sessions.booting.remove(&self.session);
            }
        }
    }
}

/// The attempts in progress. Those that follow a failed one wait for each other, so that sandboxes which do not answer
/// keep no other from its first.
struct Attempts {
    tasks: JoinSet<()>,
    first: Arc<Semaphore>,
    further: Arc<Semaphore>,
}

impl Attempts {
    fn new() -> Self {
        let permits = || Arc::new(Semaphore::new(TOGETHER));
        Self { tasks: JoinSet::new(), first: permits(), further: permits() }
    }

    fn start(
        &mut self,
        runtime: &Arc<Runtime>,
        running: &Arc<States>,
        (session, attempts): (SessionId, u32),
    ) {
        let permits = if attempts == 0 { &self.first } else { &self.further };
        let (permits, runtime, running) = (permits.clone(), runtime.clone(), running.clone());
        self.tasks.spawn(async move {
            let _permit = permits.acquire().await;
            let outdated = &runtime.sandboxes.outdated_environments;
            if outdated.is_booting(session) {
                outdated.add_failed(session, attempts);
            } else {
                write(&runtime, &running, (session, attempts)).await;
            }
            outdated.end(session);
        });
    }

    /// Forgets the attempts that are over.
    fn clean_up(&mut self) {
        while self.tasks.try_join_next().is_some() {}
    }

    async fn finish(&mut self) {
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Keeps the environments of running sandboxes up to date until the gateway stops.
pub(crate) async fn keep_environments(runtime: Arc<Runtime>) {
    let mut known = None;
    let mut attempts = Attempts::new();
    loop {
        attempts.clean_up();
        if let Err(error) = refresh(&runtime, &mut known, &mut attempts).await {
            tracing::warn!(%error, "cannot refresh the environments of sandboxes");
        }
        tokio::select! {
            () = runtime.closing.cancelled() => return attempts.finish().await,
            () = tokio::time::sleep(REFRESH) => {}
        }
    }
}

/// Writes a session's environment into its sandbox if that runs, also if no agent is connected. Returns `None` if that is
/// not possible now.
pub(crate) async fn write_environment(runtime: &Runtime, record: &SessionRecord) -> Option<Applied> {
    if runtime.sandboxes.outdated_environments.is_booting(record.id) {
        return None;
    }
    let writing = async {
        let Some(inside) = reach_running(runtime, record).await? else { return Ok(None) };
        Environment::write(runtime, record, &inside).await.map(Some)
    };
    match tokio::time::timeout(PATIENCE, writing).await.unwrap_or_else(|_| Err(timed_out())) {
        Ok(applied) => applied,
        Err(error) => {
            tracing::warn!(session = %record.id, %error, "an environment was not written at once");
            None
        }
    }
}

/// Connects to the supervisor of a session's sandbox if that runs, also if no agent is connected.
pub(crate) async fn reach_running(
    runtime: &Runtime,
    record: &SessionRecord,
) -> Result<Option<Sandboxd>, SandboxError> {
    let sandbox = sandbox_of(record)?;
    match running_sandboxes(runtime).await?.get(&sandbox) {
        Some(SandboxState::Running) => runtime.sandboxes.reach(&sandbox).await.map(Some),
        _ => Ok(None),
    }
}

async fn refresh(
    runtime: &Arc<Runtime>,
    known: &mut Option<Marks>,
    attempts: &mut Attempts,
) -> Result<(), EnvironmentError> {
    find_outdated(runtime, known).await?;
    let outdated = runtime.sandboxes.outdated_environments.take();
    if outdated.is_empty() {
        return Ok(());
    }
    let running = match running_sandboxes(runtime).await {
        Ok(running) => Arc::new(running),
        Err(error) => {
            for (session, failed) in outdated {
                runtime.sandboxes.outdated_environments.add_failed(session, failed);
                runtime.sandboxes.outdated_environments.end(session);
            }
            return Err(error.into());
        }
    };
    for entry in outdated {
        attempts.start(runtime, &running, entry);
    }
    Ok(())
}

/// Finds the sessions whose secrets or specifications may have changed. At a start these are all, because nobody knows
/// what changed before it.
async fn find_outdated(runtime: &Runtime, known: &mut Option<Marks>) -> Result<(), EnvironmentError> {
    let marks = runtime.store.environment_marks().await?;
    let changed = |org: &OrgId| known.as_ref().is_none_or(|known| known.get(org) != marks.get(org));
    let orgs = marks.keys().chain(known.iter().flat_map(HashMap::keys));
    if known.is_none() || orgs.into_iter().any(changed) {
        for (org, session) in runtime.store.running_sessions(runtime.sandboxes.engine()).await? {
            if changed(&org) {
                runtime.sandboxes.outdated_environments.add(session);
            }
        }
    }
    *known = Some(marks);
    Ok(())
}

/// The sandboxes that run now, or are frozen for a copy of their files, if they can be reached without the connection of an
/// agent. One that starts later reads its environment later.
async fn running_sandboxes(runtime: &Runtime) -> Result<States, SandboxError> {
    if !runtime.sandboxes.can_reach() {
        return Ok(HashMap::new());
    }
    let listed = runtime.sandboxes.provider.list().await?.into_iter();
    let runs = |state| matches!(state, SandboxState::Running | SandboxState::Paused);
    Ok(listed.filter(|found| runs(found.state)).map(|found| (found.id, found.state)).collect())
}

async fn write(runtime: &Runtime, running: &States, (session, attempts): (SessionId, u32)) {
    let writing = tokio::time::timeout(PATIENCE, try_write(runtime, running, session));
    match writing.await.unwrap_or_else(|_| Err(timed_out())) {
        Ok(Written::Done) => {}
        Ok(Written::Frozen) => {
            runtime.sandboxes.outdated_environments.add_failed(session, attempts);
        }
        Err(error) => {
            let again = runtime.sandboxes.outdated_environments.add_failed(session, attempts + 1);
            if attempts == 0 || !again {
                tracing::warn!(%session, %error, again, "a changed environment was not written into its sandbox");
            }
        }
    }
}

/// What became of an attempt that did not fail.
enum Written {
    /// The sandbox has the newest values, or does not run.
    Done,
    /// The files of the sandbox are being copied, so nothing in it answers.
    Frozen,
}

async fn try_write(
    runtime: &Runtime,
    running: &States,
    session: SessionId,
) -> Result<Written, EnvironmentError> {
    let Some(record) = runtime.store.session_any(session).await? else { return Ok(Written::Done) };
    let sandbox = sandbox_of(&record)?;
    match running.get(&sandbox) {
        None => Ok(Written::Done),
        Some(SandboxState::Paused) => Ok(Written::Frozen),
        Some(_) => {
            let inside = runtime.sandboxes.reach(&sandbox).await?;
            Environment::update(runtime, &record, &inside).await?;
            Ok(Written::Done)
        }
    }
}

fn timed_out() -> EnvironmentError {
    SandboxError::Timeout("the environment's files").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_session_is_tried_again_and_a_change_meanwhile_counts_as_the_first_attempt() {
        let outdated = OutdatedEnvironments::default();
        let session = uuid::Uuid::from_u128(1).into();
        outdated.add(session);
        assert_eq!(outdated.take(), HashMap::from([(session, 0)]));
        assert!(outdated.add_failed(session, 1));
        assert!(outdated.take().is_empty(), "it is still being written");
        outdated.end(session);
        assert_eq!(outdated.take(), HashMap::from([(session, 1)]));
        outdated.add(session);
        assert!(outdated.add_failed(session, 2));
        outdated.end(session);
        assert_eq!(outdated.take(), HashMap::from([(session, 0)]));
        outdated.end(session);
        assert!(!outdated.add_failed(session, MAX_ATTEMPTS));
        assert_eq!(outdated.take(), HashMap::new());
    }

    #[test]
    fn a_session_that_boots_waits_until_all_its_boots_have_ended() {
        let outdated = OutdatedEnvironments::default();
        let [session, other] = [1, 2].map(|number| uuid::Uuid::from_u128(number).into());
        let (first, second) = (outdated.hold(session), outdated.hold(session));
        outdated.add(session);
        outdated.add(other);
        assert_eq!(outdated.take(), HashMap::from([(other, 0)]));
        drop(first);
        assert!(outdated.take().is_empty() && outdated.is_booting(session));
        drop(second);
        assert_eq!(outdated.take(), HashMap::from([(session, 0)]));
        assert!(outdated.0.lock().booting.is_empty());
    }
}
