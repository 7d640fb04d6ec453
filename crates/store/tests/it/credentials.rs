//! Keys, login codes and tickets: found by hash, invalid when they should be, and single-use where required.

use chrono::{DateTime, TimeDelta, Utc};
use proto::http::KeyScope;
use proto::{ApiKeyId, OrgId, Role, SessionId, UserId};
use store::{
    KeyOwner, NewApiKey, NewLoginCode, NewLoginSession, NewTicket, Standing, StoreError, TicketKind,
    TicketOwner, UserCredential,
};

use crate::backend::{Backend, on_both};
use crate::world::{at, hash, id, member, org, session, together};

on_both! {
    a_key_finds_its_owner_until_it_is_revoked
    a_key_dies_with_the_membership
    a_key_needs_a_member_and_its_own_hash
    a_login_code_works_once
    a_login_code_works_until_it_expires
    a_login_code_dies_with_the_membership
    a_socket_ticket_works_once
    a_proxy_ticket_works_until_it_expires
    a_credential_ends_with_the_membership_the_key_or_the_login
    a_ticket_can_be_revoked_by_its_user_alone
    a_ticket_needs_a_session_and_a_member_of_its_organization
}

pub(crate) fn key(org_id: OrgId, user_id: UserId, number: u8) -> NewApiKey {
    let name = format!("key {number}");
    NewApiKey {
        id: id(number),
        org_id,
        user_id,
        name,
        scope: KeyScope::Mcp,
        hint: "plf_ab".to_owned(),
        key_hash: hash(number),
        at: at(number.into()),
    }
}

async fn a_key_finds_its_owner_until_it_is_revoked(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let (ada, bob) =
        (member(&b.store, one, 10, Role::Admin).await, member(&b.store, one, 11, Role::Member).await);
    for (user, number) in [(ada, 20), (ada, 21), (bob, 22)] {
        b.store.create_key(key(one, user, number)).await.unwrap();
    }
    let KeyOwner { key, scope, member: owner } = b.store.key_owner(&hash(20)).await.unwrap().unwrap();
    assert_eq!((key, scope), (id(20), KeyScope::Mcp));
    assert_eq!((owner.user_id, owner.org_id, owner.role), (ada, one, Role::Admin));
    assert!(b.store.key_owner(&hash(99)).await.unwrap().is_none());
    let listed: Vec<_> =
        b.store.keys(one).await.unwrap().into_iter().map(|k| (k.id, k.user_id, k.name)).collect();
    assert_eq!(listed, [(22, bob), (21, ada), (20, ada)].map(|(n, user)| (id(n), user, format!("key {n}"))));

    let key: ApiKeyId = id(20);
    for (org, only_of) in [(one, Some(bob)), (two, None), (two, Some(ada))] {
        let missed = b.store.revoke_key(org, key, only_of, at(100)).await;
        assert!(matches!(missed, Err(StoreError::Missing("this key"))), "{org} {only_of:?}: {missed:?}");
    }
    assert!(b.store.key_owner(&hash(20)).await.unwrap().is_some());
    b.store.revoke_key(one, key, Some(ada), at(100)).await.unwrap();
    assert!(b.store.key_owner(&hash(20)).await.unwrap().is_none());
    assert!(matches!(b.store.revoke_key(one, key, None, at(101)).await, Err(StoreError::Missing(_))));

    b.store.revoke_key(one, id(21), None, at(102)).await.unwrap();
    let revoked: Vec<_> = b.store.keys(one).await.unwrap().into_iter().map(|key| key.revoked_at).collect();
    assert_eq!(
        revoked,
        [None, Some(at(102)), Some(at(100))],
        "a revoked key is still listed, with its first time"
    );
}

