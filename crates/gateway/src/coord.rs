//! What instances agree on beside the database. One instance alone agrees with itself.

use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use secrecy::{ExposeSecret as _, SecretString};

const PATIENCE: Duration = Duration::from_secs(3);

/// Where leases and notices between instances live.
#[derive(Clone)]
pub enum Coord {
    /// This is the only instance.
    Local,
    /// Several instances meet in Redis. Losing it costs liveness, never safety.
    Redis(ConnectionManager),
}

/// Redis cannot be reached.
#[derive(Debug, thiserror::Error)]
#[error("cannot reach Redis at {target}: {reason}. Start it or correct REDIS_URL.")]
pub struct CoordError {
    target: String,
    reason: String,
}

impl Coord {
    /// Connects when a URL is given.
    pub async fn open(url: Option<&SecretString>) -> Result<Self, CoordError> {
        let Some(url) = url else { return Ok(Self::Local) };
        let failed = |reason: String| CoordError { target: describe(url.expose_secret()), reason };
        let client = redis::Client::open(url.expose_secret()).map_err(|e| failed(e.to_string()))?;
        let config = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE))
            .set_number_of_retries(1);
        let manager =
            ConnectionManager::new_with_config(client, config).await.map_err(|e| failed(e.to_string()))?;
        let coord = Self::Redis(manager);
        coord.ping().await.map_err(failed)?;
        Ok(coord)
    }

    /// Answers when Redis answers; at once when there is none.
    pub async fn ping(&self) -> Result<(), String> {
        match self {
            Self::Local => Ok(()),
            Self::Redis(manager) => {
                let mut connection = manager.clone();
                redis::cmd("PING")
                    .query_async::<String>(&mut connection)
                    .await
                    .map(drop)
                    .map_err(|e| e.to_string())
            }
        }
    }
}

/// The URL without user and password.
fn describe(url: &str) -> String {
    match url::Url::parse(url) {
        Ok(url) => format!(
            "{}://{}:{}",
            url.scheme(),
            url.host_str().unwrap_or_default(),
            url.port().unwrap_or(6379)
        ),
        Err(_) => "(not a valid URL)".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_unreachable_redis_is_named_without_its_password() {
        let url = SecretString::from("redis://:hunter2@127.0.0.1:1");
        let Err(error) = Coord::open(Some(&url)).await else { panic!("nothing listens on port 1") };
        let text = error.to_string();
        assert!(text.contains("127.0.0.1:1") && text.contains("REDIS_URL"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}
