//! Idempotency keys: of many equal requests one is executed, the others get its response, and keys expire.

use chrono::{DateTime, TimeDelta, Utc};
use proto::OrgId;
use sqlx::types::JsonValue;
use store::{Begin, KeyedRequest, Reservation, Store, StoreError};

use crate::backend::{Backend, on_both};
use crate::world::{at, id, org, together};

on_both! {
    a_repeated_request_is_executed_once_and_gets_the_same_response
    of_many_concurrent_requests_one_is_executed
    a_released_key_can_be_used_again
    an_expired_key_is_replaced
    an_expired_reservation_stores_no_response
    keys_belong_to_one_caller_of_one_organization_and_one_route
    a_key_that_a_dead_instance_holds_is_free
    a_request_that_continues_one_which_was_cut_off_has_the_same_id
}

/// The instance that executes everything here.
const THIS_INSTANCE: &str = "here";

fn request(org_id: OrgId, body: char) -> KeyedRequest {
    let fingerprint = body.to_string().repeat(64);
    KeyedRequest {
        org_id,
        caller: "user one".to_owned(),
        instance: THIS_INSTANCE.to_owned(),
        route: "POST /proliferate/sessions".to_owned(),
        key: "k".to_owned(),
        fingerprint,
    }
}

async fn begin(store: &Store, request: KeyedRequest, now: DateTime<Utc>) -> Begin {
    store.see_instance(THIS_INSTANCE, None, now).await.unwrap();
    store.begin_idempotent(request, now, now).await.unwrap()
}

async fn fresh(store: &Store, request: KeyedRequest, now: DateTime<Utc>) -> Reservation {
    match begin(store, request, now).await {
        Begin::Fresh(reservation) => reservation,
        other => panic!("{other:?}"),
    }
}

async fn a_repeated_request_is_executed_once_and_gets_the_same_response(b: &Backend) {
    let one = org(&b.store, 1).await;
    let reservation = fresh(&b.store, request(one, 'a'), at(0)).await;
    assert!(matches!(begin(&b.store, request(one, 'a'), at(1)).await, Begin::InFlight));
    assert!(matches!(begin(&b.store, request(one, 'b'), at(1)).await, Begin::Mismatch));
    b.store.finish_idempotent(reservation, 201, JsonValue::from("made\0"), at(2)).await.unwrap();
    for later in [3, 80_000] {
        let Begin::Replay { status, body } = begin(&b.store, request(one, 'a'), at(later)).await else {
            panic!("no replay");
        };
        assert_eq!((status, body), (201, JsonValue::from("made\u{fffd}")));
        assert!(matches!(begin(&b.store, request(one, 'b'), at(later)).await, Begin::Mismatch));
    }
    let nowhere = b.store.begin_idempotent(request(id(9), 'a'), at(0), at(0)).await;
    assert!(matches!(nowhere, Err(StoreError::Missing("this organization"))), "{nowhere:?}");
}

async fn of_many_concurrent_requests_one_is_executed(b: &Backend) {
    let one = org(&b.store, 1).await;
    // The second round finds an expired key in its way.
    for now in [at(0), at(3_600)] {
        let began = together(24, |_| {
            let store = b.store.clone();
            async move { begin(&store, request(one, 'a'), now).await }
        })
        .await;
        let fresh = began.iter().filter(|begin| matches!(begin, Begin::Fresh(_))).count();
        let waiting = began.iter().filter(|begin| matches!(begin, Begin::InFlight)).count();
        assert_eq!((fresh, waiting), (1, 23));
    }
}

async fn a_released_key_can_be_used_again(b: &Backend) {
    let one = org(&b.store, 1).await;
    let reservation = fresh(&b.store, request(one, 'a'), at(0)).await;
    b.store.forget_idempotent(reservation).await.unwrap();
    fresh(&b.store, request(one, 'b'), at(1)).await;
}

async fn an_expired_key_is_replaced(b: &Backend) {
    let one = org(&b.store, 1).await;
    // A process that crashed never finishes.
    fresh(&b.store, request(one, 'a'), at(0)).await;
    let minutes = |n| at(0) + TimeDelta::minutes(n);
    assert!(matches!(begin(&b.store, request(one, 'a'), minutes(9)).await, Begin::InFlight));
    let second = fresh(&b.store, request(one, 'b'), minutes(10)).await;
    b.store.finish_idempotent(second, 200, JsonValue::Null, minutes(11)).await.unwrap();
    let hours = |n| minutes(11) + TimeDelta::hours(n);
    assert!(matches!(begin(&b.store, request(one, 'b'), hours(23)).await, Begin::Replay { status: 200, .. }));
    fresh(&b.store, request(one, 'c'), hours(24)).await;
    // Expired keys are deleted with the next request of anybody.
    let other = KeyedRequest { key: "other".to_owned(), ..request(one, 'd') };
    fresh(&b.store, other, hours(24 * 10)).await;
    assert_eq!(b.raw().await.number("SELECT count(*) FROM idempotency_keys").await, 1);
}

