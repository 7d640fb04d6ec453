//! Sandbox tokens: a token is valid exactly as long as its sandbox is the session's current one.

use proto::SessionId;
use store::{NewSandboxToken, StoreError};

use crate::backend::{Backend, on_both};
use crate::world::{at, ending, hash, id, org, own, session, together};

on_both! {
    every_sandbox_gets_its_own_generation
    a_sandbox_token_dies_when_the_generation_rises
    a_sandbox_token_dies_when_the_session_ends
}

async fn every_sandbox_gets_its_own_generation(b: &Backend) {
    let one = org(&b.store, 1).await;
    let work = session(&b.store, one, 40).await;
    let owner = own(&b.store, work).await;
    let mut given = together(8, |_| {
        let store = b.store.clone();
        async move { store.new_sandbox_generation(&owner, None).await.unwrap() }
    })
    .await;
    given.sort_unstable();
    assert_eq!(given, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b.store.session(one, work).await.unwrap().unwrap().sandbox_generation, 8);
}

fn token(session_id: SessionId, number: u8) -> NewSandboxToken {
    NewSandboxToken { token_hash: hash(number), session_id }
}

async fn a_sandbox_token_dies_when_the_generation_rises(b: &Backend) {
    let one = org(&b.store, 1).await;
    let (work, other) = (session(&b.store, one, 40).await, session(&b.store, one, 41).await);
    b.store.create_sandbox_token(token(work, 60)).await.unwrap();
    b.store.create_sandbox_token(token(other, 61)).await.unwrap();
    let owner = b.store.session_of_token(&hash(60)).await.unwrap().unwrap();
    assert_eq!((owner.id, owner.org_id), (work, one));
    assert_eq!(b.store.sandbox_session(work).await.unwrap(), Some(owner));
    assert!(b.store.session_of_token(&hash(99)).await.unwrap().is_none(), "an unknown hash");

    b.store.new_sandbox_generation(&own(&b.store, work).await, None).await.unwrap();
    assert!(b.store.session_of_token(&hash(60)).await.unwrap().is_none());
    assert!(
        b.store.session_of_token(&hash(61)).await.unwrap().is_some(),
        "the other session keeps its sandbox"
    );
    b.store.create_sandbox_token(token(work, 62)).await.unwrap();
    assert_eq!(b.store.session_of_token(&hash(62)).await.unwrap().unwrap().id, work);
    assert!(
        b.store.session_of_token(&hash(60)).await.unwrap().is_none(),
        "a new token does not wake the old one"
    );
}

async fn a_sandbox_token_dies_when_the_session_ends(b: &Backend) {
    let one = org(&b.store, 1).await;
    let work = session(&b.store, one, 40).await;
    b.store.create_sandbox_token(token(work, 60)).await.unwrap();
    let owner = own(&b.store, work).await;
    b.store.end_session(&owner, ending(at(9))).await.unwrap();

    assert!(b.store.session_of_token(&hash(60)).await.unwrap().is_none());
    for session in [work, id(99)] {
        let late = b.store.create_sandbox_token(token(session, 61)).await;
        assert!(matches!(late, Err(StoreError::Missing("this live session"))), "{late:?}");
    }
    b.store.start_session(&owner, at(10)).await.unwrap();
    b.store.create_sandbox_token(token(work, 61)).await.unwrap();
}
