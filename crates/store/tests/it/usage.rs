//! Model usage: counted once, kept when the session is deleted, and limited by a budget.

use store::{StoreError, Usage};

use crate::backend::{Backend, on_both};
use crate::world::{at, id, org, session, together};

on_both! {
    usage_adds_up_by_session_and_by_organization
    usage_outlives_a_deleted_session
    a_budget_is_exhausted_when_it_is_spent
}

const CALL: Usage = Usage {
    requests: 1,
    input_tokens: 100,
    output_tokens: 20,
    cache_read_tokens: 7,
    cache_write_tokens: 3,
    cost_micros: 50,
};

async fn usage_adds_up_by_session_and_by_organization(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let (work, other) = (session(&b.store, one, 40).await, session(&b.store, one, 41).await);
    assert_eq!(b.store.session_usage(one, work).await.unwrap(), Usage::default());
    together(8, |caller| {
        let store = b.store.clone();
        let model = if caller % 4 == 0 { "opus" } else { "haiku" };
        async move { store.add_usage(one, work, model, CALL, at(1)).await.unwrap() }
    })
    .await;
    b.store.add_usage(one, other, "opus", Usage { cost_micros: 1_000, ..CALL }, at(2)).await.unwrap();
    // The same ids in another organization are another row.
    b.store.add_usage(two, work, "opus", CALL, at(2)).await.unwrap();

    let used = b.store.session_usage(one, work).await.unwrap();
    let expected = Usage {
        requests: 8,
        input_tokens: 800,
        output_tokens: 160,
        cache_read_tokens: 56,
        cache_write_tokens: 24,
        cost_micros: 400,
    };
    assert_eq!(used, expected);
    assert_eq!(b.store.session_usage(two, work).await.unwrap(), CALL);
    assert_eq!(b.store.session_usage(two, other).await.unwrap(), Usage::default());
    assert_eq!(b.store.org_budget(one).await.unwrap().spent_micros, 1_400);
    let nowhere = b.store.add_usage(id(9), work, "opus", CALL, at(2)).await;
    assert!(matches!(nowhere, Err(StoreError::Missing("this organization"))), "{nowhere:?}");
}

async fn usage_outlives_a_deleted_session(b: &Backend) {
    let one = org(&b.store, 1).await;
    let work = session(&b.store, one, 40).await;
    b.store.add_usage(one, work, "opus", CALL, at(1)).await.unwrap();
    b.store.remove_session(one, work).await.unwrap();
    b.store.add_usage(one, work, "opus", CALL, at(3)).await.unwrap();
    assert_eq!(b.store.org_budget(one).await.unwrap().spent_micros, 100);
}

async fn a_budget_is_exhausted_when_it_is_spent(b: &Backend) {
    let one = org(&b.store, 1).await;
    let work = session(&b.store, one, 40).await;
    b.store.add_usage(one, work, "opus", CALL, at(1)).await.unwrap();
    let budget = b.store.org_budget(one).await.unwrap();
    assert_eq!((budget.budget_micros, budget.spent_micros, budget.session_limit), (None, 50, None));
    assert!(!budget.is_exhausted());
    b.store.set_org_limits(one, Some(51), Some(4)).await.unwrap();
    let budget = b.store.org_budget(one).await.unwrap();
    assert_eq!(
        (budget.budget_micros, budget.session_limit, budget.is_exhausted()),
        (Some(51), Some(4), false)
    );
    b.store.set_org_limits(one, Some(50), None).await.unwrap();
    assert!(b.store.org_budget(one).await.unwrap().is_exhausted());
    for missing in
        [b.store.org_budget(id(9)).await.map(drop), b.store.set_org_limits(id(9), None, None).await]
    {
        assert!(matches!(missing, Err(StoreError::Missing("this organization"))), "{missing:?}");
    }
}