async fn an_expired_reservation_stores_no_response(b: &Backend) {
    let one = org(&b.store, 1).await;
    let slow = fresh(&b.store, request(one, 'a'), at(0)).await;
    fresh(&b.store, request(one, 'a'), at(601)).await;
    b.store.finish_idempotent(slow.clone(), 500, JsonValue::Null, at(602)).await.unwrap();
    assert!(matches!(begin(&b.store, request(one, 'a'), at(603)).await, Begin::InFlight));
    b.store.forget_idempotent(slow).await.unwrap();
    assert!(matches!(begin(&b.store, request(one, 'a'), at(604)).await, Begin::InFlight));
}

async fn keys_belong_to_one_caller_of_one_organization_and_one_route(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    fresh(&b.store, request(one, 'a'), at(0)).await;
    fresh(&b.store, request(two, 'b'), at(0)).await;
    let other = KeyedRequest { route: "POST /proliferate/{id}/message".to_owned(), ..request(one, 'c') };
    fresh(&b.store, other, at(0)).await;
    let other = KeyedRequest { caller: "service one".to_owned(), ..request(one, 'd') };
    fresh(&b.store, other, at(0)).await;
}

async fn a_key_that_a_dead_instance_holds_is_free(b: &Backend) {
    let one = org(&b.store, 1).await;
    let begin = async |instance: &str, body, dead_since, now| {
        let request = KeyedRequest { instance: instance.to_owned(), ..request(one, body) };
        b.store.begin_idempotent(request, dead_since, now).await.unwrap()
    };
    b.store.see_instance("dead", None, at(0)).await.unwrap();
    b.store.see_instance(THIS_INSTANCE, None, at(40)).await.unwrap();
    let Begin::Fresh(lost) = begin("dead", 'a', at(0), at(1)).await else { panic!("it is fresh") };
    assert!(matches!(begin(THIS_INSTANCE, 'a', at(0), at(30)).await, Begin::InFlight), "it was seen lately");
    let Begin::Fresh(kept) = begin(THIS_INSTANCE, 'a', at(10), at(40)).await else {
        panic!("its instance has died")
    };
    // If the instance was not dead after all, its late response is not stored.
    b.store.finish_idempotent(lost, 500, JsonValue::from("late"), at(41)).await.unwrap();
    assert!(matches!(begin(THIS_INSTANCE, 'a', at(10), at(42)).await, Begin::InFlight));
    b.store.finish_idempotent(kept, 201, JsonValue::from("made"), at(43)).await.unwrap();
    // A stored response stays, whatever happens to its instance.
    b.store.forget_instance(THIS_INSTANCE).await.unwrap();
    assert!(matches!(begin("next", 'a', at(10), at(44)).await, Begin::Replay { status: 201, .. }));
    // An instance that signed off or was deleted counts as dead at once.
    let other = KeyedRequest { key: "other".to_owned(), ..request(one, 'a') };
    let held = b.store.begin_idempotent(other.clone(), at(10), at(50)).await.unwrap();
    assert!(matches!(held, Begin::Fresh(_)));
    // Except for its own requests: its heartbeat may be late while it works.
    let own = b.store.begin_idempotent(other.clone(), at(10), at(51)).await.unwrap();
    assert!(matches!(own, Begin::InFlight), "{own:?}");
    let next = KeyedRequest { instance: "next".to_owned(), ..other };
    let again = b.store.begin_idempotent(next, at(10), at(51)).await.unwrap();
    assert!(matches!(again, Begin::Fresh(_)), "{again:?}");
}

async fn a_request_that_continues_one_which_was_cut_off_has_the_same_id(b: &Backend) {
    let one = org(&b.store, 1).await;
    let begin = async |instance: &str, body, dead_since, now| {
        let request = KeyedRequest { instance: instance.to_owned(), ..request(one, body) };
        match b.store.begin_idempotent(request, dead_since, now).await.unwrap() {
            Begin::Fresh(reservation) => reservation,
            other => panic!("{other:?}"),
        }
    };
    b.store.see_instance("dead", None, at(0)).await.unwrap();
    let cut_off = begin("dead", 'a', at(0), at(1)).await;
    let next = begin("next", 'a', at(10), at(40)).await;
    assert_eq!((next.work_id(), next.begun_at()), (cut_off.work_id(), at(1)));
    assert_eq!(next.work_id().get_version_num(), 7);
    // Its own process may lose the end too, and another request with the key is another work.
    let again = begin("next", 'a', at(10), at(40) + TimeDelta::minutes(10)).await;
    assert_eq!(again.work_id(), cut_off.work_id());
    let other = begin("next", 'b', at(10), at(40) + TimeDelta::minutes(20)).await;
    assert_ne!(other.work_id(), cut_off.work_id());
    // What had no effect is begun anew, and so is what ended long ago.
    b.store.forget_idempotent(other.clone()).await.unwrap();
    let anew = begin("next", 'b', at(10), at(40) + TimeDelta::minutes(21)).await;
    assert_ne!(anew.work_id(), other.work_id());
    b.store.finish_idempotent(anew.clone(), 200, JsonValue::Null, at(40)).await.unwrap();
    let later = begin("next", 'b', at(10), at(40) + TimeDelta::days(2)).await;
    assert_ne!(later.work_id(), anew.work_id());
    let request = KeyedRequest { key: "other".to_owned(), instance: "next".to_owned(), ..request(one, 'b') };
    let Begin::Fresh(beside) = b.store.begin_idempotent(request, at(10), at(40)).await.unwrap() else {
        panic!("it is fresh")
    };
    assert_ne!(beside.work_id(), later.work_id());
}
