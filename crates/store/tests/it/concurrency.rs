//! Many concurrent callers: every acknowledged write is stored, and a failed one does not affect others.

use store::{NewOrg, Store, StoreError};
use uuid::Uuid;

use crate::backend::{Backend, Raw, on_both};
use crate::world::{at, together};

on_both! { failed_writes_do_not_affect_others_in_the_batch }

fn numbered(number: usize) -> NewOrg {
    NewOrg { id: Uuid::from_u128(number as u128).into(), name: format!("org {number}"), at: at(0) }
}

async fn count(store: &Store) -> usize {
    store.orgs().await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_concurrent_writes_are_all_committed() {
    let backend = Backend::sqlite().await;
    let made = together(500, |caller| {
        let store = backend.store.clone();
        async move { store.create_org(numbered(caller)).await }
    })
    .await;
    made.into_iter().for_each(Result::unwrap);
    assert_eq!(count(&backend.store).await, 500);
}

async fn failed_writes_do_not_affect_others_in_the_batch(b: &Backend) {
    // Three callers want each id.
    let made = together(120, |caller| {
        let store = b.store.clone();
        async move { (caller % 40, store.create_org(numbered(caller % 40)).await) }
    })
    .await;
    let mut winners: Vec<usize> = Vec::new();
    for (id, done) in made {
        match done {
            Ok(()) => winners.push(id),
            Err(StoreError::Failed(sqlx::Error::Database(error))) => {
                assert!(error.is_unique_violation(), "{error}");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    winners.sort_unstable();
    assert_eq!(winners, (0..40).collect::<Vec<_>>());
    assert_eq!(count(&b.store).await, 40);
}

#[tokio::test]
async fn acknowledged_writes_are_in_the_file_after_the_store_is_dropped() {
    let backend = Backend::sqlite().await;
    let store = backend.reopen().await.unwrap();
    store.create_org(numbered(1)).await.unwrap();
    drop(store);
    assert_eq!(Raw::sqlite(backend.file()).await.number("SELECT count(*) FROM organizations").await, 1);
    assert_eq!(count(&backend.reopen().await.unwrap()).await, 1);
}

#[tokio::test]
async fn another_process_can_write_at_the_same_time() {
    let backend = Backend::sqlite().await;
    let other = backend.reopen().await.unwrap();
    let made = together(40, |caller| {
        let store = if caller % 2 == 0 { backend.store.clone() } else { other.clone() };
        async move { store.create_org(numbered(caller)).await }
    })
    .await;
    made.into_iter().for_each(Result::unwrap);
    assert_eq!((count(&backend.store).await, count(&other).await), (40, 40));
}
