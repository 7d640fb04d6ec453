//! `token`: issues tokens for users, services and sandboxes, and prints only the token so that a shell can capture it.

use gateway::identity::{Credential, CredentialKind, Issuer, USER_TOKEN_LIFETIME};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use store::{NewSandboxToken, Store, StoreError};

use crate::args::TokenCommand;
use crate::context::Context;
use crate::failure::Failure;

pub(crate) async fn run(context: &Context, command: TokenCommand) -> Result<(), Failure> {
    let token = make(context, command).await?;
    context.out.result(&json!({ "token": token.expose_secret() }), token.expose_secret());
    Ok(())
}

async fn make(context: &Context, command: TokenCommand) -> Result<SecretString, Failure> {
    let now = context.clock.now();
    let store = context.store().await?;
    match command {
        TokenCommand::User { member } => {
            let member = context.member(&store, &member).await?;
            Ok(issuer(context, &store).await?.user(
                member.user_id,
                member.org_id,
                &member.email,
                now,
                USER_TOKEN_LIFETIME,
            ))
        }
        TokenCommand::Service { name, org } => {
            if name.trim().is_empty() {
                return Err(Failure::usage("--name must not be empty"));
            }
            let org = match org.as_deref() {
                Some(org) => Some(context.org(&store, Some(org)).await?),
                None => None,
            };
            Ok(issuer(context, &store).await?.service(&name, org, now, USER_TOKEN_LIFETIME))
        }
        TokenCommand::Sandbox { session } => {
            let session = context.session(&store, &session).await?;
            let token = Credential::new(CredentialKind::Sandbox, &context.rng);
            let new = NewSandboxToken { token_hash: token.hash, session_id: session };
            store.create_sandbox_token(new).await.map_err(|error| match error {
                StoreError::Missing(_) => Failure::failed(format!(
                    "there is no live session {session}, so it has no sandbox: `proliferate session ls` shows all of them, \
                     and a prompt starts one"
                )),
                error => error.into(),
            })?;
            Ok(token.text)
        }
    }
}

async fn issuer(context: &Context, store: &Store) -> Result<Issuer, Failure> {
    let keyring = context.keyring(store).await?;
    Ok(Issuer::new(&keyring.jwt, &keyring.service))
}
