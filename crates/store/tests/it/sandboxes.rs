//! Sessions and the tokens of their sandboxes: a token lives exactly as long as its sandbox is the present one.

use proto::{ClientType, SessionId, SessionStatus, SessionType};
use store::{NewSandboxToken, NewSession, StoreError};

use crate::backend::{Backend, on_both};
use crate::world::{at, hash, id, new_session, org, session, together};

on_both! {
    a_session_is_read_back_as_it_was_made
    a_session_needs_an_organisation_and_its_own_id
    every_sandbox_gets_its_own_generation
    a_sandbox_token_dies_when_the_generation_rises
    a_sandbox_token_dies_when_the_session_ends
    an_automation_is_known_by_its_client
}

async fn a_session_is_read_back_as_it_was_made(b: &Backend) {
    let one = org(&b.store, 1).await;
    let made = NewSession { session_type: SessionType::Setup, ..new_session(one, 40) };
    b.store.create_session(made).await.unwrap();
    let row = b.store.session(id(40)).await.unwrap().unwrap();
    assert_eq!((row.id, row.org_id), (id(40), one));
    assert_eq!((row.status, row.session_type), (SessionStatus::Pending, SessionType::Setup));
    assert_eq!(
        (row.stop_reason, row.sandbox_id, row.sandbox_generation, row.ended_at),
        (None, None, 0, None)
    );
    assert!(b.store.session(id(41)).await.unwrap().is_none());
}

async fn a_session_needs_an_organisation_and_its_own_id(b: &Backend) {
    let one = org(&b.store, 1).await;
    session(&b.store, one, 40).await;
    let twice = b.store.create_session(new_session(one, 40)).await;
    assert!(matches!(twice, Err(StoreError::Taken("this session"))), "{twice:?}");
    let nowhere = b.store.create_session(new_session(id(9), 41)).await;
    assert!(matches!(nowhere, Err(StoreError::Missing("this organisation or user"))), "{nowhere:?}");
    let nobody =
        b.store.create_session(NewSession { created_by: Some(id(99)), ..new_session(one, 42) }).await;
    assert!(matches!(nobody, Err(StoreError::Missing("this organisation or user"))), "{nobody:?}");
}

async fn every_sandbox_gets_its_own_generation(b: &Backend) {
    let one = org(&b.store, 1).await;
    let work = session(&b.store, one, 40).await;
    let mut given = together(8, |_| {
        let store = b.store.clone();
        async move { store.next_sandbox_generation(work).await.unwrap() }
    })
    .await;
    given.sort_unstable();
    assert_eq!(given, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(b.store.session(work).await.unwrap().unwrap().sandbox_generation, 8);
    let missing = b.store.next_sandbox_generation(id(99)).await;
    assert!(matches!(missing, Err(StoreError::Missing("this session"))), "{missing:?}");
}

fn token(session_id: SessionId, number: u8) -> NewSandboxToken {
    NewSandboxToken { token_hash: hash(number), session_id, at: at(0) }
}

async fn a_sandbox_token_dies_when_the_generation_rises(b: &Backend) {
    let one = org(&b.store, 1).await;
    let (work, other) = (session(&b.store, one, 40).await, session(&b.store, one, 41).await);
    b.store.create_sandbox_token(token(work, 60)).await.unwrap();
    b.store.create_sandbox_token(token(other, 61)).await.unwrap();
    let owner = b.store.sandbox_owner(&hash(60)).await.unwrap().unwrap();
    assert_eq!((owner.session_id, owner.org_id, owner.session_type), (work, one, SessionType::Coding));
    assert!(b.store.sandbox_owner(&hash(99)).await.unwrap().is_none(), "an unknown hash");

    b.store.next_sandbox_generation(work).await.unwrap();
    assert!(b.store.sandbox_owner(&hash(60)).await.unwrap().is_none());
    assert!(b.store.sandbox_owner(&hash(61)).await.unwrap().is_some(), "the other session keeps its sandbox");
    b.store.create_sandbox_token(token(work, 62)).await.unwrap();
    assert_eq!(b.store.sandbox_owner(&hash(62)).await.unwrap().unwrap().session_id, work);
    assert!(
        b.store.sandbox_owner(&hash(60)).await.unwrap().is_none(),
        "a new token does not wake the old one"
    );
}

async fn a_sandbox_token_dies_when_the_session_ends(b: &Backend) {
    let one = org(&b.store, 1).await;
    let work = session(&b.store, one, 40).await;
    b.store.create_sandbox_token(token(work, 60)).await.unwrap();
    assert!(b.store.sandbox_of_session(work).await.unwrap().is_some());
    let end = "UPDATE sessions SET status = 'stopped', ended_at = '2025-06-15T16:00:00Z' WHERE id = #40";
    assert_eq!(b.raw().await.execute(end).await.unwrap(), 1);

    assert!(b.store.sandbox_owner(&hash(60)).await.unwrap().is_none());
    assert!(b.store.sandbox_of_session(work).await.unwrap().is_none());
    for session in [work, id(99)] {
        let late = b.store.create_sandbox_token(token(session, 61)).await;
        assert!(matches!(late, Err(StoreError::Missing("this live session"))), "{late:?}");
    }
}

async fn an_automation_is_known_by_its_client(b: &Backend) {
    let one = org(&b.store, 1).await;
    let cases =
        [(40, Some(ClientType::Automation), true), (41, Some(ClientType::Cli), false), (42, None, false)];
    for (number, client_type, is_automation) in cases {
        b.store.create_session(NewSession { client_type, ..new_session(one, number) }).await.unwrap();
        let owner = b.store.sandbox_of_session(id(number)).await.unwrap().unwrap();
        assert_eq!(owner.is_automation(), is_automation, "{client_type:?}");
    }
    let origins = b.raw().await.texts("SELECT origin FROM sessions ORDER BY id").await;
    assert_eq!(origins, ["web", "cli", "web"]);
}
