//! Checks what the settings point to, by opening it as the gateway will: keys, policy, checkpoints, the model's
//! script.

use files::FileWork;
use gate::read_policy;
use gateway::config::{Config, Database};
use gateway::keyring::Keyring;
use gateway::llm::load_script;
use gateway::missing_lanes;
use rustix::fs::Access;
use secrecy::ExposeSecret as _;
use store::{Store, StoreError};

use super::Finding;
use crate::policy::other_policy_in_force;

/// Which settings the other checks use, and whether a gateway has loaded another policy than they name.
pub(super) async fn origin(config: &Config) -> Finding {
    const CHECK_NAME: &str = "settings";
    let directory = config.policy_dir.clone();
    let read = FileWork::default().run(move || read_policy(directory.as_deref())).await;
    let other = match (read, open(config).await) {
        (Ok(Ok(policy)), Ok(store)) => {
            let other = other_policy_in_force(&store, &policy).await;
            store.close().await;
            other
        }
        // The checks of these say what is wrong with them.
        (Err(_) | Ok(Err(_)), _) | (_, Err(_)) => None,
    };
    match other {
        None => Finding::good(
            CHECK_NAME,
            "those of this shell; a gateway that runs has those that it was started with",
        ),
        Some(other) => Finding::weak(
            CHECK_NAME,
            format!("those of this shell, with which a gateway was not started: it last loaded {other}"),
            "run `proliferate doctor` with the settings of the gateway, such as its PROLIFERATE_POLICY_DIR",
        ),
    }
}

async fn open(config: &Config) -> Result<Store, StoreError> {
    match &config.database {
        Database::Sqlite => Store::open_existing_sqlite(&config.sqlite_file()).await,
        Database::Postgres(url) => Store::open_existing_postgres(url.expose_secret()).await,
    }
}

/// Checks that the keys exist and can open the secrets in the database. Creates no keys.
pub(super) async fn secrets(config: &Config) -> Finding {
    const CHECK_NAME: &str = "secrets";
    let store = open(config).await;
    // A missing database holds no secrets; the database check reports one that cannot be read.
    let sealing = match store {
        Ok(store) => {
            let sealing = store.secret_key_ids().await.unwrap_or_default();
            store.close().await;
            sealing
        }
        Err(_) => Vec::new(),
    };
    match Keyring::check(config, &sealing) {
        Ok(detail) => Finding::good(CHECK_NAME, detail),
        Err(error) => {
            Finding::bad(CHECK_NAME, error.to_string(), "give the keys back, from a backup or as settings")
        }
    }
}

/// Reads with a time limit: a named pipe or a dead mount in the directory would block for ever.
pub(super) async fn policy(config: &Config) -> Finding {
    const CHECK_NAME: &str = "policy";
    let place = config.policy_dir.as_ref().map_or("built-in".to_owned(), |dir| dir.display().to_string());
    let directory = config.policy_dir.clone();
    let read = FileWork::default().run(move || read_policy(directory.as_deref())).await;
    let read = match read {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    match read {
        Ok(policy) => match missing_lanes(&policy)[..] {
            [] => Finding::good(CHECK_NAME, format!("{place}, {} lanes", policy.lanes().count())),
            ref missing => Finding::weak(
                CHECK_NAME,
                format!("{place}: {}", missing.join("; ")),
                "compare PROLIFERATE_POLICY_DIR with the built-in policy (`proliferate policy diff`), and add what it lacks",
            ),
        },
        Err(error) => Finding::bad(
            CHECK_NAME,
            format!("{place}: {error}"),
            "`proliferate policy check` names each mistake; PROLIFERATE_POLICY_DIR names the directory",
        ),
    }
}

/// Checks that signed checkpoints of the ledger can be written.
pub(super) fn checkpoints(config: &Config) -> Finding {
    const CHECK_NAME: &str = "checkpoints";
    let dir = config.checkpoint_dir();
    let there = dir.ancestors().find(|directory| directory.exists() && !directory.as_os_str().is_empty());
    let there = there.unwrap_or(std::path::Path::new("."));
    match rustix::fs::access(there, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) => Finding::good(CHECK_NAME, dir.display().to_string()),
        Err(error) => Finding::bad(
            CHECK_NAME,
            format!("{}: {error}", there.display()),
            "set AUDIT_CHECKPOINT_DIR to a directory that you may write to",
        ),
    }
}

pub(super) async fn script(config: &Config) -> Finding {
    const CHECK_NAME: &str = "model script";
    let Some(path) = &config.model_script else {
        return Finding::good(CHECK_NAME, "not set: the built-in one");
    };
    let file = path.clone();
    let read = FileWork::default().run(move || load_script(Some(&file)).map(drop)).await;
    let problem = match read {
        Ok(Ok(())) => return Finding::good(CHECK_NAME, path.display().to_string()),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    Finding::bad(CHECK_NAME, problem, "correct the file that PROLIFERATE_MODEL_SCRIPT names")
}
