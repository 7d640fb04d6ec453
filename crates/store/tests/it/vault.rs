//! The vault's rows: one value per owner and name, listed without values, and never lost by a rotation.

use proto::http::SecretPurpose;
use proto::{OrgId, SecretId};
use store::{NewSecret, NewSession, Scope, Sealed, Store, StoreError};
use uuid::Uuid;

use crate::backend::{Backend, on_both};
use crate::world::{at, configuration, id, new_session, org, repo, together};

on_both! {
    a_secret_is_new_and_then_replaced
    each_scope_has_its_own_secret_of_a_name
    a_secret_can_be_deleted_by_its_owner_and_name
    a_secret_cannot_belong_to_another_organizations_repository
    several_secrets_are_stored_in_one_transaction
    the_same_secrets_can_be_stored_concurrently
    the_ids_of_keys_in_use_are_listed
    a_rotation_never_overwrites_a_newer_value
    a_rotation_lists_the_secrets_that_are_left
    a_secret_keeps_its_purpose_for_life
    a_session_may_use_its_own_secrets_and_those_above_it
}

fn sealed(key_id: &str, byte: u8) -> Sealed {
    Sealed { key_id: key_id.to_owned(), nonce: vec![byte; 12], ciphertext: vec![byte; 20] }
}

fn secret(org_id: OrgId, scope: Scope, key: &str, number: u8) -> NewSecret {
    NewSecret {
        id: id(number),
        org_id,
        scope,
        purpose: SecretPurpose::Platform,
        key: key.to_owned(),
        value: sealed("k1", number),
        created_by: None,
        at: at(number.into()),
    }
}

/// The first byte of a stored value, which is the number of the secret that wrote it.
async fn value(store: &Store, org: OrgId, scope: Scope, key: &str) -> Option<u8> {
    let value = store.sealed_secret(org, scope, SecretPurpose::Platform, key).await.unwrap()?;
    assert_eq!(value.nonce, [value.nonce[0]; 12], "nonce and ciphertext were written together");
    assert_eq!(value.ciphertext, [value.nonce[0]; 20]);
    Some(value.nonce[0])
}

/// Stores one secret. `true`: it is new.
async fn put(store: &Store, new: NewSecret) -> Result<bool, StoreError> {
    store.put_secrets(vec![new]).await.map(|made| made == 1)
}

async fn a_secret_is_new_and_then_replaced(b: &Backend) {
    let one = org(&b.store, 1).await;
    assert!(put(&b.store, secret(one, Scope::Org, "TOKEN", 70)).await.unwrap());
    assert!(!put(&b.store, secret(one, Scope::Org, "TOKEN", 71)).await.unwrap());
    assert_eq!(value(&b.store, one, Scope::Org, "TOKEN").await, Some(71));
    assert_eq!(value(&b.store, one, Scope::Org, "token").await, None, "names differ by case");

    let listed = b.store.secrets(one).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!((listed[0].id, listed[0].key.as_str()), (id(70), "TOKEN"), "the row stays the same one");
    assert_eq!((listed[0].created_at, listed[0].updated_at), (at(70), at(71)));
    assert!(!format!("{listed:?}").contains("71, 71"), "a list holds no values");
}

async fn each_scope_has_its_own_secret_of_a_name(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let scopes = [
        Scope::Configuration(configuration(b, 1, 30).await),
        Scope::Org,
        Scope::Repo(repo(b, 1, 20).await),
        Scope::Repo(repo(b, 1, 21).await),
    ];
    for (number, scope) in (70..).zip(scopes) {
        assert!(put(&b.store, secret(one, scope, "TOKEN", number)).await.unwrap(), "{scope:?}");
    }
    assert!(put(&b.store, secret(two, Scope::Org, "TOKEN", 80)).await.unwrap());
    for (number, scope) in (70..).zip(scopes) {
        assert_eq!(value(&b.store, one, scope, "TOKEN").await, Some(number), "{scope:?}");
    }
    let listed: Vec<_> = b.store.secrets(one).await.unwrap().iter().map(|entry| entry.scope).collect();
    assert_eq!(listed, scopes);
}

async fn a_secret_can_be_deleted_by_its_owner_and_name(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let repo = Scope::Repo(repo(b, 1, 20).await);
    put(&b.store, secret(one, Scope::Org, "TOKEN", 70)).await.unwrap();
    put(&b.store, secret(one, repo, "TOKEN", 71)).await.unwrap();
    for (org, scope, key) in [(two, Scope::Org, "TOKEN"), (two, repo, "TOKEN"), (one, Scope::Org, "OTHER")] {
        let missed = b.store.delete_secret(org, scope, key).await;
        assert!(matches!(missed, Err(StoreError::Missing("this secret"))), "{org} {key}: {missed:?}");
    }
    b.store.delete_secret(one, repo, "TOKEN").await.unwrap();
    assert_eq!(value(&b.store, one, repo, "TOKEN").await, None);
    assert_eq!(value(&b.store, one, Scope::Org, "TOKEN").await, Some(70));
    assert!(b.store.delete_secret(one, repo, "TOKEN").await.is_err());
}

