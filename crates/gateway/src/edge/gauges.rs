//! Gauges that are read when the metrics are requested, so that nothing has to keep them up to date in between.

use std::time::Duration;

use crate::app::AppState;

/// The timeout for the gauges that need the database. A slow database must not delay the other metrics.
const GAUGE_TIMEOUT: Duration = Duration::from_secs(1);

/// Sets every gauge to its current value. A gauge whose value cannot be read keeps its last value.
pub(super) async fn refresh(app: &AppState) {
    set("proliferate_live_sessions", app.hubs.count());
    set("proliferate_writes_waiting", app.store.waiting_writes());
    if let Some(used) = app.runtime.sandboxes.usage() {
        set("proliferate_sandboxes", used.sandboxes);
        set("proliferate_sandbox_memory_bytes", used.memory_bytes);
        set("proliferate_sandbox_disk_bytes", used.disk_bytes);
    }
    let database = async { tokio::join!(app.store.waiting_prompts(), app.store.last_checkpoint()) };
    let Ok((prompts, checkpoint)) = tokio::time::timeout(GAUGE_TIMEOUT, database).await else { return };
    if let Ok(prompts) = prompts {
        set("proliferate_prompts_waiting", prompts);
    }
    if let Ok(Some(at)) = checkpoint {
        let age = (app.clock.now() - at).to_std().unwrap_or_default();
        set("proliferate_checkpoint_age_seconds", age.as_secs());
    }
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float, exact up to 2^53")]
fn set(name: &'static str, value: impl TryInto<u64>) {
    metrics::gauge!(name).set(value.try_into().unwrap_or(u64::MAX) as f64);
}
