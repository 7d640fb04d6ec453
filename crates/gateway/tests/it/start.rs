//! Failed starts: the gateway prints one sentence that says what to do, and leaves nothing behind.

use std::fs::Permissions;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;

use testkit::{Direction, FaultProxy};

use crate::harness::{Setup, address_of, fresh_database, postgres_url, through};

/// Asserts that the start fails, that its error contains all these parts, and that no data dir was created.
async fn assert_refused(setup: &Setup, parts: &[&str]) {
    let Err(error) = setup.try_start().await else { panic!("it started") };
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
    assert!(!text.contains("hunter2"), "the password is shown: {text}");
    assert!(!setup.data_dir().exists(), "a data dir was left behind: {text}");
}

/// A port on which nobody listens, and the bound socket that keeps it reserved.
fn closed_port() -> (tokio::net::TcpSocket, u16) {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    (socket, port)
}

#[tokio::test]
async fn a_taken_port_is_named_with_its_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    assert_refused(&Setup::sqlite().set("PROLIFERATE_LISTEN", &address), &[&address, "--listen"]).await;
}

#[tokio::test]
async fn a_data_dir_that_cannot_be_made_is_named_with_its_remedy() {
    for setup in [Setup::sqlite(), Setup::postgres().await] {
        let file = setup.directory().join("file");
        std::fs::write(&file, "").unwrap();
        let below = file.join("data");
        let setup = setup.set("PROLIFERATE_DATA_DIR", below.to_str().unwrap());
        assert_refused(&setup, &[below.to_str().unwrap(), "--data-dir"]).await;
    }
}

#[tokio::test]
async fn unreachable_services_are_named_without_their_passwords() {
    let (_held, port) = closed_port();
    let database = format!("postgres://u:hunter2@127.0.0.1:{port}/d");
    assert_refused(
        &Setup::postgres().await.set("DATABASE_URL", &database),
        &["DATABASE_URL", &port.to_string()],
    )
    .await;
    assert_refused(&Setup::postgres().await.set("DATABASE_URL", "postgres://u:hunter2@["), &["DATABASE_URL"])
        .await;
    let absent = through(&format!("{}_absent", postgres_url()), address_of(&postgres_url()));
    assert_refused(
        &Setup::postgres().await.set("DATABASE_URL", &absent),
        &["DATABASE_URL", "postgres_absent"],
    )
    .await;
}

#[tokio::test]
async fn a_silent_postgres_does_not_hang_the_start() {
    let url = fresh_database().await;
    let proxy = FaultProxy::start(address_of(&url)).await.unwrap();
    proxy.black_hole(Direction::ToTarget);
    let setup = Setup::postgres().await.set("DATABASE_URL", &through(&url, proxy.address()));
    assert_refused(&setup, &["DATABASE_URL"]).await;
}

#[tokio::test]
async fn with_postgres_all_missing_secrets_are_named_at_once() {
    let names = ["GATEWAY_JWT_SECRET", "SERVICE_TO_SERVICE_AUTH_TOKEN", "USER_SECRETS_ENCRYPTION_KEY"];
    let mut setup = Setup::postgres().await;
    for name in names {
        setup = setup.set(name, "");
    }
    assert_refused(&setup, &[names[0], names[1], names[2], "openssl rand"]).await;
    assert_refused(&Setup::postgres().await.set(names[1], ""), &[names[1]]).await;
}

#[tokio::test]
async fn a_bad_model_script_is_named_with_the_line() {
    let setup = Setup::sqlite();
    let script = setup.directory().join("model.toml");
    let setup = setup.set("PROLIFERATE_MODEL_SCRIPT", script.to_str().unwrap());
    assert_refused(&setup, &["PROLIFERATE_MODEL_SCRIPT", "model.toml"]).await;
    std::fs::write(&script, "[[rule]]\n[[rule.step]]\nsay = \"x\"\n").unwrap();
    assert_refused(&setup, &["PROLIFERATE_MODEL_SCRIPT", "model.toml", "say"]).await;
    std::fs::write(&script, "").unwrap();
    assert_refused(&setup, &["PROLIFERATE_MODEL_SCRIPT", "no rule"]).await;
}

#[tokio::test]
async fn of_two_gateways_that_start_on_one_postgres_database_one_is_refused() {
    let url = fresh_database().await;
    let (a, b) = (
        Setup::postgres().await.set("DATABASE_URL", &url),
        Setup::postgres().await.set("DATABASE_URL", &url),
    );
    let (a, b) = tokio::join!(Box::pin(a.try_start()), Box::pin(b.try_start()));
    let (gateway, refused) = match (a, b) {
        (Ok(gateway), Err(error)) | (Err(error), Ok(gateway)) => (gateway, error.to_string()),
        _ => panic!("both or none of them started"),
    };
    assert!(refused.contains("another gateway serves the database postgres://"), "{refused}");
    assert!(refused.contains("stop it") && refused.contains("DATABASE_URL"), "{refused}");
    let owner = gateway.first_owner.clone().unwrap();
    let orgs = gateway.app.store.orgs().await.unwrap();
    assert_eq!((orgs.len(), owner.org_id, owner.role), (1, orgs[0].id, proto::Role::Owner));
    drop(gateway);
    let again = Setup::postgres().await.set("DATABASE_URL", &url).try_start().await;
    assert!(again.is_ok_and(|gateway| gateway.first_owner.is_none()), "a later start makes nobody");
}

