//! A server that terminates all connections, as a restart does: at most one caller sees an error.

use std::time::Duration;

use futures_util::future::join_all;

use crate::backend::{Backend, Raw};

const CONCURRENT_CALLERS: usize = 12;
const OTHER_CONNECTIONS: &str =
    "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
/// A connection that was idle for a second is pinged before it is used.
const TRUST_ENDED: Duration = Duration::from_millis(1_100);

async fn call(backend: &Backend, callers: usize) {
    for look in join_all((0..callers).map(|_| backend.store.orgs())).await {
        look.unwrap();
    }
}

/// Terminates all connections but the one that runs this.
async fn throw_out(raw: &mut Raw) {
    let open = raw.number(&format!("SELECT count(*) {OTHER_CONNECTIONS}")).await;
    assert!(open > 2, "these callers came one after the other: {open}");
    raw.number(&format!("SELECT count(pg_terminate_backend(pid)) {OTHER_CONNECTIONS}")).await;
    while raw.number(&format!("SELECT count(*) {OTHER_CONNECTIONS}")).await > 0 {}
}

async fn failed_requests(backend: &Backend) -> usize {
    let mut told = 0;
    for _ in 0..CONCURRENT_CALLERS {
        told += usize::from(backend.store.orgs().await.is_err());
    }
    told
}

#[tokio::test]
async fn after_one_broken_connection_all_idle_ones_are_pinged() {
    let backend = Backend::postgres().await;
    let mut raw = backend.raw().await;
    call(&backend, CONCURRENT_CALLERS).await;
    throw_out(&mut raw).await;
    let told = failed_requests(&backend).await;
    assert!(told < 2, "{told} of {CONCURRENT_CALLERS} were told");
}

#[tokio::test]
async fn a_failed_ping_also_makes_the_pool_ping_idle_connections() {
    let backend = Backend::postgres().await;
    let mut raw = backend.raw().await;
    call(&backend, CONCURRENT_CALLERS).await;
    tokio::time::sleep(TRUST_ENDED).await;
    // The pool uses the oldest first, so these are not the first to be pinged.
    call(&backend, CONCURRENT_CALLERS / 2).await;
    throw_out(&mut raw).await;
    assert_eq!(failed_requests(&backend).await, 0);
}
