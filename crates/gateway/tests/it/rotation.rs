//! Vault key rotation, next to a running gateway and with interruptions: no secret may become unreadable.

use std::cell::Cell;

use clock::Rng;
use gateway::keyring::Keyring;
use gateway::vault::{Vault, VaultError};
use proto::http::SecretPurpose;
use proto::{OrgId, SecretId};
use secrecy::{ExposeSecret as _, SecretString};
use store::{NewSecret, Scope};

use crate::harness::{Setup, TestGateway, within};
use crate::people::{org, some_uuid};

/// More secrets than one page of a rotation.
const SECRET_COUNT: usize = 130;

fn keyring(gateway: &TestGateway) -> Keyring {
    Keyring::open(&gateway.setup.config(), &Rng::system()).unwrap()
}

/// A separate vault on the same data, like that of an operator's command.
fn vault(gateway: &TestGateway, keyring: &Keyring) -> Vault {
    Vault::new(gateway.app.store.clone(), keyring, gateway.app.clock.clone(), Rng::system()).unwrap()
}

async fn set(vault: &Vault, org: OrgId, name: &str) {
    vault.set(org, Scope::Org, name, &SecretString::from(format!("value of {name}")), None).await.unwrap();
}

async fn opens(vault: &Vault, org: OrgId, name: &str) {
    let opened = vault.open_without_permit(org, Scope::Org, name).await;
    let opened = opened.unwrap_or_else(|error| panic!("{name}: {error}")).unwrap();
    assert_eq!(opened.expose_secret(), format!("value of {name}"));
}

/// A keyring with only this key and no key file.
fn only(key: &SecretString, of: &Keyring) -> Keyring {
    Keyring { vault: key.clone(), old_vault: Vec::new(), file: None, ..of.clone() }
}

#[tokio::test]
async fn a_rotation_re_encrypts_everything_and_the_old_key_decrypts_nothing() {
    let gateway = TestGateway::sqlite().await;
    let (a, b) = (org(&gateway.app).await, org(&gateway.app).await);
    for at in 0..SECRET_COUNT {
        set(&gateway.app.vault, if at % 2 == 0 { a } else { b }, &format!("S{at}")).await;
    }
    let mut keyring = keyring(&gateway);
    let old = keyring.vault.clone();
    keyring.renew_vault_key(&Rng::system()).unwrap();
    let (new, steps) = (vault(&gateway, &keyring), Cell::new(0));
    assert_eq!(new.rotate(|done| steps.set(done)).await.unwrap(), SECRET_COUNT as u64);
    assert_eq!(steps.get(), SECRET_COUNT as u64);
    assert_eq!(new.rotate(|_| panic!("there is nothing left")).await.unwrap(), 0);
    keyring.forget_old_vault_key().unwrap();

    let (new_alone, old_alone) =
        (vault(&gateway, &only(&keyring.vault, &keyring)), vault(&gateway, &only(&old, &keyring)));
    opens(&new_alone, a, "S0").await;
    opens(&new_alone, b, "S129").await;
    assert!(matches!(
        old_alone.open_without_permit(a, Scope::Org, "S0").await,
        Err(VaultError::UnknownKey(_))
    ));
}

#[tokio::test]
async fn a_running_vault_reads_a_new_key() {
    let gateway = TestGateway::sqlite().await;
    let org = org(&gateway.app).await;
    set(&gateway.app.vault, org, "BEFORE").await;
    let mut keyring = keyring(&gateway);
    keyring.renew_vault_key(&Rng::system()).unwrap();
    set(&vault(&gateway, &keyring), org, "AFTER").await;
    opens(&gateway.app.vault, org, "AFTER").await;
    opens(&gateway.app.vault, org, "BEFORE").await;
}

#[tokio::test]
async fn values_encrypted_after_a_rotation_can_be_decrypted_after_a_restart() {
    let gateway = TestGateway::sqlite().await;
    let org = org(&gateway.app).await;
    set(&gateway.app.vault, org, "BEFORE").await;
    let mut command = keyring(&gateway);
    command.renew_vault_key(&Rng::system()).unwrap();
    vault(&gateway, &command).rotate(|_| ()).await.unwrap();
    command.forget_old_vault_key().unwrap();
    // The running gateway has not yet seen a value sealed with the new key.
    set(&gateway.app.vault, org, "LATE").await;
    let restarted = vault(&gateway, &keyring(&gateway));
    opens(&restarted, org, "BEFORE").await;
    opens(&restarted, org, "LATE").await;
}

