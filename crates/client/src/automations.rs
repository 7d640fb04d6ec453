//! The calls about automations and their runs.

use proto::http::{
    AssignRun, AutomationEntry, AutomationList, AutomationRunDetail, AutomationRunEntry, AutomationRunList,
    ChangeAutomation, CreateAutomation, ResolveRun, StartAutomationRun,
};
use proto::{AutomationId, AutomationRunId, AutomationRunStatus};
use reqwest::Method;
use serde_json::json;

use crate::client::{Client, append_query, ok, read};
use crate::error::Error;

impl Client {
    /// Lists the automations of the organization.
    pub async fn automations(&self) -> Result<AutomationList, Error> {
        read(self.get(self.url(&["v1", "automations"]))).await
    }

    /// Creates an automation.
    pub async fn create_automation(&self, new: &CreateAutomation) -> Result<AutomationEntry, Error> {
        read(self.post(&["v1", "automations"], None).json(new)).await
    }

    /// Returns an automation.
    pub async fn automation(&self, id: AutomationId) -> Result<AutomationEntry, Error> {
        read(self.get(self.url(&["v1", "automations", &id.to_string()]))).await
    }

    /// Changes an automation.
    pub async fn change_automation(
        &self,
        id: AutomationId,
        change: &ChangeAutomation,
    ) -> Result<AutomationEntry, Error> {
        let url = self.url(&["v1", "automations", &id.to_string()]);
        read(self.http.request(Method::PATCH, url).json(change)).await
    }

    /// Removes an automation.
    pub async fn remove_automation(&self, id: AutomationId) -> Result<(), Error> {
        ok(self.http.request(Method::DELETE, self.url(&["v1", "automations", &id.to_string()]))).await
    }

    /// Runs an automation by hand.
    pub async fn start_automation_run(
        &self,
        id: AutomationId,
        start: &StartAutomationRun,
    ) -> Result<AutomationRunEntry, Error> {
        read(self.post(&["v1", "automations", &id.to_string(), "runs"], None).json(start)).await
    }

    /// Lists runs of one automation, or of all, newest first.
    pub async fn automation_runs(
        &self,
        automation: Option<AutomationId>,
        status: Option<AutomationRunStatus>,
        limit: u32,
    ) -> Result<AutomationRunList, Error> {
        let mut url = match automation {
            Some(id) => self.url(&["v1", "automations", &id.to_string(), "runs"]),
            None => self.url(&["v1", "automation-runs"]),
        };
        append_query(&mut url, &json!({ "status": status, "limit": limit }));
        read(self.get(url)).await
    }

    /// Returns a run with its log.
    pub async fn automation_run(&self, id: AutomationRunId) -> Result<AutomationRunDetail, Error> {
        read(self.get(self.url(&["v1", "automation-runs", &id.to_string()]))).await
    }

    /// Cancels a run.
    pub async fn cancel_automation_run(&self, id: AutomationRunId) -> Result<AutomationRunEntry, Error> {
        read(self.post(&["v1", "automation-runs", &id.to_string(), "cancel"], None)).await
    }

    /// Repeats a run, as a new one.
    pub async fn rerun_automation_run(&self, id: AutomationRunId) -> Result<AutomationRunEntry, Error> {
        read(self.post(&["v1", "automation-runs", &id.to_string(), "rerun"], None)).await
    }

    /// Assigns a run to a member.
    pub async fn assign_automation_run(
        &self,
        id: AutomationRunId,
        assign: &AssignRun,
    ) -> Result<AutomationRunEntry, Error> {
        read(self.post(&["v1", "automation-runs", &id.to_string(), "assign"], None).json(assign)).await
    }

    /// Settles a run that did not succeed.
    pub async fn resolve_automation_run(
        &self,
        id: AutomationRunId,
        resolve: &ResolveRun,
    ) -> Result<AutomationRunEntry, Error> {
        read(self.post(&["v1", "automation-runs", &id.to_string(), "resolve"], None).json(resolve)).await
    }
}
