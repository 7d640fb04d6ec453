//! Fires automations whose time has come. A firing that was missed while the gateway was down runs once, and one whose
//! predecessor still runs is skipped; both are in the automation's trigger events.

use std::sync::Arc;
use std::time::Duration;

use store::{Automation, StoreError};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::{Automations, Schedule};

const TICK_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of automations fired in one tick.
const AUTOMATIONS_PER_TICK: i64 = 100;

/// Runs until the gateway closes.
pub(crate) async fn keep_scheduling(automations: Arc<Automations>, closing: CancellationToken) {
    let mut ticks = tokio::time::interval(TICK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = closing.cancelled() => return,
        }
        if let Err(error) = automations.fire_due().await {
            tracing::warn!(%error, "cannot read the schedules; the next tick tries again");
        }
    }
}

impl Automations {
    /// Fires every automation whose time has come.
    async fn fire_due(&self) -> Result<(), StoreError> {
        for automation in self.store.due_automations(self.clock.now(), AUTOMATIONS_PER_TICK).await? {
            self.fire_one(&automation).await?;
        }
        Ok(())
    }

    async fn fire_one(&self, automation: &Automation) -> Result<(), StoreError> {
        let Some(cron) = &automation.settings.cron else { return Ok(()) };
        let Some(due) = cron.next_at else { return Ok(()) };
        let schedule = match Schedule::parse(&cron.schedule, &cron.time_zone) {
            Ok(schedule) => schedule,
            Err(error) => {
                tracing::error!(automation = %automation.id, %error, "a stored schedule cannot be read");
                return Ok(());
            }
        };
        self.cron(automation, schedule.firing(due, self.clock.now())).await
    }
}
