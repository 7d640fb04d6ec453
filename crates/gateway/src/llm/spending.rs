//! Money held for requests in flight. The real cost is known only when a request ends, so its worst-case cost is held
//! until then. Otherwise many concurrent requests would all pass a budget that has room for one.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use proto::{OrgId, SessionId};

use crate::config::dollars;

/// The amounts held in this process, in micro-dollars by payer.
#[derive(Clone, Debug, Default)]
pub struct Spending(Arc<Mutex<HashMap<Payer, i64>>>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Payer {
    Session(SessionId),
    Org(OrgId),
}

/// The amount held for one request. Dropping it releases the amount.
#[derive(Debug)]
pub(crate) struct Hold {
    spending: Spending,
    payers: [Payer; 2],
    micros: i64,
    /// The amounts that were already held for other requests, by session and by organization.
    held_by_others: [i64; 2],
}

/// The rest of a budget, in micro-dollars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remaining {
    pub(crate) owner: BudgetOwner,
    pub(crate) budget: i64,
    /// The remaining budget if every in-flight request ends up free.
    pub(crate) alone: i64,
    /// The remaining budget minus what earlier requests in flight hold.
    pub(crate) now: i64,
}

/// The owner of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetOwner {
    Session,
    Org,
}

impl Remaining {
    fn of(owner: BudgetOwner, budget: i64, spent: i64, held_by_others: i64) -> Self {
        let alone = budget.saturating_sub(spent);
        Self { owner, budget, alone, now: alone.saturating_sub(held_by_others) }
    }

    /// Combines two budgets that both apply, and returns what is left of both.
    pub(crate) fn and(self, other: Self) -> Self {
        let tighter = if self.alone <= other.alone { self } else { other };
        Self { now: self.now.min(other.now), ..tighter }
    }

    /// The refusal of a request that costs up to `least` even with the shortest answer: what is left, what the request
    /// could cost, and what to do.
    pub(crate) fn refusal(&self, least: i64) -> String {
        let (left, budget, least) = (dollars(self.alone), dollars(self.budget), dollars(least));
        let (owner, remedy) = match self.owner {
            BudgetOwner::Session => ("this session's", "Start a new session or raise SESSION_BUDGET_DOLLARS"),
            BudgetOwner::Org => {
                ("the organization's", "Raise it with `proliferate orgs limits ORG --budget DOLLARS`")
            }
        };
        if self.alone <= 0 {
            return format!("All of {owner} budget of {budget} dollars is spent. {remedy}.");
        }
        format!(
            "This request could cost up to {least} dollars, and {left} of {owner} budget of {budget} dollars are \
             left. {remedy}, or send a shorter conversation."
        )
    }
}

/// The message for an organization that has spent its budget.
pub(crate) fn org_budget_spent(budget_micros: i64) -> String {
    Remaining::of(BudgetOwner::Org, budget_micros, budget_micros, 0).refusal(0)
}

/// The message for a session that has spent its budget.
pub(crate) fn session_budget_spent(budget_micros: i64) -> String {
    Remaining::of(BudgetOwner::Session, budget_micros, budget_micros, 0).refusal(0)
}

impl Spending {
    /// Holds money for a request. The caller must read the spent amount after this call: then each earlier request is
    /// either held or spent, and never missed.
    pub(crate) fn hold(&self, session: SessionId, org: OrgId, micros: i64) -> Hold {
        let payers = [Payer::Session(session), Payer::Org(org)];
        let mut all = self.lock();
        let held_by_others = payers.map(|payer| {
            let held = all.entry(payer).or_default();
            std::mem::replace(held, *held + micros)
        });
        drop(all);
        Hold { spending: self.clone(), payers, micros, held_by_others }
    }

    fn release(&self, payers: [Payer; 2], micros: i64) {
        let mut all = self.lock();
        for payer in payers {
            if let Some(held) = all.get_mut(&payer) {
                *held -= micros;
                if *held == 0 {
                    all.remove(&payer);
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Payer, i64>> {
        self.0.lock()
    }
}

impl Hold {
    pub(crate) fn left_of_session(&self, budget: i64, spent: i64) -> Remaining {
        Remaining::of(BudgetOwner::Session, budget, spent, self.held_by_others[0])
    }

    pub(crate) fn left_of_org(&self, budget: i64, spent: i64) -> Remaining {
        Remaining::of(BudgetOwner::Org, budget, spent, self.held_by_others[1])
    }

    /// Reduces the held amount, for a request that was lowered.
    pub(crate) fn lower(&mut self, micros: i64) {
        let less = self.micros - micros;
        if less > 0 {
            self.micros = micros;
            self.spending.release(self.payers, less);
        }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.spending.release(self.payers, self.micros);
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn the_remaining_budget_excludes_amounts_held_by_others() {
        let spending = Spending::default();
        let (one, two) = (SessionId::from(Uuid::from_u128(1)), SessionId::from(Uuid::from_u128(2)));
        let org = OrgId::from(Uuid::from_u128(3));
        let mut first = spending.hold(one, org, 60);
        let left = |left: Remaining| (left.alone, left.now);
        assert_eq!(left(first.left_of_session(50, 49)), (1, 1));
        assert_eq!(left(spending.hold(one, org, 1).left_of_session(100, 5)), (95, 35));
        first.lower(20);
        let elsewhere = spending.hold(two, org, 10);
        assert_eq!(left(elsewhere.left_of_session(5, 0)), (5, 5));
        assert_eq!(left(elsewhere.left_of_org(109, 100)), (9, -11));
        let both = elsewhere.left_of_session(5, 0).and(elsewhere.left_of_org(109, 100));
        assert_eq!((both.owner, both.budget, both.alone, both.now), (BudgetOwner::Session, 5, 5, -11));
        drop((first, elsewhere));
        assert!(spending.lock().is_empty(), "nothing stays behind");
    }

    #[test]
    fn a_refusal_says_what_is_left_what_it_could_cost_and_what_to_do() {
        let left = Remaining::of(BudgetOwner::Org, 2_500_000, 2_490_000, 0);
        let expected = "This request could cost up to 0.025 dollars, and 0.01 of the organization's budget of 2.50 \
            dollars are left. Raise it with `proliferate orgs limits ORG --budget DOLLARS`, or send a shorter \
            conversation.";
        assert_eq!(left.refusal(25_000), expected);
        let expected = "All of this session's budget of 0.000001 dollars is spent. Start a new session or raise \
            SESSION_BUDGET_DOLLARS.";
        assert_eq!(Remaining::of(BudgetOwner::Session, 1, 9, 0).refusal(1), expected);
    }
}
