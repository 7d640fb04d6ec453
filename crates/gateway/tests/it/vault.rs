//! The vault from outside: secrets can be written, and neither a reader nor the disk ever reveals one.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clock::Rng;
use gateway::keyring::Keyring;
use gateway::vault::{MAX_NAME, MAX_VALUE, Vault, VaultError};
use proto::http::SecretPurpose;
use proto::{OrgId, Role, SecretId};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use store::{NewSecret, Scope, Sealed};

use crate::document::operations;
use crate::harness::{Setup, TestGateway};
use crate::logs::{Captured, forms};
use crate::people::{OrgOf3, org, some_uuid};

const CANARY: &str = "canary-4f1e9b-the-value-of-a-secret";

#[tokio::test]
async fn no_route_returns_a_value_and_none_is_stored_in_plain_text() {
    let logs = Captured::start();
    let gateway = TestGateway::sqlite().await;
    let team = OrgOf3::new(&gateway.app).await;
    let owner = team.token(Role::Owner);
    let set =
        gateway.call("PUT", "/v1/secrets/TOKEN").bearer(owner).json(&json!({"value": CANARY})).send().await;
    assert_eq!((set.status, set.json()), (201, json!({"created": true})));
    let mut shown = vec![("the answer".to_owned(), set.body.to_vec())];
    for operation in operations(&gateway).await.iter().filter(|operation| operation.method == "GET") {
        for value in ["TOKEN", &some_uuid().to_string()] {
            let answer = gateway.get(&operation.at(value)).bearer(owner).send().await;
            shown.push((
                operation.name(),
                [format!("{:?}", answer.headers).into_bytes(), answer.body.to_vec()].concat(),
            ));
        }
    }
    let listed = gateway.get("/v1/secrets").bearer(owner).send().await;
    assert_eq!(listed.json()["secrets"][0]["name"], "TOKEN", "it is listed, so it was looked at");
    for file in std::fs::read_dir(gateway.setup.data_dir()).unwrap() {
        let path = file.unwrap().path();
        if path.is_dir() {
            continue;
        }
        shown.push((path.display().to_string(), std::fs::read(path).unwrap()));
    }
    assert!(
        shown.iter().any(|(name, bytes)| name.ends_with("proliferate.db-wal") && !bytes.is_empty()),
        "no database"
    );
    shown.push(("the log".to_owned(), logs.bytes()));
    for (place, bytes) in shown {
        for form in forms(CANARY) {
            assert!(!contains(&bytes, form.as_bytes()), "{place} shows {form}");
        }
    }
    let opened = gateway.app.vault.open_without_permit(team.org, Scope::Org, "TOKEN").await.unwrap().unwrap();
    assert_eq!(opened.expose_secret(), CANARY);
    assert!(forms(CANARY).contains(&BASE64_STANDARD.encode(CANARY)));
}

pub(crate) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

async fn sealed(gateway: &TestGateway, org: OrgId, name: &str) -> Sealed {
    let value = SecretString::from(CANARY);
    gateway.app.vault.set(org, Scope::Org, name, &value, None).await.unwrap();
    gateway.app.store.sealed_secret(org, Scope::Org, SecretPurpose::Platform, name).await.unwrap().unwrap()
}

/// Stores a sealed value under another owner or name, as somebody with access to the database could.
async fn plant(
    gateway: &TestGateway,
    org: OrgId,
    name: &str,
    value: Sealed,
) -> Result<Option<SecretString>, VaultError> {
    let (id, key, at) = (SecretId::from(some_uuid()), name.to_owned(), gateway.app.clock.now());
    let new = NewSecret {
        id,
        org_id: org,
        scope: Scope::Org,
        purpose: SecretPurpose::Platform,
        key,
        value,
        created_by: None,
        at,
    };
    gateway.app.store.put_secrets(vec![new]).await.unwrap();
    gateway.app.vault.open_without_permit(org, Scope::Org, name).await
}

#[tokio::test]
async fn a_row_that_was_moved_or_changed_does_not_open() {
    for gateway in TestGateway::both().await {
        let (ours, theirs) = (org(&gateway.app).await, org(&gateway.app).await);
        let value = sealed(&gateway, ours, "A").await;
        let opened = plant(&gateway, ours, "A", value.clone()).await.unwrap().unwrap();
        assert_eq!(opened.expose_secret(), CANARY, "in its own place it does");
        let changed = |change: fn(&mut Sealed)| {
            let mut copy = value.clone();
            change(&mut copy);
            copy
        };
        let cases = [
            ("another organization", theirs, "A", value.clone()),
            ("another name", ours, "B", value.clone()),
            ("a changed byte", ours, "A", changed(|copy| copy.ciphertext[0] ^= 1)),
            ("a cut tag", ours, "A", changed(|copy| copy.ciphertext.truncate(8))),
            ("no ciphertext", ours, "A", changed(|copy| copy.ciphertext.clear())),
            ("another nonce", ours, "A", changed(|copy| copy.nonce[11] ^= 1)),
            ("a short nonce", ours, "A", changed(|copy| copy.nonce.truncate(11))),
        ];
        for (what, org, name, value) in cases {
            let opened = plant(&gateway, org, name, value).await;
            assert!(matches!(opened, Err(VaultError::Tampered)), "{what}: {opened:?}");
        }
        let unknown =
            plant(&gateway, ours, "A", changed(|copy| copy.key_id = "0123456789ab".to_owned())).await;
        let error = unknown.unwrap_err().to_string();
        assert!(error.contains("0123456789ab") && error.contains("USER_SECRETS_ENCRYPTION_KEY"), "{error}");
    }
}

