//! A server that throws out all its clients, as one that is restarted does: no more than one caller is told.

use futures_util::future::join_all;

use crate::backend::Backend;

const CALLERS: usize = 12;
const OTHERS: &str = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";

#[tokio::test]
async fn one_broken_connection_makes_all_others_suspicious() {
    let backend = Backend::postgres().await;
    let mut raw = backend.raw().await;
    let looks = (0..CALLERS).map(|_| backend.store.orgs());
    for look in join_all(looks).await {
        look.unwrap();
    }
    let open = raw.number(&format!("SELECT count(*) {OTHERS}")).await;
    assert!(open > 2, "these callers came one after the other: {open}");
    raw.number(&format!("SELECT count(pg_terminate_backend(pid)) {OTHERS}")).await;
    while raw.number(&format!("SELECT count(*) {OTHERS}")).await > 0 {}
    let mut told = 0;
    for _ in 0..CALLERS {
        told += usize::from(backend.store.orgs().await.is_err());
    }
    assert!(told < 2, "{told} of {CALLERS} were told");
}
