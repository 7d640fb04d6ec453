//! Admission: whether a session may be created, started or prompted. The limits of organizations, the budgets of
//! organizations and sessions, and the prices of models are checked here and nowhere else. (The model proxy checks each
//! request against what is left of a budget.)

use std::sync::Arc;

use clock::Clock;
use proto::OrgId;
use proto::http::AgentConfig;
use store::{OrgBudget, Owner, SessionRecord, Store, StoreError};

use crate::config::{Config, Prices};
use crate::llm::{Llm, ModelUnavailable, NoPrice, org_budget_spent, session_budget_spent};

pub(crate) struct Admission {
    store: Store,
    clock: Clock,
    llm: Arc<Llm>,
    prices: Prices,
    /// The budget of a session that has none of its own.
    session_budget_micros: Option<i64>,
}

/// The reason why a session is not admitted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("{limit} sessions run already, which is the organization's limit")]
    SessionLimit { limit: i64 },
    #[error("{0}")]
    Budget(String),
    #[error(transparent)]
    NoPrice(NoPrice),
}

impl Admission {
    pub(crate) fn new(store: Store, clock: Clock, llm: Arc<Llm>, config: &Config) -> Self {
        let session_budget_micros = config.session_budget_micros;
        Self { store, clock, llm, prices: config.model_prices.clone(), session_budget_micros }
    }

    /// Whether a session may be created. `Store::create_session` checks the limit again, because another session may
    /// start in between. It is checked here too, so that a refused request leaves no new configuration behind.
    pub(crate) async fn check_creation(
        &self,
        org: OrgId,
        agent: Option<&AgentConfig>,
    ) -> Result<Result<(), Refusal>, StoreError> {
        let budget = self.store.org_budget(org).await?;
        if let Err(refusal) = self.check_budget(&budget, agent).await {
            return Ok(Err(refusal));
        }
        let Some(limit) = budget.session_limit else { return Ok(Ok(())) };
        let live = self.store.live_sessions(org, self.clock.now()).await?;
        Ok(if live < limit { Ok(()) } else { Err(Refusal::SessionLimit { limit }) })
    }

    /// The id under which a chosen model is stored. A model that nobody serves is refused.
    pub(crate) async fn check_model(&self, text: &str) -> Result<String, ModelUnavailable> {
        self.llm.choose(text).await.map(|model| model.stored_id())
    }

    /// Starts a session that has no sandbox, within the limit of its organization.
    pub(crate) async fn start(
        &self,
        owner: &Owner,
        session: &SessionRecord,
    ) -> Result<Result<(), Refusal>, StoreError> {
        let budget = self.store.org_budget(session.org_id).await?;
        if let Err(refusal) = self.check_budget(&budget, session.agent_config.as_ref()).await {
            return Ok(Err(refusal));
        }
        match self.store.start_session(owner, self.clock.now()).await {
            Err(StoreError::SessionLimit { limit }) => Ok(Err(Refusal::SessionLimit { limit })),
            started => started.map(Ok),
        }
    }

    /// Whether a session may take another prompt, also if it is running: neither its budget nor its organization's may
    /// be spent.
    pub(crate) async fn check_prompt(
        &self,
        session: &SessionRecord,
    ) -> Result<Result<(), Refusal>, StoreError> {
        if let Err(refusal) = check_spent(&self.store.org_budget(session.org_id).await?) {
            return Ok(Err(refusal));
        }
        let Some(budget) = session.budget_micros.or(self.session_budget_micros) else { return Ok(Ok(())) };
        let spent = self.store.session_usage(session.org_id, session.id).await?.cost_micros;
        Ok(if spent < budget { Ok(()) } else { Err(Refusal::Budget(session_budget_spent(budget))) })
    }

    /// Whether a session may use this model: where a budget applies, the model must have a price.
    pub(crate) async fn check_price(
        &self,
        session: &SessionRecord,
        agent: &AgentConfig,
    ) -> Result<Result<(), Refusal>, StoreError> {
        let own = session.budget_micros.or(self.session_budget_micros);
        if own.or(self.store.org_budget(session.org_id).await?.budget_micros).is_none() {
            return Ok(Ok(()));
        }
        Ok(self.llm.price_of(&self.prices, Some(agent)).await.map(drop).map_err(Refusal::NoPrice))
    }

    /// Whether an organization can pay for a session. Where a budget applies, the model must have a price.
    async fn check_budget(&self, budget: &OrgBudget, agent: Option<&AgentConfig>) -> Result<(), Refusal> {
        check_spent(budget)?;
        if budget.budget_micros.is_some() {
            self.llm.price_of(&self.prices, agent).await.map_err(Refusal::NoPrice)?;
        }
        Ok(())
    }
}

fn check_spent(budget: &OrgBudget) -> Result<(), Refusal> {
    match budget.budget_micros.filter(|_| budget.is_exhausted()) {
        Some(spent) => Err(Refusal::Budget(org_budget_spent(spent))),
        None => Ok(()),
    }
}
