//! One gateway serves a PostgreSQL database at a time; the next one gets it as soon as the first is gone.

use std::time::Duration;

use store::{InstanceLock, StoreError};

use crate::backend::Place;

const SHORT_WAIT: Duration = Duration::from_millis(300);
const LONG_WAIT: Duration = Duration::from_secs(20);
const SELECT_HOLDERS: &str = "SELECT pid::text FROM pg_locks JOIN pg_database d ON d.oid = database
    WHERE locktype = 'advisory' AND granted AND datname = current_database()";

async fn within<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG_WAIT, work).await.unwrap_or_else(|_| panic!("it takes too long"))
}

/// Ends the server process that holds the lock, as a restart of PostgreSQL or a failing network does.
async fn break_connection(place: &Place) -> Vec<String> {
    let mut raw = place.raw().await;
    let holders = raw.texts(SELECT_HOLDERS).await;
    raw.texts(&format!("SELECT pg_terminate_backend({})::text", holders[0])).await;
    holders
}

#[tokio::test]
async fn a_second_gateway_is_refused_until_the_first_releases_the_lock() {
    let place = Place::postgres().await;
    let first = InstanceLock::acquire(&place.url(), Duration::ZERO).await.unwrap();
    let refused = InstanceLock::acquire(&place.url(), SHORT_WAIT).await.err().unwrap();
    assert!(matches!(refused, StoreError::Served { .. }), "{refused:?}");
    let text = refused.to_string();
    assert!(text.contains("another gateway serves the database postgres://test@"), "{text}");
    let elsewhere = Place::postgres().await;
    InstanceLock::acquire(&elsewhere.url(), SHORT_WAIT).await.unwrap();

    let (url, waiting) = (place.url(), tokio::time::sleep(SHORT_WAIT));
    let second = tokio::spawn(async move { InstanceLock::acquire(&url, LONG_WAIT).await });
    waiting.await;
    assert!(!second.is_finished(), "it waits for the first to stop");
    drop(first);
    within(second).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_broken_connection_is_replaced_and_takes_the_lock_again() {
    let place = Place::postgres().await;
    let first = InstanceLock::acquire(&place.url(), SHORT_WAIT).await.unwrap();
    let lost = first.lost();
    let before = break_connection(&place).await;
    let mut raw = place.raw().await;
    within(async {
        loop {
            let now = raw.texts(SELECT_HOLDERS).await;
            if !now.is_empty() && now != before {
                break;
            }
        }
    })
    .await;
    let refused = InstanceLock::acquire(&place.url(), SHORT_WAIT).await;
    assert!(matches!(refused, Err(StoreError::Served { .. })));
    assert!(tokio::time::timeout(SHORT_WAIT, lost).await.is_err(), "it was not lost");
}

#[tokio::test]
async fn a_gateway_learns_that_another_one_took_over() {
    let place = Place::postgres().await;
    let first = InstanceLock::acquire(&place.url(), SHORT_WAIT).await.unwrap();
    let lost = first.lost();
    let url = place.url();
    let second = tokio::spawn(async move { InstanceLock::acquire(&url, LONG_WAIT).await });
    // It tries every 100 ms and the first checks its connection once a second, so most attempts go to the second.
    let held = within(async {
        loop {
            break_connection(&place).await;
            tokio::time::sleep(SHORT_WAIT).await;
            if second.is_finished() {
                break second.await.unwrap();
            }
        }
    })
    .await;
    let _held = held.unwrap();
    within(lost).await;
}
