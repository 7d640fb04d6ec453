//! Automations: the instructions for their agents, the configurations of their sessions, and their triggers.

use chrono::{DateTime, Utc};
use proto::{AutomationId, ConfigurationId, JsonObject, OrgId, UserId, WebhookScheme};
use sqlx::types::{Json, JsonValue};
use uuid::Uuid;

use crate::db::read;
use crate::gate::administer;
use crate::row::{from_row, optional_word, storable};
use crate::{Store, StoreError};

/// The most modes of one automation.
const MAX_MODES: usize = 100;

/// The settings of an automation, which admins change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutomationSettings {
    pub name: String,
    pub instructions: String,
    pub model: Option<String>,
    pub configuration_id: Option<ConfigurationId>,
    pub system_prompt: Option<String>,
    pub enabled: bool,
    pub webhook: Option<WebhookTrigger>,
    pub cron: Option<CronTrigger>,
}

/// How the requests of a webhook are verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebhookTrigger {
    pub scheme: WebhookScheme,
    /// The name of the organization's secret in the vault.
    pub secret: String,
}

/// The schedule of an automation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CronTrigger {
    pub schedule: String,
    pub time_zone: String,
    /// `None` while the automation is disabled, so that enabling it makes up for nothing.
    pub next_at: Option<DateTime<Utc>>,
}

/// An automation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Automation {
    pub id: AutomationId,
    pub org_id: OrgId,
    pub settings: AutomationSettings,
    pub created_by: Option<UserId>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    /// Incremented with every change.
    pub revision: i64,
}

/// A new automation.
#[derive(Clone, Debug)]
pub struct NewAutomation {
    pub id: AutomationId,
    pub org_id: OrgId,
    pub settings: AutomationSettings,
    pub created_by: Option<UserId>,
    pub at: DateTime<Utc>,
}

from_row!(Automation, row => Automation {
    id: row.try_get::<Uuid, _>("id")?.into(),
    org_id: row.try_get::<Uuid, _>("org_id")?.into(),
    settings: AutomationSettings {
        name: row.try_get("name")?,
        instructions: row.try_get("instructions")?,
        model: row.try_get("model")?,
        configuration_id: row.try_get::<Option<Uuid>, _>("configuration_id")?.map(Into::into),
        system_prompt: row.try_get("system_prompt")?,
        enabled: row.try_get("enabled")?,
        webhook: webhook(optional_word(row.try_get("webhook_scheme")?)?, row.try_get("webhook_secret")?),
        cron: cron(row.try_get("cron_schedule")?, row.try_get("cron_time_zone")?, row.try_get("cron_next_at")?),
    },
    created_by: row.try_get::<Option<Uuid>, _>("created_by")?.map(Into::into),
    created_at: row.try_get("created_at")?,
    updated_at: row.try_get("updated_at")?,
    revision: row.try_get("revision")?,
});

fn webhook(scheme: Option<WebhookScheme>, secret: Option<String>) -> Option<WebhookTrigger> {
    Some(WebhookTrigger { scheme: scheme?, secret: secret? })
}

fn cron(
    schedule: Option<String>,
    time_zone: Option<String>,
    next_at: Option<DateTime<Utc>>,
) -> Option<CronTrigger> {
    Some(CronTrigger { schedule: schedule?, time_zone: time_zone?, next_at })
}

/// The SELECT of automations, followed by the rest of a query.
macro_rules! automations {
    ($rest:literal) => {
        concat!(
            "SELECT a.id, a.org_id, a.name, a.instructions, a.model, a.configuration_id, a.system_prompt, a.enabled,
            a.webhook_scheme, a.webhook_secret, a.cron_schedule, a.cron_time_zone, a.cron_next_at, a.created_by,
            a.created_at, a.updated_at, a.revision FROM automations a ",
            $rest
        )
    };
}

