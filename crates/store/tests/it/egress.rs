//! Egress rules and records.

use clock::Rng;
use proto::{EgressKind, EgressMode, EgressOutcome, OrgId, SessionId};
use sqlx::types::Json;
use store::{EgressPolicy, NewEgressRecord, StoreError};

use crate::backend::{Backend, on_both};
use crate::world::{at, id, org, session};

on_both! {
    rules_are_replaced_completely_and_belong_to_one_organization
    records_are_listed_newest_first_and_outlive_their_session
    old_records_are_deleted_and_none_is_written_twice
}

fn policy(org_id: OrgId, mode: EgressMode, allow: &[&str]) -> EgressPolicy {
    let allow = allow.iter().map(|entry| (*entry).to_owned()).collect();
    EgressPolicy { org_id, mode, allow: Json(allow), deny: Json(vec!["bad.example".to_owned()]) }
}

async fn rules_are_replaced_completely_and_belong_to_one_organization(backend: &Backend) {
    let store = &backend.store;
    let (one, two) = (org(store, 1).await, org(store, 2).await);
    assert_eq!(store.egress_policy(one).await.unwrap().mode, EgressMode::Open);
    for (mode, allow) in [(EgressMode::AllowList, vec!["a.example"]), (EgressMode::Offline, vec![])] {
        store.put_egress_policy(policy(one, mode, &allow), at(10)).await.unwrap();
        let found = store.egress_policy(one).await.unwrap();
        assert_eq!((found.mode, found.allow.0.len(), found.deny.0.len()), (mode, allow.len(), 1));
    }
    assert_eq!(store.egress_policy(two).await.unwrap().mode, EgressMode::Open);
    assert_eq!(store.egress_policies_since(at(10)).await.unwrap().len(), 1);
    assert!(store.egress_policies_since(at(11)).await.unwrap().is_empty());
    let nobody = store.put_egress_policy(policy(id(9), EgressMode::Open, &[]), at(1)).await;
    assert!(matches!(nobody, Err(StoreError::Missing(_))), "{nobody:?}");
}

fn record(number: u8, org_id: OrgId, session_id: Option<SessionId>) -> NewEgressRecord {
    NewEgressRecord {
        id: Rng::seeded(number.into()).uuid(at(number.into())),
        org_id,
        session_id,
        sandbox_id: format!("s{number}"),
        kind: EgressKind::Connect,
        host: Some("example.com".to_owned()),
        port: Some(443),
        address: Some("93.184.215.14".to_owned()),
        outcome: EgressOutcome::Complete,
        reason: None,
        bytes_up: 1,
        bytes_down: i64::from(number),
        started_at: at(number.into()),
        duration_ms: 5,
    }
}

async fn old_records_are_deleted_and_none_is_written_twice(backend: &Backend) {
    let store = &backend.store;
    let one = org(store, 1).await;
    for _ in 0..2 {
        let records = (1..8).map(|number| record(number, one, None)).collect();
        store.add_egress_records(records).await.unwrap();
    }
    assert_eq!(store.egress_records(one, None, 100).await.unwrap().len(), 7);
    for (before, forgotten) in [(1, 0), (5, 3), (5, 1), (5, 0), (6, 1)] {
        assert_eq!(store.forget_egress_records(at(before), 3).await.unwrap(), forgotten);
    }
    let left = store.egress_records(one, None, 100).await.unwrap();
    assert_eq!(left.iter().map(|record| record.sandbox_id.as_str()).collect::<Vec<_>>(), ["s7", "s6"]);
    assert_eq!(left[0].address.as_deref(), Some("93.184.215.14"));
}

async fn records_are_listed_newest_first_and_outlive_their_session(backend: &Backend) {
    let store = &backend.store;
    let (one, two) = (org(store, 1).await, org(store, 2).await);
    let mine = session(store, one, 3).await;
    let records = vec![record(1, one, Some(mine)), record(2, one, None), record(3, two, None)];
    store.add_egress_records(records).await.unwrap();
    let names = async |org, session, limit| {
        let found = store.egress_records(org, session, limit).await.unwrap();
        found.into_iter().map(|record| record.sandbox_id).collect::<Vec<_>>()
    };
    assert_eq!(names(one, None, 10).await, ["s2", "s1"]);
    assert_eq!(names(one, None, 1).await, ["s2"]);
    assert_eq!(names(one, Some(mine), 10).await, ["s1"]);
    assert_eq!(names(two, Some(mine), 10).await, [""; 0]);
    backend.raw().await.execute("DELETE FROM sessions").await.unwrap();
    assert_eq!(names(one, Some(mine), 10).await, ["s1"]);
}
