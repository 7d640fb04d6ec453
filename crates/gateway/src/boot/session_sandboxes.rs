//! What tools reach of live sessions: the reference back up is weak.

use std::sync::Weak;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::Permit;
use proto::SessionId;
use store::OpenTranscript;

use crate::app::App;
use crate::runtime::{ConnectedSandbox, Saved, SnapshotError};
use crate::sources::LiveSandboxes;

/// The sandboxes of live sessions, for tools.
pub(super) struct SessionSandboxes(pub(super) Weak<App>);

impl LiveSandboxes for SessionSandboxes {
    fn save_snapshot<'a>(
        &'a self,
        permit: &'a Permit,
        session: SessionId,
    ) -> BoxFuture<'a, Result<Saved, SnapshotError>> {
        async move {
            let app =
                self.0.upgrade().ok_or_else(|| SnapshotError::NotRunning(GATEWAY_STOPPING.to_owned()))?;
            app.hubs.save_snapshot(permit, session).await
        }
        .boxed()
    }

    fn open_transcript(&self, session: SessionId) -> BoxFuture<'_, Result<OpenTranscript, String>> {
        async move {
            let app = self.0.upgrade().ok_or_else(|| GATEWAY_STOPPING.to_owned())?;
            let hub = app.hubs.open(session).await.map_err(|error| error.to_string())?;
            hub.open_transcript().await.map_err(|error| error.to_string())
        }
        .boxed()
    }

    fn enter<'a>(
        &'a self,
        _: &'a Permit,
        session: SessionId,
    ) -> BoxFuture<'a, Result<ConnectedSandbox, String>> {
        async move {
            let app = self.0.upgrade().ok_or_else(|| GATEWAY_STOPPING.to_owned())?;
            let hub = app.hubs.open(session).await.map_err(|error| error.to_string())?;
            hub.inside().await.map_err(|error| error.to_string())?
        }
        .boxed()
    }
}

const GATEWAY_STOPPING: &str = "the gateway is stopping";