async fn a_key_dies_with_the_membership(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    member(&b.store, one, 9, Role::Owner).await;
    let ada = member(&b.store, one, 10, Role::Member).await;
    member(&b.store, two, 10, Role::Member).await;
    b.store.create_key(key(one, ada, 20)).await.unwrap();
    b.store.create_key(key(two, ada, 21)).await.unwrap();
    b.store.change_member(one, ada, None, at(2)).await.unwrap();
    assert!(b.store.key_owner(&hash(20)).await.unwrap().is_none());
    assert!(b.store.keys(one).await.unwrap().is_empty());
    assert_eq!(
        b.store.key_owner(&hash(21)).await.unwrap().unwrap().member.org_id,
        two,
        "the other membership lives"
    );

    member(&b.store, one, 10, Role::Member).await;
    assert!(b.store.key_owner(&hash(20)).await.unwrap().is_none(), "coming back does not bring the key back");
}

async fn a_key_needs_a_member_and_its_own_hash(b: &Backend) {
    let one = org(&b.store, 1).await;
    let ada = member(&b.store, one, 10, Role::Owner).await;
    b.store.create_key(key(one, ada, 20)).await.unwrap();
    let same = b.store.create_key(NewApiKey { id: id(21), ..key(one, ada, 20) }).await;
    assert!(matches!(same, Err(StoreError::Taken("this key"))), "{same:?}");
    let stranger = b.store.create_key(key(one, id(99), 22)).await;
    assert!(matches!(stranger, Err(StoreError::Missing("this member"))), "{stranger:?}");
}

fn code(org_id: OrgId, user_id: UserId, number: u8, expires_at: DateTime<Utc>) -> NewLoginCode {
    NewLoginCode { code_hash: hash(number), org_id, user_id, at: at(0), expires_at }
}

async fn a_login_code_works_once(b: &Backend) {
    let one = org(&b.store, 1).await;
    let ada = member(&b.store, one, 10, Role::Owner).await;
    b.store.create_login_code(code(one, ada, 30, at(60))).await.unwrap();
    let redeemed = together(8, |_| {
        let store = b.store.clone();
        async move { store.redeem_login_code(&hash(30), at(1)).await.unwrap() }
    })
    .await;
    let winners: Vec<_> = redeemed.into_iter().flatten().collect();
    assert_eq!(winners, [(one, ada)]);
    assert_eq!(b.store.redeem_login_code(&hash(30), at(2)).await.unwrap(), None);
    assert_eq!(b.store.redeem_login_code(&hash(31), at(2)).await.unwrap(), None, "no such code");
    let again = b.store.create_login_code(code(one, ada, 30, at(60))).await;
    assert!(matches!(again, Err(StoreError::Taken("this code"))), "{again:?}");
}

/// SQLite compares times as texts, whose length varies with the fraction: the order must still be chronological.
async fn a_login_code_works_until_it_expires(b: &Backend) {
    let one = org(&b.store, 1).await;
    let ada = member(&b.store, one, 10, Role::Owner).await;
    let micros = |micros| at(0) + TimeDelta::microseconds(micros);
    let cases = [
        (micros(1_000_000), micros(999_999), true),
        (micros(1_000_000), micros(1_000_000), false),
        (micros(1_000_000), micros(1_000_001), false),
        (micros(1_500_000), micros(1_000_000), true),
        (micros(1_500_000), micros(1_499_000), true),
        (micros(1_500_000), micros(1_500_001), false),
        (micros(1_500_000), micros(2_000_000), false),
        (micros(1_000_001), micros(1_000_000), true),
        (at(86_400), at(86_399), true),
    ];
    for (number, (expires, now, works)) in (30..).zip(cases) {
        b.store.create_login_code(code(one, ada, number, expires)).await.unwrap();
        let redeemed = b.store.redeem_login_code(&hash(number), now).await.unwrap();
        assert_eq!(redeemed.is_some(), works, "expires {expires}, redeemed {now}");
    }
}