#[tokio::test]
async fn an_interrupted_rotation_can_be_begun_again() {
    let gateway = TestGateway::sqlite().await;
    let org = org(&gateway.app).await;
    set(&gateway.app.vault, org, "FIRST").await;
    // Twice, the command is killed after it has created its key and before it has resealed anything.
    for name in ["SECOND", "THIRD"] {
        let mut interrupted = keyring(&gateway);
        interrupted.renew_vault_key(&Rng::system()).unwrap();
        set(&vault(&gateway, &interrupted), org, name).await;
    }
    let restarted = vault(&gateway, &keyring(&gateway));
    for name in ["FIRST", "SECOND", "THIRD"] {
        opens(&gateway.app.vault, org, name).await;
        opens(&restarted, org, name).await;
    }
    let mut last = keyring(&gateway);
    last.renew_vault_key(&Rng::system()).unwrap();
    assert_eq!(vault(&gateway, &last).rotate(|_| ()).await.unwrap(), 3);
    last.forget_old_vault_key().unwrap();
    let after = keyring(&gateway);
    assert!(after.old_vault.is_empty());
    for name in ["FIRST", "SECOND", "THIRD"] {
        opens(&vault(&gateway, &after), org, name).await;
    }
}

#[tokio::test]
async fn concurrent_rotations_keep_every_key_that_is_in_use() {
    let gateway = TestGateway::sqlite().await;
    let org = org(&gateway.app).await;
    set(&gateway.app.vault, org, "A").await;
    let (mut slow, mut fast) = (keyring(&gateway), keyring(&gateway));
    fast.renew_vault_key(&Rng::system()).unwrap();
    vault(&gateway, &fast).rotate(|_| ()).await.unwrap();
    slow.renew_vault_key(&Rng::system()).unwrap();
    fast.forget_old_vault_key().unwrap();
    // The value that `fast` sealed is not resealed with the key of `slow` yet, and `slow` may be killed before that.
    opens(&vault(&gateway, &keyring(&gateway)), org, "A").await;
    assert_eq!(
        within(vault(&gateway, &fast).rotate(|_| ())).await.unwrap(),
        1,
        "it seals with the last key too"
    );
    slow.forget_old_vault_key().unwrap();
    let after = keyring(&gateway);
    assert!(after.old_vault.is_empty());
    opens(&vault(&gateway, &after), org, "A").await;
}

#[tokio::test]
async fn a_rotation_that_fails_at_a_bad_row_keeps_its_progress_and_the_old_key() {
    let gateway = TestGateway::sqlite().await;
    let org = org(&gateway.app).await;
    set(&gateway.app.vault, org, "GOOD").await;
    let mut bad = gateway
        .app
        .store
        .sealed_secret(org, Scope::Org, SecretPurpose::Platform, "GOOD")
        .await
        .unwrap()
        .unwrap();
    bad.ciphertext[0] ^= 1;
    let (id, at) = (SecretId::from(some_uuid()), gateway.app.clock.now());
    let new = NewSecret {
        id,
        org_id: org,
        scope: Scope::Org,
        purpose: SecretPurpose::Platform,
        key: "BAD".into(),
        value: bad,
        created_by: None,
        at,
    };
    gateway.app.store.put_secrets(vec![new]).await.unwrap();
    let mut command = keyring(&gateway);
    command.renew_vault_key(&Rng::system()).unwrap();
    let error = vault(&gateway, &command).rotate(|_| ()).await.unwrap_err();
    assert!(matches!(&error, VaultError::Rotation { name, .. } if name == "BAD"), "{error}");
    opens(&gateway.app.vault, org, "GOOD").await;
    gateway.app.store.delete_secret(org, Scope::Org, "BAD").await.unwrap();
    vault(&gateway, &keyring(&gateway)).rotate(|_| ()).await.unwrap();
    assert!(gateway.app.store.secrets_not_under(&key_id(&gateway, org).await, 9).await.unwrap().is_empty());
}

async fn key_id(gateway: &TestGateway, org: OrgId) -> String {
    gateway
        .app
        .store
        .sealed_secret(org, Scope::Org, SecretPurpose::Platform, "GOOD")
        .await
        .unwrap()
        .unwrap()
        .key_id
}

#[tokio::test]
async fn keys_that_are_settings_rotate_on_postgres() {
    let (old, new) = ("aa".repeat(32), "bb".repeat(32));
    let gateway = Setup::postgres().await.set("USER_SECRETS_ENCRYPTION_KEY", &old).start().await;
    let org = org(&gateway.app).await;
    set(&gateway.app.vault, org, "A").await;
    let given = keyring(&gateway);
    let renewed =
        Keyring { vault: new.as_str().into(), old_vault: vec![old.as_str().into()], ..given.clone() };
    let rotating = vault(&gateway, &renewed);
    opens(&rotating, org, "A").await;
    assert_eq!(rotating.rotate(|_| ()).await.unwrap(), 1);
    opens(&vault(&gateway, &only(&new.as_str().into(), &given)), org, "A").await;
    assert!(matches!(
        gateway.app.vault.open_without_permit(org, Scope::Org, "A").await,
        Err(VaultError::UnknownKey(_))
    ));
}
