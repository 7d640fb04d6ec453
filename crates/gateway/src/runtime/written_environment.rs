//! Which environment a sandbox was given last, as a keyed hash in a file of its own. A gateway that starts compares it with
//! what the sandbox should have, and writes only what differs. The agent can change the file: then its environment is
//! written once more, or not until the next change.

use proto::SessionId;
use sandboxd::protocol::Place;
use sandboxd::{ClientError, Sandboxd};
use secrecy::{ExposeSecret as _, SecretString};

use super::Runtime;

/// The file in the home directory. No snapshot has its directory.
const RECORD: &str = ".proliferate/environment";

/// The hash of the environment that a session's sandbox should have.
pub(super) struct WrittenEnvironment(String);

impl WrittenEnvironment {
    pub(super) fn new(runtime: &Runtime, session: SessionId, content: &SecretString) -> Self {
        Self(runtime.sandboxes.keys.hash_environment(session, content.expose_secret()))
    }

    /// Whether the sandbox was given this environment last.
    pub(super) async fn is_recorded(&self, inside: &Sandboxd) -> Result<bool, ClientError> {
        match inside.read_file(Place::home(RECORD), 0, self.0.len() as u64).await {
            Ok(found) => Ok(found.bytes == self.0.as_bytes()),
            Err(ClientError::Refused(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(super) async fn record(&self, inside: &Sandboxd) -> Result<(), ClientError> {
        write(inside, &self.0).await
    }

    /// Records that nobody knows what the sandbox has.
    pub(super) async fn forget(inside: &Sandboxd) -> Result<(), ClientError> {
        write(inside, "").await
    }
}

async fn write(inside: &Sandboxd, content: &str) -> Result<(), ClientError> {
    inside.write_file(Place::home(RECORD), content.as_bytes().to_vec(), Some(0o600)).await.map(drop)
}