async fn a_secret_cannot_belong_to_another_organizations_repository(b: &Backend) {
    let (one, _) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let foreign = [
        Scope::Repo(repo(b, 2, 20).await),
        Scope::Configuration(configuration(b, 2, 30).await),
        Scope::Repo(id(99)),
    ];
    for scope in foreign {
        let refused = put(&b.store, secret(one, scope, "TOKEN", 70)).await;
        assert!(matches!(refused, Err(StoreError::Missing(_))), "{scope:?}: {refused:?}");
    }
    let nowhere = put(&b.store, secret(id(9), Scope::Org, "TOKEN", 70)).await;
    assert!(matches!(nowhere, Err(StoreError::Missing(_))), "{nowhere:?}");
    assert_eq!(b.raw().await.number("SELECT count(*) FROM secrets").await, 0);
}

async fn several_secrets_are_stored_in_one_transaction(b: &Backend) {
    let one = org(&b.store, 1).await;
    org(&b.store, 2).await;
    let (ours, theirs) = (Scope::Repo(repo(b, 1, 20).await), Scope::Repo(repo(b, 2, 21).await));
    assert_eq!(b.store.put_secrets(Vec::new()).await.unwrap(), 0);
    let first = vec![secret(one, Scope::Org, "B", 70), secret(one, ours, "A", 71)];
    assert_eq!(b.store.put_secrets(first).await.unwrap(), 2);
    let second = vec![
        secret(one, Scope::Org, "C", 72),
        secret(one, Scope::Org, "B", 73),
        secret(one, Scope::Org, "B", 74),
    ];
    assert_eq!(b.store.put_secrets(second).await.unwrap(), 1, "only one is new");
    assert_eq!(value(&b.store, one, Scope::Org, "B").await, Some(74), "of one name the last counts");

    let bad = vec![
        secret(one, Scope::Org, "A", 75),
        secret(one, Scope::Org, "B", 76),
        secret(one, theirs, "A", 77),
    ];
    let refused = b.store.put_secrets(bad).await;
    assert!(matches!(refused, Err(StoreError::Missing(_))), "{refused:?}");
    assert_eq!(value(&b.store, one, Scope::Org, "A").await, None);
    assert_eq!(value(&b.store, one, Scope::Org, "B").await, Some(74));
}

async fn the_same_secrets_can_be_stored_concurrently(b: &Backend) {
    let one = org(&b.store, 1).await;
    for round in 0..10 {
        let put = together(4, |caller| {
            let put = |number: usize| NewSecret {
                id: Uuid::from_u128((round * 1_000 + caller * 100 + number).try_into().unwrap()).into(),
                ..secret(one, Scope::Org, &format!("KEY_{number:02}"), 70)
            };
            let mut all: Vec<_> = (0..20).map(put).collect();
            if caller % 2 == 1 {
                all.reverse();
            }
            let store = b.store.clone();
            async move { store.put_secrets(all).await }
        })
        .await;
        assert!(put.iter().all(Result::is_ok), "{put:?}");
    }
}

async fn the_ids_of_keys_in_use_are_listed(b: &Backend) {
    let one = org(&b.store, 1).await;
    configuration(b, 1, 30).await;
    assert_eq!(b.store.secret_key_ids().await.unwrap(), [""; 0]);
    for (key_id, number) in [("k2", 70), ("k1", 71), ("k2", 72)] {
        let key = format!("KEY_{number}");
        let new = NewSecret { value: sealed(key_id, number), ..secret(one, Scope::Org, &key, number) };
        put(&b.store, new).await.unwrap();
    }
    assert_eq!(b.store.secret_key_ids().await.unwrap(), ["k1", "k2"]);
}

async fn a_rotation_never_overwrites_a_newer_value(b: &Backend) {
    let one = org(&b.store, 1).await;
    put(&b.store, secret(one, Scope::Org, "TOKEN", 70)).await.unwrap();
    let read =
        b.store.sealed_secret(one, Scope::Org, SecretPurpose::Platform, "TOKEN").await.unwrap().unwrap();
    put(&b.store, secret(one, Scope::Org, "TOKEN", 71)).await.unwrap();
    assert!(!b.store.reseal_secret(id(70), read, sealed("k2", 90)).await.unwrap());
    assert_eq!(value(&b.store, one, Scope::Org, "TOKEN").await, Some(71));

    let fresh =
        b.store.sealed_secret(one, Scope::Org, SecretPurpose::Platform, "TOKEN").await.unwrap().unwrap();
    assert!(
        !b.store.reseal_secret(id(72), fresh.clone(), sealed("k2", 90)).await.unwrap(),
        "another secret's id"
    );
    assert!(b.store.reseal_secret(id(70), fresh, sealed("k2", 91)).await.unwrap());
    assert_eq!(value(&b.store, one, Scope::Org, "TOKEN").await, Some(91));
    assert_eq!(b.store.secrets(one).await.unwrap()[0].key_id, "k2");
}