async fn a_login_code_dies_with_the_membership(b: &Backend) {
    let one = org(&b.store, 1).await;
    member(&b.store, one, 9, Role::Owner).await;
    let ada = member(&b.store, one, 10, Role::Member).await;
    b.store.create_login_code(code(one, ada, 30, at(60))).await.unwrap();
    b.store.change_member(one, ada, None, at(2)).await.unwrap();
    assert_eq!(b.store.redeem_login_code(&hash(30), at(1)).await.unwrap(), None);
    let stranger = b.store.create_login_code(code(one, ada, 31, at(60))).await;
    assert!(matches!(stranger, Err(StoreError::Missing("this member"))), "{stranger:?}");
}

/// A ticket that expires at 60.
fn ticket(org_id: OrgId, session_id: SessionId, user_id: UserId, kind: TicketKind, number: u8) -> NewTicket {
    NewTicket {
        id: id(number),
        session_id,
        standing: Standing { org_id, user_id, credential: UserCredential::Token },
        kind,
        token_hash: hash(number),
        at: at(0),
        expires_at: at(60),
    }
}

fn owner(ticket: TicketOwner) -> (OrgId, SessionId, UserId) {
    (ticket.standing.org_id, ticket.session_id, ticket.standing.user_id)
}

async fn a_socket_ticket_works_once(b: &Backend) {
    let one = org(&b.store, 1).await;
    let (ada, work) = (member(&b.store, one, 10, Role::Owner).await, session(&b.store, one, 40).await);
    for number in [50, 51] {
        b.store.create_ticket(ticket(one, work, ada, TicketKind::Socket, number)).await.unwrap();
    }
    let taken = together(8, |_| {
        let store = b.store.clone();
        async move { store.take_socket_ticket(&hash(50), at(59)).await.unwrap() }
    })
    .await;
    let winners: Vec<_> = taken.into_iter().flatten().map(owner).collect();
    assert_eq!(winners, [(one, work, ada)]);
    assert!(b.store.take_socket_ticket(&hash(51), at(60)).await.unwrap().is_none(), "expired");
    assert!(b.store.proxy_ticket(&hash(51), at(1)).await.unwrap().is_none(), "a socket ticket opens no port");
    assert!(
        b.store.take_socket_ticket(&hash(51), at(59)).await.unwrap().is_some(),
        "nothing above used it up"
    );
}

async fn a_proxy_ticket_works_until_it_expires(b: &Backend) {
    let one = org(&b.store, 1).await;
    let (ada, work) = (member(&b.store, one, 10, Role::Owner).await, session(&b.store, one, 40).await);
    b.store.create_ticket(ticket(one, work, ada, TicketKind::Proxy, 50)).await.unwrap();
    assert!(
        b.store.take_socket_ticket(&hash(50), at(1)).await.unwrap().is_none(),
        "a proxy ticket opens no socket"
    );
    for now in [at(1), at(2), at(59)] {
        let found = b.store.proxy_ticket(&hash(50), now).await.unwrap().unwrap();
        assert_eq!(owner(found), (one, work, ada));
    }
    assert!(b.store.proxy_ticket(&hash(50), at(60)).await.unwrap().is_none());
    assert!(b.store.proxy_ticket(&hash(51), at(1)).await.unwrap().is_none(), "no such ticket");
}

async fn a_ticket_can_be_revoked_by_its_user_alone(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let (ada, bob) =
        (member(&b.store, one, 10, Role::Owner).await, member(&b.store, one, 11, Role::Owner).await);
    let work = session(&b.store, one, 40).await;
    b.store.create_ticket(ticket(one, work, ada, TicketKind::Proxy, 50)).await.unwrap();
    b.store.create_ticket(ticket(one, work, ada, TicketKind::Socket, 51)).await.unwrap();
    for (org, user) in [(one, bob), (two, ada)] {
        let missed = b.store.revoke_ticket(org, user, id(50), at(1)).await;
        assert!(matches!(missed, Err(StoreError::Missing("this ticket"))), "{missed:?}");
    }
    assert!(b.store.proxy_ticket(&hash(50), at(1)).await.unwrap().is_some());
    for number in [50, 51] {
        b.store.revoke_ticket(one, ada, id(number), at(1)).await.unwrap();
    }
    assert!(b.store.proxy_ticket(&hash(50), at(2)).await.unwrap().is_none());
    assert!(b.store.take_socket_ticket(&hash(51), at(2)).await.unwrap().is_none());
    assert!(b.store.revoke_ticket(one, ada, id(50), at(3)).await.is_err(), "it is revoked already");
}

