//! Snapshots: their owners, and what starts from them.

use proto::socket::SnapshotTarget;
use proto::{ConfigurationStatus, SessionType};
use store::{NewSession, StoreError};

use crate::backend::{Backend, on_both};
use crate::world::{at, configuration, id, new_session, org, own, session, snapshot};

on_both! {
    a_snapshot_belongs_to_one_organization_and_outlives_its_session
    a_configuration_starts_from_the_snapshot_of_its_setup_session
    unused_snapshots_are_deleted
}

async fn a_snapshot_belongs_to_one_organization_and_outlives_its_session(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let work = session(&b.store, one, 40).await;
    let owner = own(&b.store, work).await;
    b.store.record_snapshot(&owner, snapshot("copy", SnapshotTarget::Session)).await.unwrap();
    let again = b.store.record_snapshot(&owner, snapshot("copy", SnapshotTarget::Session)).await;
    assert!(matches!(again, Err(StoreError::Taken(_))), "{again:?}");
    assert_eq!(b.store.session(one, work).await.unwrap().unwrap().snapshot_id.as_deref(), Some("copy"));
    assert_eq!(b.store.snapshot(two, "copy").await.unwrap(), None);
    assert_eq!(b.store.snapshot(one, "other").await.unwrap(), None);
    b.store.remove_session(one, work).await.unwrap();
    let found = b.store.snapshot(one, "copy").await.unwrap().unwrap();
    assert_eq!((found.session_id, found.created_at), (work, at(8)));
}

async fn a_configuration_starts_from_the_snapshot_of_its_setup_session(b: &Backend) {
    let one = org(&b.store, 1).await;
    let place = configuration(b, 1, 30).await;
    let of = |number, configuration_id| NewSession {
        session_type: SessionType::Setup,
        configuration_id,
        ..new_session(one, number)
    };
    b.store.create_session(of(40, Some(place))).await.unwrap();
    let owner = own(&b.store, id(40)).await;
    b.store.record_snapshot(&owner, snapshot("ready", SnapshotTarget::Configuration)).await.unwrap();
    let found = b.store.configuration(one, place).await.unwrap().unwrap();
    assert_eq!((found.snapshot_id.as_deref(), found.status), (Some("ready"), ConfigurationStatus::Ready));
    assert_eq!(b.store.session(one, id(40)).await.unwrap().unwrap().snapshot_id, None);

    b.store.create_session(of(41, None)).await.unwrap();
    let lost = own(&b.store, id(41)).await;
    let refused = b.store.record_snapshot(&lost, snapshot("lost", SnapshotTarget::Configuration)).await;
    assert!(matches!(refused, Err(StoreError::Missing("this configuration"))), "{refused:?}");
    assert_eq!(b.store.snapshot(one, "lost").await.unwrap(), None, "half of it was kept");
}

async fn unused_snapshots_are_deleted(b: &Backend) {
    let one = org(&b.store, 1).await;
    let place = configuration(b, 1, 30).await;
    let (setup, work, other) = (id(40), session(&b.store, one, 41).await, id(42));
    let new = NewSession { session_type: SessionType::Setup, ..new_session(one, 40) };
    b.store.create_session(NewSession { configuration_id: Some(place), ..new }).await.unwrap();
    let record = async |session, name, target| {
        let owner = own(&b.store, session).await;
        b.store.record_snapshot(&owner, snapshot(name, target)).await.unwrap()
    };
    let none: [&str; 0] = [];
    for name in ["a", "b", "c", "d", "e"] {
        assert_eq!(record(work, name, SnapshotTarget::Session).await, none);
    }
    assert_eq!(record(work, "f", SnapshotTarget::Session).await, ["a"]);
    assert_eq!(b.store.snapshot(one, "a").await.unwrap(), None);
    // Another session starts from it, until it has its own snapshot.
    let from = NewSession { snapshot_id: Some("b".to_owned()), ..new_session(one, 42) };
    b.store.create_session(from).await.unwrap();
    assert_eq!(record(work, "g", SnapshotTarget::Session).await, none);
    assert_eq!(record(other, "h", SnapshotTarget::Session).await, ["b"]);
    // The snapshot of a configuration outlives its session.
    for name in ["i", "j"] {
        assert_eq!(record(setup, name, SnapshotTarget::Configuration).await, none);
    }
    for gone in [setup, other] {
        b.store.remove_session(one, gone).await.unwrap();
    }
    let sorted = |mut names: Vec<String>| {
        names.sort_unstable();
        names
    };
    assert_eq!(b.store.forget_orphaned_snapshots("elsewhere").await.unwrap(), none);
    assert_eq!(sorted(b.store.forget_orphaned_snapshots("local").await.unwrap()), ["h", "i"]);
    b.store.remove_session(one, work).await.unwrap();
    let new = session(&b.store, one, 43).await;
    assert_eq!(sorted(record(new, "k", SnapshotTarget::Session).await), ["c", "d", "e", "f", "g"]);
    assert!(b.store.snapshot(one, "j").await.unwrap().is_some());
}
