//! Browser logins, and the deletion of long-expired credentials.

use chrono::{DateTime, Utc};
use proto::{OrgId, Role, UserId};
use store::{
    NewDeviceLogin, NewLoginCode, NewLoginSession, NewTicket, Standing, StoreError, TicketKind,
    UserCredential,
};

use crate::backend::{Backend, on_both};
use crate::world::{at, hash, id, member, org, session};

on_both! {
    a_login_finds_its_member_until_it_expires
    a_login_can_be_ended
    a_login_dies_with_the_membership
    a_login_needs_a_member_and_its_own_hash
    long_expired_credentials_are_deleted_when_the_next_is_created
    the_newest_device_login_replaces_the_oldest_that_nobody_has_approved
}

const SECONDS_PER_DAY: i64 = 86_400;

fn login(org_id: OrgId, user_id: UserId, number: u8, expires_at: DateTime<Utc>) -> NewLoginSession {
    NewLoginSession { token_hash: hash(number), org_id, user_id, at: at(0), expires_at }
}

async fn a_login_finds_its_member_until_it_expires(b: &Backend) {
    let one = org(&b.store, 1).await;
    let ada = member(&b.store, one, 10, Role::Admin).await;
    b.store.create_login_session(login(one, ada, 30, at(60))).await.unwrap();
    for now in [at(0), at(1), at(59)] {
        let owner = b.store.login_session_owner(&hash(30), now).await.unwrap().unwrap();
        assert_eq!((owner.org_id, owner.user_id, owner.role), (one, ada, Role::Admin));
        assert_eq!(owner.email, "user10@example.com");
    }
    b.store
        .change_member(one, member(&b.store, one, 11, Role::Owner).await, Some(Role::Owner), at(2))
        .await
        .unwrap();
    b.store.change_member(one, ada, Some(Role::Member), at(2)).await.unwrap();
    let owner = b.store.login_session_owner(&hash(30), at(2)).await.unwrap().unwrap();
    assert_eq!(owner.role, Role::Member, "the role is the present one");
    assert!(b.store.login_session_owner(&hash(30), at(60)).await.unwrap().is_none(), "expired");
    assert!(b.store.login_session_owner(&hash(31), at(1)).await.unwrap().is_none(), "no such login");
}

async fn a_login_can_be_ended(b: &Backend) {
    let one = org(&b.store, 1).await;
    let ada = member(&b.store, one, 10, Role::Owner).await;
    for number in [30, 31] {
        b.store.create_login_session(login(one, ada, number, at(60))).await.unwrap();
    }
    b.store.end_login_session(&hash(30), at(1)).await.unwrap();
    assert!(b.store.login_session_owner(&hash(30), at(2)).await.unwrap().is_none());
    assert!(b.store.login_session_owner(&hash(31), at(2)).await.unwrap().is_some(), "the other device stays");
    for gone in [30, 99] {
        b.store.end_login_session(&hash(gone), at(3)).await.unwrap();
    }
    let first = "SELECT count(*) FROM login_sessions WHERE token_hash = @30 AND ended_at IS NOT NULL";
    assert_eq!(b.raw().await.number(first).await, 1);
}

async fn a_login_dies_with_the_membership(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    for org in [one, two] {
        member(&b.store, org, 9, Role::Owner).await;
    }
    let ada = member(&b.store, one, 10, Role::Member).await;
    member(&b.store, two, 10, Role::Member).await;
    b.store.create_login_session(login(one, ada, 30, at(60))).await.unwrap();
    b.store.create_login_session(login(two, ada, 31, at(60))).await.unwrap();
    b.store.change_member(one, ada, None, at(2)).await.unwrap();
    member(&b.store, one, 10, Role::Member).await;
    assert!(b.store.login_session_owner(&hash(30), at(1)).await.unwrap().is_none(), "also after coming back");
    assert_eq!(b.store.login_session_owner(&hash(31), at(1)).await.unwrap().unwrap().org_id, two);
}