async fn a_ticket_needs_a_session_and_a_member_of_its_organization(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let (ada, bob) =
        (member(&b.store, one, 10, Role::Owner).await, member(&b.store, two, 11, Role::Owner).await);
    let (ours, theirs) = (session(&b.store, one, 40).await, session(&b.store, two, 41).await);
    for (session, user) in [(theirs, ada), (ours, bob), (id(99), ada)] {
        let refused = b.store.create_ticket(ticket(one, session, user, TicketKind::Proxy, 50)).await;
        assert!(matches!(refused, Err(StoreError::Missing("this session or member"))), "{refused:?}");
    }
    b.store.create_ticket(ticket(one, ours, ada, TicketKind::Proxy, 50)).await.unwrap();
    let same = b.store.create_ticket(ticket(one, ours, ada, TicketKind::Proxy, 50)).await;
    assert!(matches!(same, Err(StoreError::Taken("this ticket"))), "{same:?}");
}

async fn a_credential_ends_with_the_membership_the_key_or_the_login(b: &Backend) {
    let one = org(&b.store, 1).await;
    let (ada, bob) =
        (member(&b.store, one, 10, Role::Owner).await, member(&b.store, one, 11, Role::Admin).await);
    let key = |number: u8, user_id| NewApiKey {
        id: id(number),
        org_id: one,
        user_id,
        name: "k".to_owned(),
        scope: KeyScope::Full,
        hint: "plk".to_owned(),
        key_hash: hash(number),
        at: at(0),
    };
    let login = |number: u8, user_id| NewLoginSession {
        token_hash: hash(number),
        org_id: one,
        user_id,
        at: at(0),
        expires_at: at(60),
    };
    for number in [60, 61] {
        b.store.create_key(key(number, ada)).await.unwrap();
    }
    for number in [70, 71] {
        b.store.create_login_session(login(number, ada)).await.unwrap();
    }
    b.store.create_key(key(62, bob)).await.unwrap();
    let with = |user_id, credential| Standing { org_id: one, user_id, credential };
    let (api, cookie) = (|n| UserCredential::ApiKey(hash(n)), |n| UserCredential::Login(hash(n)));
    let all = [
        with(ada, UserCredential::Token),
        with(ada, api(60)),
        with(ada, api(61)),
        with(ada, cookie(70)),
        with(ada, cookie(71)),
        with(bob, UserCredential::Token),
        with(bob, api(62)),
    ];
    let ended = async |now| {
        let together = b.store.ended_standings(&all, now).await.unwrap();
        let mut one_by_one = Vec::new();
        for standing in all {
            if b.store.role_now(standing, now).await.unwrap().is_none() {
                one_by_one.push(standing);
            }
        }
        assert_eq!(together, one_by_one, "all together and one by one");
        together
    };
    assert_eq!(ended(at(1)).await, []);
    assert_eq!(b.store.role_now(all[6], at(1)).await.unwrap(), Some(Role::Admin));
    b.store.revoke_key(one, id(60), None, at(2)).await.unwrap();
    b.store.end_login_session(&hash(70), at(2)).await.unwrap();
    b.store.change_member(one, bob, None, at(2)).await.unwrap();
    assert_eq!(ended(at(3)).await, [all[1], all[3], all[5], all[6]]);
    assert_eq!(ended(at(60)).await, [all[1], all[3], all[4], all[5], all[6]], "a login ends with its time");
}
