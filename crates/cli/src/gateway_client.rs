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
use crate::output::warn;

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
        warn_of_org(org);
        return Ok(Client::new(url.clone(), token)?);
    }
    let saved =
        if context.data_dir_option.is_some() { LoginContexts::default() } else { LoginContexts::load()? };
    let login = match &url {
        Some(url) => saved.for_url(url),
        None => saved.current(),
    };
    let url = url.or_else(|| login.map(|login| login.url.clone()));
    if let Some(token) = token.or_else(|| login.map(|login| login.key.clone())) {
        warn_of_org(org);
        let url = url.map_or_else(|| context.serving_url(), Ok)?;
        return Ok(Client::new(url, &token)?);
    }
    if let Some(named) = &url {
        check_own(context, named)?;
    }
    let token = first_owner(context, org).await?;
    Ok(Client::new(context.serving_url()?, &token)?)
}

fn warn_of_org(org: Option<&str>) {
    if let Some(org) = org {
        warn(&format!(
            "--org {org} has no effect: a token or login is of one organization, and that one is used"
        ));
    }
}

/// Refuses an address that is not that of the gateway which serves the data directory. The token of the local owner opens
/// everything in this directory, so nobody else may get it.
fn check_own(context: &Context, named: &Url) -> Result<(), Failure> {
    if context.serving_url().is_ok_and(|own| own == *named) {
        return Ok(());
    }
    Err(Failure::missing(format!(
        "there is no credential for {named}: `proliferate login {named}` first, or give --token or PROLIFERATE_TOKEN. The \
         token of the local owner is sent only to the gateway that serves the data dir {}",
        context.config.data_dir.display()
    )))
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
