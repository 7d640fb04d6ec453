//! Snapshots and auto-start runs that a client asks for. They run while the stream continues, and their results are
//! broadcast to all clients of the session.

use proto::socket::{AutoStartCommand, AutoStartMode, ServerMessage, SnapshotTarget};
use tokio::sync::OwnedSemaphorePermit;

use super::{End, Watcher};
use crate::runtime::auto_start;

const MAX_RUN_ID: usize = 200;

impl Watcher {
    pub(super) async fn save_snapshot(&mut self) -> Result<(), End> {
        let Ok(place) = self.work_places.clone().try_acquire_owned() else {
            return self.error("The sandbox still works on what was asked before").await;
        };
        let (app, session) = (self.app.clone(), self.visitor.session);
        self.beside(place, async move {
            match app.hubs.save_snapshot(session).await {
                Ok(saved) => ServerMessage::SnapshotResult {
                    success: true,
                    snapshot_id: Some(saved.id.to_string()),
                    error: None,
                    target: saved.target,
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
            let entries = auto_start::failed("The sandbox still works on what was asked before");
            return self.tell(&ServerMessage::AutoStartOutput { run_id, entries }).await;
        };
        let (app, hub, session) = (self.app.clone(), self.hub.clone(), self.visitor.session);
        self.beside(place, async move {
            let running = async {
                let inside = hub.inside().await.map_err(|error| error.to_string())??;
                let record = app.store.session(inside.owner.org(), session).await;
                let record = record.map_err(|error| error.to_string())?.ok_or("the session is gone")?;
                let commands = auto_start::commands(&app.runtime, &record, sent).await;
                let commands = commands.map_err(|error| error.to_string())?;
                Ok::<_, String>(auto_start::run(&inside.supervisor, commands, mode).await)
            };
            let entries = running.await.unwrap_or_else(|reason| auto_start::failed(&reason));
            ServerMessage::AutoStartOutput { run_id, entries }
        });
        Ok(())
    }

    /// Runs `work` in a task of its own, after the earlier tasks of this client, and broadcasts its result. The task
    /// continues if the client disconnects.
    fn beside(
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
                tracing::warn!(%session, %error, "a result could not be told");
            }
        });
    }
}
