//! Checks what the gateway talks to: the database, the model provider, and its own port.

use std::time::Duration;

use gate::call_rates;
use gateway::config::{Config, Database};
use gateway::shares::Shares;
use reqwest::redirect::Policy;
use secrecy::ExposeSecret as _;
use store::{Migration, Schema, probe_postgres, probe_sqlite};

use super::Finding;

const PATIENCE: Duration = Duration::from_secs(10);

/// Checks the database without changing anything: it runs no migration.
pub(super) async fn database(config: &Config) -> Finding {
    const NAME: &str = "database";
    let (kind, found) = match &config.database {
        Database::Sqlite => ("SQLite", probe_sqlite(&config.sqlite_file()).await),
        Database::Postgres(url) => ("PostgreSQL", probe_postgres(url.expose_secret()).await),
    };
    let latest = Migration::LATEST;
    match found {
        Ok(Schema::Absent) => {
            Finding::good(NAME, format!("{kind}, empty: tables are made at the first start"))
        }
        Ok(Schema::Version(version)) if version == latest => {
            Finding::good(NAME, format!("{kind}, schema {version}"))
        }
        Ok(Schema::Version(version)) if version < latest => {
            Finding::good(NAME, format!("{kind}, schema {version}: brought to {latest} at the next start"))
        }
        Ok(Schema::Version(version)) => Finding::bad(
            NAME,
            format!("{kind}, schema {version}; this program knows up to {latest}"),
            "start the newer program that wrote it, or restore a backup made before the upgrade",
        ),
        Err(error) => Finding::bad(NAME, error.to_string(), "see docs/operations.md"),
    }
}

/// Requests the provider's list of models, which is free and shows whether the API key is valid.
pub(super) async fn model(config: &Config) -> Finding {
    const NAME: &str = "model";
    let Some(key) = &config.anthropic_api_key else {
        return Finding::good(NAME, "built-in script; set ANTHROPIC_API_KEY for a real one");
    };
    let url = format!("{}/v1/models", config.anthropic_base_url.as_str().trim_end_matches('/'));
    // Do not follow redirects: a redirect would send the key to another host.
    let client = reqwest::Client::builder().timeout(PATIENCE).redirect(Policy::none()).build();
    let Ok(client) = client else {
        return Finding::bad(NAME, "no HTTP client", "check the system's certificates");
    };
    let request =
        client.get(url).header("x-api-key", key.expose_secret()).header("anthropic-version", "2023-06-01");
    match request.send().await {
        Ok(answer) if answer.status().is_success() => {
            Finding::good(NAME, format!("{} accepts the key", config.anthropic_base_url))
        }
        Ok(answer) => Finding::bad(
            NAME,
            format!("{} answers {}", config.anthropic_base_url, answer.status()),
            "check ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL",
        ),
        Err(error) => Finding::bad(
            NAME,
            format!("cannot reach {}: {}", config.anthropic_base_url, error.without_url()),
            "check ANTHROPIC_BASE_URL and the network",
        ),
    }
}

/// Reports how many resources a caller may hold at once; the settings have the same names.
pub(super) fn shares(config: &Config) -> Finding {
    let shares = Shares::limits(config);
    let rates = call_rates(config.calls_per_minute).map(|rate| rate.to_string());
    let described: Vec<String> = shares.iter().map(ToString::to_string).chain(rates).collect();
    Finding::good("fair shares", described.join("; "))
}

/// Checks that every model has a price: the gateway cannot enforce a budget for a model without one.
pub(super) fn prices(config: &Config) -> Finding {
    const NAME: &str = "prices";
    if config.model_prices.cover_all() {
        return Finding::good(NAME, "every model has one");
    }
    if config.anthropic_api_key.is_none() {
        return Finding::good(NAME, "the built-in script costs nothing");
    }
    Finding::weak(
        NAME,
        "models without one are refused to an organization that has a budget",
        "say in MODEL_PRICES what models cost; *=3/15 is for all others",
    )
}

pub(super) async fn port(config: &Config) -> Finding {
    const NAME: &str = "port";
    let address = config.listen;
    if tokio::net::TcpListener::bind(address).await.is_ok() {
        return Finding::good(NAME, format!("{address} is free"));
    }
    let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy().build();
    let ours = match client {
        Ok(client) => client
            .get(format!("{}health", gateway::url_of(address)))
            .send()
            .await
            .is_ok_and(|answer| answer.status().is_success()),
        Err(_) => false,
    };
    if ours {
        Finding::good(NAME, format!("{address}: a gateway answers"))
    } else {
        Finding::bad(NAME, format!("{address} is taken by another program"), "choose another with --listen")
    }
}