async fn a_rotation_lists_the_secrets_that_are_left(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    for (org, number) in [(one, 70), (one, 71), (two, 72), (two, 73), (one, 74)] {
        put(&b.store, secret(org, Scope::Org, &format!("KEY_{number}"), number)).await.unwrap();
    }
    let mut seen: Vec<SecretId> = Vec::new();
    loop {
        let page = b.store.secrets_not_under("k2", 2).await.unwrap();
        assert!(page.len() <= 2);
        if page.is_empty() {
            break;
        }
        for entry in page {
            let from = b
                .store
                .sealed_secret(entry.org_id, entry.scope, entry.purpose, &entry.key)
                .await
                .unwrap()
                .unwrap();
            let to = Sealed { key_id: "k2".to_owned(), nonce: vec![1; 12], ..from.clone() };
            assert!(b.store.reseal_secret(entry.id, from, to).await.unwrap());
            seen.push(entry.id);
        }
    }
    assert_eq!(seen, [70, 71, 72, 73, 74].map(id));
    assert_eq!(b.store.secrets_not_under("k1", 100).await.unwrap().len(), 5, "all are under the new key now");
}

async fn a_secret_keeps_its_purpose_for_life(b: &Backend) {
    let one = org(&b.store, 1).await;
    put(&b.store, secret(one, Scope::Org, "TOKEN", 70)).await.unwrap();
    let env = |number| NewSecret { purpose: SecretPurpose::Env, ..secret(one, Scope::Org, "TOKEN", number) };
    assert!(matches!(put(&b.store, env(71)).await, Err(StoreError::Refused(_))));
    assert_eq!(value(&b.store, one, Scope::Org, "TOKEN").await, Some(70), "nothing was replaced");
    let as_env = b.store.sealed_secret(one, Scope::Org, SecretPurpose::Env, "TOKEN").await.unwrap();
    assert!(as_env.is_none(), "a platform secret is no variable");
    b.store.delete_secret(one, Scope::Org, "TOKEN").await.unwrap();
    assert!(put(&b.store, env(72)).await.unwrap());
    assert_eq!(b.store.secrets(one).await.unwrap()[0].purpose, SecretPurpose::Env);
}

async fn a_session_may_use_its_own_secrets_and_those_above_it(b: &Backend) {
    let (one, two) = (org(&b.store, 1).await, org(&b.store, 2).await);
    let (app, other) = (repo(b, 1, 20).await, repo(b, 1, 21).await);
    let (setup, elsewhere) = (configuration(b, 1, 30).await, configuration(b, 1, 31).await);
    for (configuration, repo) in [(30, 20), (31, 21)] {
        let sql = format!("INSERT INTO configuration_repos VALUES (#{configuration}, #{repo}, #1, 'app')");
        b.raw().await.execute(&sql).await.unwrap();
    }
    let (session, stranger) = (id(40), id(41));
    for (number, configuration) in [(40, setup), (41, elsewhere)] {
        let new = NewSession { configuration_id: Some(configuration), ..new_session(one, number) };
        b.store.create_session(new).await.unwrap();
    }
    let scopes = [
        (Scope::Org, "ORG"),
        (Scope::Repo(app), "REPO"),
        (Scope::Configuration(setup), "CONFIGURATION"),
        (Scope::Session(session), "SESSION"),
        (Scope::Repo(other), "OTHER_REPO"),
        (Scope::Configuration(elsewhere), "OTHER_CONFIGURATION"),
        (Scope::Session(stranger), "OTHER_SESSION"),
    ];
    for (number, (scope, key)) in (50..).zip(scopes) {
        let new = NewSecret { purpose: SecretPurpose::Env, ..secret(one, scope, key, number) };
        put(&b.store, new).await.unwrap();
    }
    put(&b.store, secret(one, Scope::Org, "PLATFORM", 60)).await.unwrap();
    let theirs = NewSecret { purpose: SecretPurpose::Env, ..secret(two, Scope::Org, "THEIRS", 61) };
    put(&b.store, theirs).await.unwrap();
    let found = b.store.sealed_secrets_of_session(one, session, SecretPurpose::Env).await.unwrap();
    let names: Vec<_> = found.iter().map(|found| found.key.as_str()).collect();
    assert_eq!(names, ["CONFIGURATION", "ORG", "REPO", "SESSION"]);
    assert_eq!(found[3].scope, Scope::Session(session));
    assert!(b.store.sealed_secrets_of_session(two, session, SecretPurpose::Env).await.unwrap().is_empty());
    let listed = b.store.secrets(one).await.unwrap();
    assert!(
        !listed.iter().any(|entry| matches!(entry.scope, Scope::Session(_))),
        "only the session knows them"
    );
}
