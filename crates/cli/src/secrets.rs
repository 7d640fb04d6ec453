//! `secrets`: manages the vault. Secrets can be written but never read back.

use std::io::Read as _;
use std::path::Path;

use gate::{AdminChange, Subject};
use proto::http::SecretPurpose;
use proto::{OrgId, dotenv, iso};
use secrecy::SecretString;
use serde_json::json;
use store::{Scope, SecretEntry, Store};

use crate::args::{SecretOwner, SecretsCommand};
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(context: &Context, command: SecretsCommand) -> Result<(), Failure> {
    match command {
        SecretsCommand::Set { key, value, purpose, owner } => {
            let value = if value == "-" { strip_line_break(read(Path::new("-"))?) } else { value };
            let created = set(context, &owner, purpose, &[(key.clone(), value)]).await? == 1;
            let verb = if created { "stored" } else { "replaced" };
            context.out.result(&json!({ "key": key, "created": created }), &format!("{key} {verb}"));
        }
        SecretsCommand::Import { file, owner } => {
            let pairs = dotenv::parse(&read(&file)?)
                .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
            let created = set(context, &owner, SecretPurpose::Env, &pairs).await?;
            let replaced = pairs.len() - created;
            let sentence = format!("{created} stored, {replaced} replaced");
            context.out.result(&json!({ "created": created, "replaced": replaced }), &sentence);
        }
        SecretsCommand::Ls { org } => ls(context, org.org.as_deref()).await?,
        SecretsCommand::Rm { key, owner } => {
            let store = context.store().await?;
            let (org, scope) = scope(context, &store, &owner).await?;
            let change = AdminChange::secrets("remove", scope, [key.as_str()]);
            let store = context.administer(&store, org, &change).await?;
            store.delete_secret(org, scope, &key).await?;
            context.out.result(&json!({ "key": key }), &format!("{key} removed"));
        }
        SecretsCommand::Rotate => rotate(context).await?,
    }
    Ok(())
}

/// Stores either all pairs or none, and returns how many were new.
async fn set(
    context: &Context,
    owner: &SecretOwner,
    purpose: SecretPurpose,
    pairs: &[(String, String)],
) -> Result<usize, Failure> {
    let store = context.store().await?;
    let (org, scope) = scope(context, &store, owner).await?;
    let pairs: Vec<_> =
        pairs.iter().map(|(key, value)| (key.clone(), SecretString::from(value.as_str()))).collect();
    let change = AdminChange::secrets("set", scope, pairs.iter().map(|(key, _)| key.as_str()));
    let store = context.administer(&store, org, &change).await?;
    Ok(context.vault(&store).await?.put(org, scope, purpose, &pairs, None).await?)
}

async fn ls(context: &Context, org: Option<&str>) -> Result<(), Failure> {
    let store = context.store().await?;
    let secrets = store.secrets(context.org(&store, org).await?).await?;
    let owner = |entry: &SecretEntry| match entry.scope {
        Scope::Org => "organization".to_owned(),
        Scope::Repo(id) => format!("repo {id}"),
        Scope::Configuration(id) => format!("configuration {id}"),
        Scope::Session(id) => format!("session {id}"),
    };
    let rows: Vec<_> = secrets
        .iter()
        .map(|entry| {
            vec![
                entry.key.clone(),
                entry.purpose.as_str().to_owned(),
                owner(entry),
                context.ago(entry.updated_at),
                entry.key_id.clone(),
            ]
        })
        .collect();
    let values = secrets.iter().map(|entry| {
        json!({ "key": entry.key, "purpose": entry.purpose.as_str(), "scope": entry.scope.as_str(), "owner": owner(entry),
            "updatedAt": iso::text(&entry.updated_at), "sealedBy": entry.key_id })
    });
    context.out.list(values.collect(), &["KEY", "PURPOSE", "OWNER", "UPDATED", "SEALED BY"], &rows);
    Ok(())
}

/// Re-encrypts all secrets with the current key. A generated key is replaced first; the operator has already replaced
/// a key that comes from a setting.
async fn rotate(context: &Context) -> Result<(), Failure> {
    let store = context.store().await?;
    let mut keyring = context.keyring(&store).await?;
    keyring.renew_vault_key(&context.rng)?;
    let vault =
        gateway::vault::Vault::new(store.clone(), &keyring, context.clock.clone(), context.rng.clone())?;
    let spinner = context.out.spinner("sealing secrets with the new key");
    let done =
        vault.rotate(|done| spinner.set_message(format!("sealing secrets with the new key: {done}"))).await;
    spinner.finish_and_clear();
    let done = done?;
    keyring.forget_old_vault_key()?;
    let change = AdminChange::new(Subject::VaultKey, "rotate", format!("{done} secrets sealed anew"));
    context.governance(&store).record(&change).await?;
    context.out.result(&json!({ "rotated": done }), &format!("{done} secrets sealed with the present key"));
    Ok(())
}

/// The organization and the scope that own the secret.
async fn scope(context: &Context, store: &Store, owner: &SecretOwner) -> Result<(OrgId, Scope), Failure> {
    let org = context.org(store, owner.org.as_deref()).await?;
    let scope = match (&owner.repo, &owner.configuration) {
        (Some(repo), _) => Scope::Repo(context.repo(store, org, repo).await?),
        (None, Some(named)) => Scope::Configuration(context.configuration(store, org, named).await?),
        (None, None) => Scope::Org,
    };
    Ok((org, scope))
}

/// Reads a file, or standard input for `-`.
fn read(file: &Path) -> Result<String, Failure> {
    if file == Path::new("-") {
        let mut text = String::new();
        let read = std::io::stdin().read_to_string(&mut text);
        read.map_err(|error| Failure::failed(format!("cannot read standard input: {error}")))?;
        return Ok(text);
    }
    std::fs::read_to_string(file)
        .map_err(|error| Failure::failed(format!("cannot read {}: {error}", file.display())))
}

/// Removes the trailing line break: `echo` adds it, and it is not part of the secret.
fn strip_line_break(mut text: String) -> String {
    let end = text.strip_suffix('\n').map(|text| text.strip_suffix('\r').unwrap_or(text).len());
    if let Some(end) = end {
        text.truncate(end);
    }
    text
}
