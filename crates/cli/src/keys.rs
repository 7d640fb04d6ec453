//! `keys`: manages API keys, which act for a member until they are revoked.

use gate::{AdminChange, Subject};
use gateway::identity::{Credential, CredentialKind};
use proto::http::KeyScope;
use proto::{ApiKeyId, iso, text};
use secrecy::ExposeSecret as _;
use serde_json::json;
use store::NewApiKey;

use crate::args::{KeysCommand, WhichMember};
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(context: &Context, command: KeysCommand) -> Result<(), Failure> {
    match command {
        KeysCommand::Create { name, scope, member } => create(context, name, scope, member).await,
        KeysCommand::Ls { org } => ls(context, org.org.as_deref()).await,
        KeysCommand::Revoke { key, org } => {
            let store = context.store().await?;
            let org = context.org(&store, org.org.as_deref()).await?;
            let key = context.key(&store, org, &key).await?;
            let change = AdminChange::new(Subject::ApiKey, "revoke", format!("key {key}"));
            let store = context.administer(&store, org, &change).await?;
            store.revoke_key(org, key, None, context.clock.now()).await?;
            context.out.result(&json!({ "id": key }), &format!("key {key} is revoked"));
            Ok(())
        }
    }
}

async fn create(context: &Context, name: String, scope: KeyScope, which: WhichMember) -> Result<(), Failure> {
    if !text::is_line(&name, 100) {
        return Err(Failure::usage("--name must be one line of 1 to 100 characters"));
    }
    let store = context.store().await?;
    let member = context.member(&store, &which).await?;
    let at = context.clock.now();
    let id = ApiKeyId::from(context.rng.uuid(at));
    let key = Credential::new(CredentialKind::ApiKey, &context.rng);
    let (org_id, user_id) = (member.org_id, member.user_id);
    let change =
        AdminChange::new(Subject::ApiKey, "create", format!("key {id} of scope {scope} of user {user_id}"));
    let store = context.administer(&store, org_id, &change).await?;
    let new = NewApiKey { id, org_id, user_id, name, scope, hint: key.hint, key_hash: key.hash, at };
    store.create_key(new).await?;
    context.out.result(&json!({ "id": id, "key": key.text.expose_secret() }), key.text.expose_secret());
    Ok(())
}

async fn ls(context: &Context, org: Option<&str>) -> Result<(), Failure> {
    let store = context.store().await?;
    let keys = store.keys(context.org(&store, org).await?).await?;
    let rows: Vec<_> = keys
        .iter()
        .map(|key| {
            let state = if key.revoked_at.is_some() { "revoked" } else { "active" };
            let hint = format!("{}…", key.hint);
            let made = context.ago(key.created_at);
            let scope = key.scope.to_string();
            vec![key.id.to_string(), key.name.clone(), key.email.clone(), scope, hint, state.to_owned(), made]
        })
        .collect();
    let values = keys.iter().map(|key| {
        json!({ "id": key.id, "name": key.name, "userId": key.user_id, "email": key.email, "scope": key.scope,
            "hint": key.hint,
            "createdAt": iso::text(&key.created_at), "revokedAt": key.revoked_at.as_ref().map(iso::text) })
    });
    context.out.list(values.collect(), &["ID", "NAME", "USER", "SCOPE", "KEY", "STATE", "CREATED"], &rows);
    Ok(())
}
