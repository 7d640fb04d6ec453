//! Session telemetry: counters that only rise, pull requests, and the current task.

use proto::SessionMetrics;
use sqlx::types::Json;

use crate::db::write;
use crate::owner::{LOCK_OWNED_SESSION, fenced};
use crate::row::storable;
use crate::{Owner, Store, StoreError};

/// Changes since the last flush.
#[derive(Clone, Debug, Default)]
pub struct Telemetry {
    pub tool_calls: u64,
    pub messages: u64,
    pub active_seconds: u64,
    pub new_pr_urls: Vec<String>,
    pub latest_task: LatestTask,
}

/// A change of the task that people see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LatestTask {
    #[default]
    Keep,
    Set(String),
    Clear,
}

/// The most URLs that are stored: an agent that prints many links must not grow a row for ever.
const MOST_PR_URLS: usize = 100;

impl Store {
    /// Adds changes to the stored values.
    pub async fn flush_telemetry(&self, owner: &Owner, new: Telemetry) -> Result<(), StoreError> {
        const SELECT_OLD: &str = "SELECT metrics, pr_urls, latest_task FROM sessions WHERE id = $1";
        const SQL: &str = "UPDATE sessions SET metrics = $3, pr_urls = $4, latest_task = $5
            WHERE id = $1 AND owner_epoch = $2";
        type Old = (Json<SessionMetrics>, Json<Vec<String>>, Option<String>);
        let owner = *owner;
        write!(self, Disk, tx => {
            fenced!(tx, owner, LOCK_OWNED_SESSION);
            let (Json(metrics), Json(mut urls), task): Old =
                sqlx::query_as(SELECT_OLD).bind(owner.session().uuid()).fetch_one(&mut *tx).await?;
            let metrics = SessionMetrics {
                tool_calls: metrics.tool_calls.saturating_add(new.tool_calls),
                messages_exchanged: metrics.messages_exchanged.saturating_add(new.messages),
                active_seconds: metrics.active_seconds.saturating_add(new.active_seconds),
            };
            for url in new.new_pr_urls.into_iter().map(storable) {
                if urls.len() < MOST_PR_URLS && !urls.contains(&url) {
                    urls.push(url);
                }
            }
            let task = match new.latest_task {
                LatestTask::Keep => task,
                LatestTask::Set(task) => Some(storable(task)),
                LatestTask::Clear => None,
            };
            fenced!(tx, owner, SQL, Json(metrics), Json(urls), task);
            Ok(())
        })
    }
}