#[tokio::test]
async fn encrypting_a_value_twice_gives_different_ciphertexts() {
    let gateway = TestGateway::sqlite().await;
    let org = org(&gateway.app).await;
    let (a, b) = (sealed(&gateway, org, "A").await, sealed(&gateway, org, "A").await);
    assert_ne!(a.nonce, b.nonce);
    assert_ne!(a.ciphertext, b.ciphertext);
}

#[tokio::test]
async fn a_name_is_a_variable_and_nothing_else() {
    let gateway = TestGateway::sqlite().await;
    let team = OrgOf3::new(&gateway.app).await;
    let longest = "A".repeat(MAX_NAME);
    let set = |path: &str| {
        gateway.call("PUT", path).bearer(team.token(Role::Owner)).json(&json!({"value": "v"})).status()
    };
    for good in ["A", "_", "a1_B", longest.as_str()] {
        assert_eq!(set(&format!("/v1/secrets/{good}")).await, 201, "{good}");
    }
    let too_long = "A".repeat(MAX_NAME + 1);
    for bad in [
        "..%2Fx",
        "A%20B",
        "A%3DB",
        "A=B",
        too_long.as_str(),
        "A%0AB",
        "A%0D%0AX:1",
        "1A",
        "-A",
        "A.B",
        "%C3%84",
        "A%00",
        "%20",
        "--flag",
    ] {
        assert_eq!(set(&format!("/v1/secrets/{bad}")).await, 400, "{bad}");
    }
    assert_eq!(set("/v1/secrets/").await, 404, "no name is no route");
    let empty = gateway.app.vault.set(team.org, Scope::Org, "", &"v".into(), None).await;
    assert!(matches!(empty, Err(VaultError::BadName)));
    assert_eq!(gateway.app.store.secrets(team.org).await.unwrap().len(), 4);
}

#[tokio::test]
async fn a_credential_is_not_blank_and_up_to_its_limit() {
    let gateway = TestGateway::sqlite().await;
    let org = org(&gateway.app).await;
    for blank in ["", " \n"] {
        let refused = gateway.app.vault.set(org, Scope::Org, "A", &blank.into(), None).await;
        assert!(matches!(refused, Err(VaultError::EmptyValue(name)) if name == "A"));
    }
    for value in ["x".repeat(MAX_VALUE), "line\nbreak \u{1f980}".to_owned()] {
        gateway.app.vault.set(org, Scope::Org, "A", &value.as_str().into(), None).await.unwrap();
        let opened = gateway.app.vault.open_without_permit(org, Scope::Org, "A").await.unwrap().unwrap();
        assert_eq!(opened.expose_secret(), value);
    }
    assert!(gateway.app.vault.open_without_permit(org, Scope::Org, "NONE").await.unwrap().is_none());
}

#[tokio::test]
async fn a_vault_with_another_key_opens_nothing() {
    let gateway = Setup::sqlite().set("USER_SECRETS_ENCRYPTION_KEY", &"11".repeat(32)).start().await;
    let org = org(&gateway.app).await;
    sealed(&gateway, org, "A").await;
    let other = Setup::sqlite().set("USER_SECRETS_ENCRYPTION_KEY", &"22".repeat(32));
    let keyring = Keyring::open(&other.config(), &Rng::system()).unwrap();
    let (store, clock) = (gateway.app.store.clone(), gateway.app.clock.clone());
    let vault = Vault::new(store, &keyring, clock, Rng::system()).unwrap();
    assert!(matches!(vault.open_without_permit(org, Scope::Org, "A").await, Err(VaultError::UnknownKey(_))));
}

#[tokio::test]
async fn of_many_secrets_all_are_stored_or_none() {
    for gateway in TestGateway::both().await {
        let org = org(&gateway.app).await;
        let set = async |names: &[&str]| {
            let pairs: Vec<_> =
                names.iter().map(|name| ((*name).to_owned(), SecretString::from("v"))).collect();
            gateway.app.vault.set_all(org, Scope::Org, &pairs, None).await
        };
        assert_eq!(set(&["A", "B"]).await.unwrap(), 2);
        assert_eq!(set(&["B", "C", "D"]).await.unwrap(), 2, "B was there");
        assert!(matches!(set(&["E", "no name", "F"]).await, Err(VaultError::BadName)));
        assert_eq!(set(&[]).await.unwrap(), 0);
        let listed = gateway.app.store.secrets(org).await.unwrap();
        assert_eq!(listed.iter().map(|entry| entry.key.as_str()).collect::<Vec<_>>(), ["A", "B", "C", "D"]);
    }
}