/// A gateway whose connections broke while the server stayed up reacquires the lock before a second gateway gets it.
#[tokio::test]
async fn a_gateway_keeps_its_database_after_its_connections_broke() {
    let url = fresh_database().await;
    let proxy = FaultProxy::start(address_of(&url)).await.unwrap();
    let first = Setup::postgres().await.set("DATABASE_URL", &through(&url, proxy.address())).start().await;
    // The server's side stays open, so an abandoned connection still holds the lock.
    proxy.black_hole(Direction::ToTarget);
    let seen = proxy.counts().connections;
    proxy.wait_for(|counts| counts.connections > seen).await;
    proxy.heal().await.unwrap();
    let second = Setup::postgres().await.set("DATABASE_URL", &url).try_start().await;
    assert!(second.is_err_and(|error| error.to_string().contains("another gateway serves")));
    drop(first);
}

#[tokio::test]
async fn a_data_dir_is_served_by_one_gateway_at_a_time() {
    let setup = Setup::sqlite();
    let first = setup.try_start().await.unwrap_or_else(|error| panic!("{error}"));
    assert!(first.first_owner.is_some());
    let Err(error) = setup.try_start().await else { panic!("two gateways serve one data dir") };
    assert!(
        error.to_string().contains("another proliferate") && error.to_string().contains("--data-dir"),
        "{error}"
    );
    drop(first);
    let second = setup.try_start().await.unwrap_or_else(|error| panic!("{error}"));
    assert!(second.first_owner.is_none(), "the owner is there already");
}

#[tokio::test]
async fn a_damaged_key_file_is_reported_and_not_changed() {
    let setup = Setup::sqlite();
    std::fs::create_dir(setup.data_dir()).unwrap();
    let keys = setup.data_dir().join("keys.env");
    std::fs::write(&keys, "GATEWAY_JWT_SECRET=x\n").unwrap();
    std::fs::set_permissions(&keys, Permissions::from_mode(0o600)).unwrap();
    let Err(error) = setup.try_start().await else { panic!("it started without a vault key") };
    assert!(
        error.to_string().contains("USER_SECRETS_ENCRYPTION_KEY") && error.to_string().contains("keys.env"),
        "{error}"
    );
    assert_eq!(std::fs::read_to_string(&keys).unwrap(), "GATEWAY_JWT_SECRET=x\n");
}

#[tokio::test]
async fn a_key_file_that_others_can_read_is_refused() {
    let setup = Setup::sqlite();
    drop(setup.try_start().await.unwrap_or_else(|error| panic!("{error}")));
    let keys = setup.data_dir().join("keys.env");
    std::fs::set_permissions(&keys, Permissions::from_mode(0o640)).unwrap();
    let Err(error) = setup.try_start().await else { panic!("it started with keys that a group can read") };
    assert!(error.to_string().contains(&format!("chmod 600 {}", keys.display())), "{error}");
}

/// Starts a gateway, seals a value, and stops it. Returns the setup and the id of the key.
async fn with_a_sealed_value(setup: Setup) -> (Setup, String) {
    let gateway = setup.start().await;
    let org = crate::people::org(&gateway.app).await;
    gateway.app.vault.set(org, store::Scope::Org, "A", &"v".into(), None).await.unwrap();
    let id = gateway.app.store.secret_key_ids().await.unwrap().remove(0);
    (gateway.stop().await, id)
}

async fn refused_without_its_key(setup: &Setup, id: &str) {
    let Err(error) = setup.try_start().await else { panic!("it started without its key") };
    let text = error.to_string();
    for part in [id, "keys.env", "USER_SECRETS_ENCRYPTION_KEY ", "USER_SECRETS_ENCRYPTION_KEY_OLD"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[tokio::test]
async fn a_lost_key_file_is_reported_and_not_replaced() {
    let (mut setup, id) = with_a_sealed_value(Setup::sqlite()).await;
    let (keys, backup) = (setup.data_dir().join("keys.env"), setup.directory().join("backup"));
    std::fs::rename(&keys, &backup).unwrap();
    for other in ["", &"bb".repeat(32)] {
        setup = setup.set("USER_SECRETS_ENCRYPTION_KEY", other);
        refused_without_its_key(&setup, &id).await;
        assert!(!keys.exists(), "a new key file was made");
    }
    setup = setup.set("USER_SECRETS_ENCRYPTION_KEY", "");
    std::fs::rename(&backup, &keys).unwrap();
    assert!(setup.try_start().await.is_ok(), "the backup is back");
    let text = std::fs::read_to_string(&keys).unwrap();
    std::fs::write(
        &keys,
        text.replace(
            "USER_SECRETS_ENCRYPTION_KEY=",
            &format!("USER_SECRETS_ENCRYPTION_KEY={}\nX=", "cc".repeat(32)),
        ),
    )
    .unwrap();
    refused_without_its_key(&setup, &id).await;
}

#[tokio::test]
async fn a_lost_key_from_a_setting_is_reported() {
    let (old, new) = ("aa".repeat(32), "bb".repeat(32));
    let setup = Setup::postgres().await.set("USER_SECRETS_ENCRYPTION_KEY", &old);
    let (setup, id) = with_a_sealed_value(setup).await;
    let setup = setup.set("USER_SECRETS_ENCRYPTION_KEY", &new);
    refused_without_its_key(&setup, &id).await;
    let setup = setup.set("USER_SECRETS_ENCRYPTION_KEY_OLD", &old);
    assert!(setup.try_start().await.is_ok(), "the old key opens");
}