/// Binds the settings as values 3 to 13.
macro_rules! bind_settings {
    ($query:expr, $settings:expr) => {{
        let AutomationSettings {
            name,
            instructions,
            model,
            configuration_id,
            system_prompt,
            enabled,
            webhook,
            cron,
        } = $settings;
        let (scheme, secret) = webhook.map(|it| (it.scheme.as_str(), it.secret)).unzip();
        let next_at = cron.as_ref().and_then(|it| it.next_at);
        let (schedule, time_zone) = cron.map(|it| (it.schedule, it.time_zone)).unzip();
        $query
            .bind(storable(name))
            .bind(storable(instructions))
            .bind(model)
            .bind(configuration_id.map(ConfigurationId::uuid))
            .bind(system_prompt.map(storable))
            .bind(enabled)
            .bind(scheme)
            .bind(secret)
            .bind(schedule)
            .bind(time_zone)
            .bind(next_at)
    }};
}

impl Store {
    pub async fn create_automation(&self, new: NewAutomation) -> Result<(), StoreError> {
        const SQL: &str = "INSERT INTO automations (id, org_id, name, instructions, model, configuration_id,
            system_prompt, enabled, webhook_scheme, webhook_secret, cron_schedule, cron_time_zone, cron_next_at,
            created_by, created_at, updated_at, action_modes)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15, '{}')";
        administer!(self, tx => {
            let query = sqlx::query(SQL).bind(new.id.uuid()).bind(new.org_id.uuid());
            bind_settings!(query, new.settings)
                .bind(new.created_by.map(UserId::uuid)).bind(new.at).execute(&mut *tx).await?;
            Ok(())
        })
        .map_err(|error: StoreError| error.on_constraint("this automation", "this organization or user"))
    }

    /// The automations of an organization, latest first.
    pub async fn automations(&self, org: OrgId) -> Result<Vec<Automation>, StoreError> {
        const SQL: &str = automations!("WHERE a.org_id = $1 ORDER BY a.created_at DESC, a.id");
        let org = org.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).fetch_all(pool).await)?)
    }

    pub async fn automation(&self, org: OrgId, id: AutomationId) -> Result<Option<Automation>, StoreError> {
        const SQL: &str = automations!("WHERE a.org_id = $1 AND a.id = $2");
        let (org, id) = (org.uuid(), id.uuid());
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(org).bind(id).fetch_optional(pool).await)?)
    }

    /// The automation with this id, of whatever organization: for webhooks, which name no organization.
    pub async fn automation_any(&self, id: AutomationId) -> Result<Option<Automation>, StoreError> {
        const SQL: &str = automations!("WHERE a.id = $1");
        let id = id.uuid();
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(id).fetch_optional(pool).await)?)
    }

    /// Automations whose cron line was due at this time, the longest overdue first.
    pub async fn due_automations(
        &self,
        now: DateTime<Utc>,
        limit: i64,
    ) -> Result<Vec<Automation>, StoreError> {
        const SQL: &str = automations!(
            "WHERE a.enabled AND a.cron_next_at IS NOT NULL AND a.cron_next_at <= $1
            ORDER BY a.cron_next_at, a.id LIMIT $2"
        );
        Ok(read!(self, pool => sqlx::query_as(SQL).bind(now).bind(limit).fetch_all(pool).await)?)
    }

    /// Replaces the settings of an automation, unless somebody else has changed it since this revision.
    pub async fn update_automation(
        &self,
        org: OrgId,
        id: AutomationId,
        revision: i64,
        settings: AutomationSettings,
        at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        const SQL: &str =
            "UPDATE automations SET name = $3, instructions = $4, model = $5, configuration_id = $6,
            system_prompt = $7, enabled = $8, webhook_scheme = $9, webhook_secret = $10, cron_schedule = $11,
            cron_time_zone = $12, cron_next_at = $13, updated_at = $14, revision = revision + 1
            WHERE id = $1 AND org_id = $2 AND revision = $15";
        const COUNT_AUTOMATIONS: &str = "SELECT count(*) FROM automations WHERE id = $1 AND org_id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        administer!(self, tx => {
            let query = sqlx::query(SQL).bind(id).bind(org);
            let done = bind_settings!(query, settings).bind(at).bind(revision).execute(&mut *tx).await?;
            if done.rows_affected() == 1 {
                return Ok(());
            }
            let known: i64 = sqlx::query_scalar(COUNT_AUTOMATIONS).bind(id).bind(org).fetch_one(&mut *tx).await?;
            Err(if known == 0 {
                StoreError::Missing("this automation")
            } else {
                StoreError::Refused("somebody else has changed this automation meanwhile: try again")
            })
        })
    }

    /// The modes of an automation, by action key.
    pub async fn automation_modes(
        &self,
        org: OrgId,
        id: AutomationId,
    ) -> Result<Option<JsonObject>, StoreError> {
        const SQL: &str = "SELECT action_modes FROM automations WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        let found: Option<Json<JsonObject>> = read!(self, pool =>
            sqlx::query_scalar(SQL).bind(org).bind(id).fetch_optional(pool).await)?;
        Ok(found.map(|modes| modes.0))
    }

    /// Sets the mode of one action in an automation, or removes it. Other modes of the automation stay as they are.
    pub async fn set_automation_mode(
        &self,
        org: OrgId,
        id: AutomationId,
        key: &str,
        mode: Option<JsonValue>,
    ) -> Result<(), StoreError> {
        // Locks the row, so that of two concurrent changes none is lost.
        const LOCK_AUTOMATION: &str =
            "UPDATE automations SET revision = revision + 1 WHERE org_id = $1 AND id = $2";
        const READ_MODES: &str = "SELECT action_modes FROM automations WHERE org_id = $1 AND id = $2";
        const SQL: &str = "UPDATE automations SET action_modes = $3 WHERE org_id = $1 AND id = $2";
        let (org, id, key) = (org.uuid(), id.uuid(), key.to_owned());
        administer!(self, tx => {
            let held = sqlx::query(LOCK_AUTOMATION).bind(org).bind(id).execute(&mut *tx).await?;
            if held.rows_affected() == 0 {
                return Err(StoreError::Missing("this automation"));
            }
            let found: Json<JsonObject> =
                sqlx::query_scalar(READ_MODES).bind(org).bind(id).fetch_one(&mut *tx).await?;
            let Json(mut modes) = found;
            match mode {
                Some(mode) => drop(modes.insert(key, mode)),
                None if modes.remove(&key).is_none() => {
                    return Err(StoreError::Missing("the mode of this action"));
                }
                None => {}
            }
            if modes.len() > MAX_MODES {
                return Err(StoreError::Refused("an automation has at most 100 modes"));
            }
            sqlx::query(SQL).bind(org).bind(id).bind(Json(modes)).execute(&mut *tx).await?;
            Ok(())
        })
    }

    /// Deletes an automation with its runs, unless one of them has not ended. Its sessions stay without one.
    pub async fn delete_automation(&self, org: OrgId, id: AutomationId) -> Result<(), StoreError> {
        // Locks the row, so that no run starts meanwhile.
        const LOCK_AUTOMATION: &str =
            "UPDATE automations SET revision = revision + 1 WHERE org_id = $1 AND id = $2";
        const COUNT_OPEN_RUNS: &str = "SELECT count(*) FROM automation_runs r
            LEFT JOIN automation_outbox o ON o.run_id = r.id
            WHERE r.org_id = $1 AND r.automation_id = $2 AND (r.completed_at IS NULL OR o.id IS NOT NULL)";
        const DETACH_SESSIONS: &str =
            "UPDATE sessions SET automation_id = NULL WHERE org_id = $1 AND automation_id = $2";
        const SQL: &str = "DELETE FROM automations WHERE org_id = $1 AND id = $2";
        let (org, id) = (org.uuid(), id.uuid());
        administer!(self, tx => {
            let held = sqlx::query(LOCK_AUTOMATION).bind(org).bind(id).execute(&mut *tx).await?;
            if held.rows_affected() == 0 {
                return Err(StoreError::Missing("this automation"));
            }
            let open: i64 = sqlx::query_scalar(COUNT_OPEN_RUNS).bind(org).bind(id).fetch_one(&mut *tx).await?;
            if open > 0 {
                return Err(StoreError::Refused("this automation has runs that have not ended, or whose sessions are being stopped: cancel them, or try again"));
            }
            sqlx::query(DETACH_SESSIONS).bind(org).bind(id).execute(&mut *tx).await?;
            sqlx::query(SQL).bind(org).bind(id).execute(&mut *tx).await?;
            Ok(())
        })
    }
}
