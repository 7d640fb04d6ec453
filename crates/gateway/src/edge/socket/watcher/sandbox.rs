//! Snapshots and auto-start runs that a client asks for. They run while the stream continues, and their results are
//! broadcast to all clients of the session.

use proto::socket::{AutoStartCommand, AutoStartMode, ServerMessage, SnapshotTarget};
use tokio::sync::OwnedSemaphorePermit;

use super::{End, Watcher};
use crate::runtime::auto_start;
use crate::sessions;

const MAX_RUN_ID: usize = 200;

impl Watcher {
    pub(super) async fn save_snapshot(&mut self) -> Result<(), End> {
        let Ok(place) = self.work_places.clone().try_acquire_owned() else {
            return self
                .error("The earlier tasks of this connection are still running: try again later")
                .await;
        };
        let Some(user) = self.visitor.user else { return self.error("Unauthorized").await };
        let (app, session) = (self.app.clone(), (self.visitor.org, self.visitor.session));
        self.run_in_background(place, async move {
            match sessions::save_snapshot(&app.sessions, session, user).await {
                Ok((id, target)) => ServerMessage::SnapshotResult {
                    success: true,
                    snapshot_id: Some(id),
                    error: None,
                    target,
                },
                Err(error) => ServerMessage::SnapshotResult {
                    success: false,
                    snapshot_id: None,
                    error: Some(error.to_string()),
                    target: SnapshotTarget::Session,
                },
            }
        });
        Ok(())
    }

    /// Runs the commands that start the services of a workspace. Each request gets one result, with its `run_id`.
    pub(super) async fn run_auto_start(
        &mut self,
        run_id: String,
        mode: AutoStartMode,
        sent: Vec<AutoStartCommand>,
    ) -> Result<(), End> {
        if run_id.len() > MAX_RUN_ID {
            return self.error("A runId has at most 200 characters").await;
        }
        let Ok(place) = self.work_places.clone().try_acquire_owned() else {
            let entries =
                auto_start::failed("The earlier tasks of this connection are still running: try again later");
            return self.send_message(&ServerMessage::AutoStartOutput { run_id, entries }).await;
        };
        let Some(user) = self.visitor.user else { return self.error("Unauthorized").await };
        let (app, session) = (self.app.clone(), (self.visitor.org, self.visitor.session));
        self.run_in_background(place, async move {
            let started = sessions::start_services(&app.sessions, session, user, sent, mode).await;
            let entries = started.unwrap_or_else(|error| auto_start::failed(&error.to_string()));
            ServerMessage::AutoStartOutput { run_id, entries }
        });
        Ok(())
    }

    /// Runs `work` in a task of its own, after the earlier tasks of this client, and broadcasts its result. The task
    /// continues if the client disconnects.
    fn run_in_background(
        &self,
        place: OwnedSemaphorePermit,
        work: impl Future<Output = ServerMessage> + Send + 'static,
    ) {
        let (hub, line, session) = (self.hub.clone(), self.work_line.clone(), self.visitor.session);
        let (app, credential) = (self.app.clone(), self.visitor.credential.clone());
        tokio::spawn(async move {
            let _in_line = (place, line.lock().await);
            if !credential.holds(&app).await {
                return;
            }
            if let Err(error) = hub.broadcast(work.await).await {
                tracing::warn!(%session, %error, "a result could not be broadcast");
            }
        });
    }
}