async fn a_login_needs_a_member_and_its_own_hash(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let ada = member(&b.store, one, 10, Role::Owner).await;
    b.store.create_login_session(login(one, ada, 30, at(60))).await.unwrap();
    let same = b.store.create_login_session(login(one, ada, 30, at(60))).await;
    assert!(matches!(same, Err(StoreError::Taken("this login"))), "{same:?}");
    for (org, user) in [(two, ada), (one, id(99))] {
        let stranger = b.store.create_login_session(login(org, user, 31, at(60))).await;
        assert!(matches!(stranger, Err(StoreError::Missing("this member"))), "{stranger:?}");
    }
}

/// One of each credential of organization `org_number`, created and expired at these seconds.
async fn credentials(b: &Backend, org_number: u8, number: u8, made: i64, expires: i64) {
    let (org_id, user_id) = (id(org_number), id(10));
    let (at, expires_at) = (at(made), at(expires));
    let code_hash = hash(number);
    b.store.create_login_code(NewLoginCode { code_hash, org_id, user_id, at, expires_at }).await.unwrap();
    let token_hash = hash(number);
    b.store
        .create_login_session(NewLoginSession { token_hash, org_id, user_id, at, expires_at })
        .await
        .unwrap();
    let (session_id, kind) = (id(40 + org_number), TicketKind::Proxy);
    let standing = Standing { org_id, user_id, credential: UserCredential::Token };
    let ticket = NewTicket { id: id(number), session_id, standing, kind, token_hash, at, expires_at };
    b.store.create_ticket(ticket).await.unwrap();
}

async fn long_expired_credentials_are_deleted_when_the_next_is_created(b: &Backend) {
    for number in [1, 2] {
        let org = org(&b.store, number).await;
        member(&b.store, org, 10, Role::Owner).await;
        session(&b.store, org, 40 + number).await;
    }
    credentials(b, 1, 50, 0, 60).await;
    credentials(b, 1, 51, 0, 62).await;
    credentials(b, 2, 52, 0, 60).await;
    credentials(b, 1, 53, SECONDS_PER_DAY + 61, 2 * SECONDS_PER_DAY).await;
    let tables = [("login_codes", "code_hash"), ("login_sessions", "token_hash"), ("tickets", "token_hash")];
    let mut left = Vec::new();
    for (table, column) in tables {
        for number in 50..=53 {
            let sql = format!("SELECT count(*) FROM {table} WHERE {column} = @{number}");
            left.push((table, b.raw().await.number(&sql).await));
        }
    }
    // More than a day ago, less, another organization's, and the new one.
    let expected = tables.map(|(table, _)| [0, 1, 1, 1].map(|count| (table, count))).concat();
    assert_eq!(left, expected);
}

async fn the_newest_device_login_replaces_the_oldest_that_nobody_has_approved(b: &Backend) {
    let org_id = org(&b.store, 1).await;
    let user_id = member(&b.store, org_id, 10, Role::Admin).await;
    let ada = Standing { org_id, user_id, credential: UserCredential::Token };
    let start = async |number: u8| {
        let code = format!("ABCD-{number:04}");
        let new = NewDeviceLogin {
            device_hash: hash(number),
            user_code: code.clone(),
            client_name: "CLI".to_owned(),
            at: at(number.into()),
            expires_at: at(i64::from(number) + 900),
        };
        b.store.create_device_login(new, 3).await.map(|()| code)
    };
    let oldest = start(1).await.unwrap();
    b.store.decide_device_login(&oldest, Some(ada), at(2)).await.unwrap();
    for number in 2..6 {
        start(number).await.unwrap();
    }
    let mut waiting = Vec::new();
    for number in 1..6 {
        if b.store.device_login(&hash(number)).await.unwrap().is_some() {
            waiting.push(number);
        }
    }
    assert_eq!(waiting, [1, 4, 5], "the approved one stays");
}
