//! A copy of a session's files that outlives its sandbox, without the values that were submitted for the app alone.

use proto::SessionId;
use proto::socket::SnapshotTarget;
use sandbox::{Capability, SandboxError, SnapshotId};
use sandboxd::protocol::{Code, EnvFile, EnvMode, Place};
use sandboxd::{ClientError, Sandboxd};
use secrecy::{ExposeSecret as _, SecretSlice};
use store::{NewSnapshot, SessionRecord, StoreError};

use super::Inside;
use crate::app::AppState;
use crate::hub::HubError;

/// The longest environment file that is put back.
const MAX_ENV_FILE: u64 = 1024 * 1024;

/// Why there is no snapshot. Each is one sentence for the people who wait.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Also says which capability the provider lacks.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    #[error("{0}")]
    NotRunning(String),
    #[error("the sandbox's supervisor: {0}")]
    Inside(#[from] ClientError),
    #[error("the list of environment files cannot be read: save it again")]
    EnvFiles,
    #[error(transparent)]
    Hub(#[from] HubError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A snapshot that was made.
#[derive(Clone, Debug)]
pub struct Saved {
    pub id: SnapshotId,
    /// What starts from it from now on.
    pub target: SnapshotTarget,
}

/// Copies the files of a running session, and lets the next sandbox of the session start from the copy; that of a setup
/// session becomes its configuration's. Who asks has been checked by the caller.
pub async fn snapshot(app: &AppState, session: SessionId) -> Result<Saved, SnapshotError> {
    if !app.sandboxes.provider.capabilities().durable_snapshot {
        return Err(SandboxError::Unsupported(Capability::DurableSnapshot).into());
    }
    let hub = app.hubs.open(app, session).await?;
    let inside = hub.inside().await?.map_err(SnapshotError::NotRunning)?;
    let record = app.store.session(inside.owner.org(), session).await?;
    let record = record.ok_or(StoreError::Missing("this session"))?;
    let id = copy(app, &inside, &env_files(app, &record).await?).await?;
    let target = match record.session_type {
        proto::SessionType::Setup => SnapshotTarget::Configuration,
        proto::SessionType::Coding | proto::SessionType::Cli => SnapshotTarget::Session,
    };
    let sandbox_provider = app.sandboxes.engine().to_owned();
    let new = NewSnapshot { id: id.to_string(), target, sandbox_provider, at: app.clock.now() };
    if let Err(error) = app.store.record_snapshot(&inside.owner, new).await {
        drop_copy(app, &id).await;
        return Err(error.into());
    }
    tracing::info!(%session, snapshot = %id, target = target.as_str(), "snapshot made");
    Ok(Saved { id, target })
}

/// The copy, during which the files that hold submitted values are not there. Of two at a time, the second would copy
/// what the first has just put back, so one waits.
async fn copy(app: &AppState, inside: &Inside, files: &[EnvFile]) -> Result<SnapshotId, SnapshotError> {
    let lock = app.sandboxes.copying(&inside.sandbox);
    let _alone = lock.lock().await;
    let hidden = read(&inside.supervisor, files).await?;
    let scrubbed = inside.supervisor.env_scrub(files.to_vec()).await;
    let made = match &scrubbed {
        Ok(_) => app.sandboxes.provider.snapshot(&inside.sandbox).await.map_err(SnapshotError::from),
        Err(error) => Err(error.clone().into()),
    };
    let restored = put_back(&inside.supervisor, hidden).await;
    match (made, restored) {
        (Ok(id), Ok(())) => Ok(id),
        (Ok(id), Err(error)) => {
            drop_copy(app, &id).await;
            Err(error.into())
        }
        (Err(error), _) => Err(error),
    }
}

async fn env_files(app: &AppState, record: &SessionRecord) -> Result<Vec<EnvFile>, SnapshotError> {
    let Some(configuration) = record.configuration_id else { return Ok(Vec::new()) };
    let configuration = app.store.configuration(record.org_id, configuration).await?;
    let Some(files) = configuration.and_then(|found| found.env_files) else { return Ok(Vec::new()) };
    serde_json::from_value(files).map_err(|_| SnapshotError::EnvFiles)
}

type Hidden = Vec<(Place, SecretSlice<u8>)>;

async fn read(supervisor: &Sandboxd, files: &[EnvFile]) -> Result<Hidden, SnapshotError> {
    let mut hidden = Vec::new();
    for file in files.iter().filter(|file| file.mode == EnvMode::Secret) {
        let place = Place::workspace(format!("{}/{}", file.workspace_path, file.path));
        match supervisor.read_file(place.clone(), 0, MAX_ENV_FILE + 1).await {
            Ok(found) if found.bytes.len() as u64 > MAX_ENV_FILE => {
                return Err(ClientError::TooLarge(found.bytes.len()).into());
            }
            Ok(found) => hidden.push((place, found.bytes.into())),
            Err(ClientError::Refused(refusal)) if refusal.code == Code::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(hidden)
}

async fn put_back(supervisor: &Sandboxd, hidden: Hidden) -> Result<(), ClientError> {
    for (place, content) in hidden {
        supervisor.write_file(place, content.expose_secret().to_vec(), Some(0o600)).await?;
    }
    Ok(())
}

async fn drop_copy(app: &AppState, id: &SnapshotId) {
    if let Err(error) = app.sandboxes.provider.remove_snapshot(id).await {
        tracing::error!(snapshot = %id, %error, "a snapshot that nobody knows of is left behind");
    }
}
