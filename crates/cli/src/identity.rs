//! `orgs`, `users`, `keys` and `login-link`: who may come in, and as what.

use gateway::identity::{self, Credential, CredentialKind};
use proto::{ApiKeyId, OrgId, UserId, iso};
use secrecy::ExposeSecret as _;
use serde_json::json;
use store::{NewApiKey, NewMember, NewOrg};

use crate::args::{KeysCommand, OrgsCommand, UsersCommand, WhichMember};
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn login_link(context: Context, which: WhichMember) -> Result<(), Failure> {
    let store = context.store().await?;
    let member = context.member(&store, &which).await?;
    let link =
        identity::login_link(&store, &member, &context.public_url(), &context.clock, &context.rng).await?;
    context.out.result(&json!({ "link": link.expose_secret() }), link.expose_secret());
    Ok(())
}

pub(crate) async fn orgs(context: Context, command: OrgsCommand) -> Result<(), Failure> {
    let store = context.store().await?;
    match command {
        OrgsCommand::Create { name } => {
            if name.trim().is_empty() || name.chars().count() > 200 {
                return Err(Failure::usage("--name must have 1 to 200 characters"));
            }
            let at = context.clock.now();
            let id = OrgId::from(context.rng.uuid(at));
            store.create_org(NewOrg { id, name: name.clone(), at }).await?;
            context.out.result(&json!({ "id": id }), &format!("organisation {id} ({name}) made"));
        }
        OrgsCommand::Ls => {
            let orgs = store.orgs().await?;
            let rows: Vec<_> = orgs
                .iter()
                .map(|org| vec![org.id.to_string(), org.name.clone(), iso::text(&org.created_at)])
                .collect();
            let values = orgs.iter().map(
                |org| json!({ "id": org.id, "name": org.name, "createdAt": iso::text(&org.created_at) }),
            );
            context.out.list(values.collect(), &["ID", "NAME", "CREATED"], &rows);
        }
    }
    Ok(())
}

pub(crate) async fn users(context: Context, command: UsersCommand) -> Result<(), Failure> {
    let store = context.store().await?;
    match command {
        UsersCommand::Create { email, name, role, org } => {
            let org_id = context.org(&store, org.org).await?;
            if !email.contains('@') || email.contains(char::is_whitespace) {
                return Err(Failure::usage(format!("--email {email}: must be an address")));
            }
            let at = context.clock.now();
            let user_id = UserId::from(context.rng.uuid(at));
            let name = name.unwrap_or_else(|| email.clone());
            let user =
                store.add_member(NewMember { user_id, email: email.clone(), name, org_id, role, at }).await?;
            context
                .out
                .result(&json!({ "id": user }), &format!("user {user} ({email}) is {role} of {org_id}"));
        }
        UsersCommand::Ls { org } => {
            let members = store.members(context.org(&store, org.org).await?).await?;
            let rows: Vec<_> = members
                .iter()
                .map(|m| {
                    vec![m.user_id.to_string(), m.email.clone(), m.role.to_string(), iso::text(&m.created_at)]
                })
                .collect();
            let values = members.iter().map(|m| {
                json!({ "id": m.user_id, "email": m.email, "name": m.name, "role": m.role, "org": m.org_id,
                    "createdAt": iso::text(&m.created_at) })
            });
            context.out.list(values.collect(), &["ID", "EMAIL", "ROLE", "SINCE"], &rows);
        }
        UsersCommand::Role { user, role, org } => {
            let org = context.org(&store, org.org).await?;
            store.change_member(org, user, Some(role)).await?;
            context.out.result(&json!({ "id": user, "role": role }), &format!("user {user} is {role} now"));
        }
        UsersCommand::Rm { user, org } => {
            let org = context.org(&store, org.org).await?;
            store.change_member(org, user, None).await?;
            context
                .out
                .result(&json!({ "id": user }), &format!("user {user} is no longer a member of {org}"));
        }
    }
    Ok(())
}

pub(crate) async fn keys(context: Context, command: KeysCommand) -> Result<(), Failure> {
    let store = context.store().await?;
    match command {
        KeysCommand::Create { name, member } => {
            let member = context.member(&store, &member).await?;
            if name.trim().is_empty() || name.chars().count() > 100 {
                return Err(Failure::usage("--name must have 1 to 100 characters"));
            }
            let at = context.clock.now();
            let id = ApiKeyId::from(context.rng.uuid(at));
            let key = Credential::new(CredentialKind::ApiKey, &context.rng);
            let (org_id, user_id) = (member.org_id, member.user_id);
            store
                .create_key(NewApiKey { id, org_id, user_id, name, hint: key.hint, key_hash: key.hash, at })
                .await?;
            context
                .out
                .result(&json!({ "id": id, "key": key.text.expose_secret() }), key.text.expose_secret());
        }
        KeysCommand::Ls { org } => {
            let keys = store.keys(context.org(&store, org.org).await?).await?;
            let state = |revoked: bool| if revoked { "revoked" } else { "active" }.to_owned();
            let rows: Vec<_> = keys
                .iter()
                .map(|key| {
                    let hint = format!("{}…", key.hint);
                    vec![
                        key.id.to_string(),
                        key.name.clone(),
                        key.email.clone(),
                        hint,
                        state(key.revoked_at.is_some()),
                    ]
                })
                .collect();
            let values = keys.iter().map(|key| {
                json!({ "id": key.id, "name": key.name, "userId": key.user_id, "email": key.email, "hint": key.hint,
                    "createdAt": iso::text(&key.created_at), "revokedAt": key.revoked_at.as_ref().map(iso::text) })
            });
            context.out.list(values.collect(), &["ID", "NAME", "USER", "KEY", "STATE"], &rows);
        }
        KeysCommand::Revoke { key, org } => {
            let org = context.org(&store, org.org).await?;
            store.revoke_key(org, key, None, context.clock.now()).await?;
            context.out.result(&json!({ "id": key }), &format!("key {key} is revoked"));
        }
    }
    Ok(())
}
