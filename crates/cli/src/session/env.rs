//! `session new --env KEY --env-file FILE`: the values that a new session gets from its caller, for itself only.

use std::io::Read as _;
use std::path::Path;

use client::Client;
use gateway::config;
use proto::http::{SubmitEnv, SubmittedSecret};
use proto::{SessionId, dotenv};

use crate::args::NewArgs;
use crate::failure::Failure;
use crate::output::warn;

/// The limit in bytes for a file of values.
const MAX_FILE: u64 = 1024 * 1024;

/// Reads the values, before anything is created. A variable that `--env` names counts before one of the file.
pub(super) fn values(new: &NewArgs) -> Result<Vec<SubmittedSecret>, Failure> {
    let mut values = match &new.env_file {
        None => Vec::new(),
        Some(file) => dotenv::parse(&read(file)?)
            .map_err(|error| Failure::usage(format!("--env-file {}: {error}", file.display())))?,
    };
    let environment = config::environment();
    for key in &new.env {
        if key.contains('=') {
            let why = "a value on the command line can be seen by others on this machine";
            return Err(Failure::usage(format!("--env takes only the name of one of your variables: {why}")));
        }
        let Some(value) = environment.get(key) else {
            return Err(Failure::usage(format!("--env {key}: your environment has no such variable")));
        };
        values.retain(|(known, _)| known != key);
        values.push((key.clone(), value.clone()));
    }
    let secret = |(key, value)| SubmittedSecret { key, value, description: None, persist: Some(false) };
    Ok(values.into_iter().map(secret).collect())
}

/// Sends the values to a session whose agent has not started.
pub(super) async fn submit(
    client: &Client,
    id: SessionId,
    secrets: Vec<SubmittedSecret>,
) -> Result<(), Failure> {
    if secrets.is_empty() {
        return Ok(());
    }
    let values = SubmitEnv { secrets, env_vars: Vec::new(), save_to_configuration: false };
    let reply = client.submit_env(id, &values).await;
    let reply = reply
        .map_err(|error| Failure::from(error).and(&format!("the session {id} exists without the values")))?;
    if !reply.missing.is_empty() {
        warn(&format!(
            "no environment file is written until there is a value for {}",
            reply.missing.join(", ")
        ));
    }
    Ok(())
}

/// Reads a file, or standard input for `-`.
fn read(file: &Path) -> Result<String, Failure> {
    let failed = |error| Failure::usage(format!("--env-file: cannot read {}: {error}", file.display()));
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().take(MAX_FILE + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(MAX_FILE + 1).read_to_string(&mut text))
    };
    if read.map_err(failed)? as u64 > MAX_FILE {
        return Err(Failure::usage("--env-file has more than 1 MiB"));
    }
    Ok(text)
}
