//! Chooses the gateway that a command talks to, and the credential for it.

use std::time::Duration;

use client::Client;
use gateway::config;
use gateway::identity::Issuer;
use secrecy::SecretString;
use url::Url;

use crate::args::{GatewayArgs, WhichMember, web_url};
use crate::context::Context;
use crate::failure::Failure;
use crate::login_contexts::LoginContexts;

/// The lifetime of the token, as long as a login: a terminal attached all day must be able to reconnect.
const TOKEN_LIFETIME: Duration = Duration::from_hours(12);

/// Options count before settings, settings before the login in use, and that before the data directory. A saved key is
/// sent only to the address that it was saved with.
pub(crate) async fn connect(context: &Context, args: GatewayArgs) -> Result<Client, Failure> {
    connect_to_org(context, args, None).await
}

/// Like [`connect`], but without a token or login the caller is the first owner of this organization.
pub(crate) async fn connect_to_org(
    context: &Context,
    args: GatewayArgs,
    org: Option<&str>,
) -> Result<Client, Failure> {
    let (url, token) = named_gateway(args)?;
    if let (Some(url), Some(token)) = (&url, &token) {
        return Ok(Client::new(url.clone(), token)?);
    }
    let saved =
        if context.data_dir_option.is_some() { LoginContexts::default() } else { LoginContexts::load()? };
    let login = match &url {
        Some(url) => saved.for_url(url),
        None => saved.current(),
    };
    let url = url.or_else(|| login.map(|login| login.url.clone()));
    let token = match token.or_else(|| login.map(|login| login.key.clone())) {
        Some(token) => token,
        None => first_owner(context, org).await?,
    };
    let url = match url {
        Some(url) => url,
        None => context.serving_url()?,
    };
    Ok(Client::new(url, &token)?)
}

/// The client of a shell completion: like [`connect`], but only if the command line, the settings or a login name a
/// gateway; otherwise the database of this machine answers.
pub(crate) fn remote(args: GatewayArgs) -> Option<Client> {
    let (url, token) = named_gateway(args).ok()?;
    let saved = LoginContexts::load().unwrap_or_default();
    let login = match &url {
        Some(url) => saved.for_url(url),
        None => saved.current(),
    };
    let token = token.or_else(|| login.map(|login| login.key.clone()))?;
    Client::new(url.or_else(|| login.map(|login| login.url.clone()))?, &token).ok()
}

/// The address and the credential that options or settings name.
fn named_gateway(args: GatewayArgs) -> Result<(Option<Url>, Option<SecretString>), Failure> {
    let environment = config::environment();
    let setting = |name: &str| environment.get(name).filter(|value| !value.is_empty()).cloned();
    let url = match args.url {
        Some(url) => Some(url),
        None => setting("PROLIFERATE_URL")
            .map(|text| web_url(&text))
            .transpose()
            .map_err(|error| Failure::usage(format!("PROLIFERATE_URL {error}")))?,
    };
    let token = args.token.or_else(|| setting("PROLIFERATE_TOKEN"));
    Ok((url, token.map(SecretString::from)))
}

/// Issues a token for the first owner. This grants nothing new: a user who can read the data dir can issue any token.
async fn first_owner(context: &Context, org: Option<&str>) -> Result<SecretString, Failure> {
    let made = async {
        let store = context.store().await?;
        let member = context.member(&store, &WhichMember { user: None, org: org.map(str::to_owned) }).await?;
        let keyring = context.keyring(&store).await?;
        let issuer = Issuer::new(&keyring.jwt, &keyring.service);
        let now = context.clock.now();
        Ok(issuer.user(member.user_id, member.org_id, &member.email, now, TOKEN_LIFETIME))
    };
    made.await.map_err(|failure: Failure| {
        failure.and("without a data dir, `proliferate login URL` first, or give --token or PROLIFERATE_TOKEN")
    })
}
