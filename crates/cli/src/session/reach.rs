//! Chooses the gateway to connect to, and the token for it.

use std::time::Duration;

use client::Client;
use gateway::config;
use gateway::identity::Issuer;
use secrecy::SecretString;

use crate::args::{Reach, WhichMember, web_url};
use crate::context::Context;
use crate::failure::Failure;

/// The lifetime of the token, as long as a login: a terminal attached all day must be able to reconnect.
const LIFETIME: Duration = Duration::from_hours(12);

pub(super) async fn client(context: &Context, reach: Reach) -> Result<Client, Failure> {
    let environment = config::environment();
    let setting = |name: &str| environment.get(name).filter(|value| !value.is_empty()).cloned();
    let url = match reach.url {
        Some(url) => url,
        None => match setting("PROLIFERATE_URL") {
            Some(text) => {
                web_url(&text).map_err(|error| Failure::usage(format!("PROLIFERATE_URL {error}")))?
            }
            None => context.local_url(),
        },
    };
    let token = match reach.token.or_else(|| setting("PROLIFERATE_TOKEN")) {
        Some(token) => token.into(),
        None => first_owner(context).await?,
    };
    Ok(Client::new(url, &token)?)
}

/// Issues a token for the first owner. This grants nothing new: a user who can read the data dir can issue any token.
async fn first_owner(context: &Context) -> Result<SecretString, Failure> {
    let made = async {
        let store = context.store().await?;
        let member = context.member(&store, &WhichMember { user: None, org: None }).await?;
        let keyring = context.keyring(&store).await?;
        let issuer = Issuer::new(&keyring.jwt, &keyring.service);
        let now = context.clock.now();
        Ok(issuer.user(member.user_id, member.org_id, &member.email, now, LIFETIME))
    };
    made.await.map_err(|failure: Failure| {
        failure.and(
            "without a data dir, give --token or PROLIFERATE_TOKEN: an API key of the gateway, or a token",
        )
    })
}
