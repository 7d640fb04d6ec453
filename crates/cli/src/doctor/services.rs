//! Checks what the gateway talks to: the database, the model provider, and its own port.

use std::time::Duration;

use gate::call_rates;
use gateway::config::{Config, Database};
use gateway::shares::Shares;
use reqwest::redirect::Policy;
use secrecy::ExposeSecret as _;
use store::{Migration, Schema, probe_postgres, probe_sqlite};
use url::Url;

use super::Finding;

const CHECK_TIMEOUT: Duration = Duration::from_secs(10);

/// Checks the database without changing anything: it runs no migration.
pub(super) async fn database(config: &Config) -> Finding {
    const CHECK_NAME: &str = "database";
    let (kind, found) = match &config.database {
        Database::Sqlite => ("SQLite", probe_sqlite(&config.sqlite_file()).await),
        Database::Postgres(url) => ("PostgreSQL", probe_postgres(url.expose_secret()).await),
    };
    let latest = Migration::LATEST;
    match found {
        Ok(Schema::Absent) => {
            Finding::good(CHECK_NAME, format!("{kind}, empty: tables are made at the first start"))
        }
        Ok(Schema::Version(version)) if version == latest => {
            Finding::good(CHECK_NAME, format!("{kind}, schema {version}"))
        }
        Ok(Schema::Version(version)) if version < latest => Finding::good(
            CHECK_NAME,
            format!("{kind}, schema {version}: brought to {latest} at the next start"),
        ),
        Ok(Schema::Version(version)) => Finding::bad(
            CHECK_NAME,
            format!("{kind}, schema {version}; this program knows up to {latest}"),
            "start the newer program that wrote it, or restore a backup made before the upgrade",
        ),
        Err(error) => Finding::bad(CHECK_NAME, error.to_string(), "see docs/operations.md"),
    }
}

/// Requests the list of models of every configured provider, which is free and shows whether the API key is valid.
pub(super) async fn models(config: &Config) -> Vec<Finding> {
    const CHECK_NAME: &str = "model";
    // Do not follow redirects: a redirect would send the key to another host.
    let client = reqwest::Client::builder().timeout(CHECK_TIMEOUT).redirect(Policy::none()).build();
    let Ok(client) = client else {
        return vec![Finding::bad(CHECK_NAME, "no HTTP client", "check the system's certificates")];
    };
    let mut findings = Vec::new();
    if let Some(key) = &config.anthropic_api_key {
        let request = client.get(below(&config.anthropic_base_url, "v1/models"));
        let request =
            request.header("x-api-key", key.expose_secret()).header("anthropic-version", "2023-06-01");
        let remedy = "check ANTHROPIC_API_KEY, ANTHROPIC_BASE_URL and the network";
        findings.push(provider(CHECK_NAME, &config.anthropic_base_url, request, remedy).await);
    }
    if let Some(base) = config.chat_url() {
        let request = client.get(below(&base, "models"));
        let request = match &config.openai_api_key {
            Some(key) => request.bearer_auth(key.expose_secret()),
            None => request,
        };
        let remedy = "check OPENAI_BASE_URL (with its /v1), OPENAI_API_KEY and the network";
        findings.push(provider(CHECK_NAME, &base, request, remedy).await);
    }
    if findings.is_empty() {
        let text = "built-in script; set ANTHROPIC_API_KEY or OPENAI_BASE_URL for a real one";
        findings.push(Finding::good(CHECK_NAME, text));
    }
    findings
}

fn below(base: &Url, path: &str) -> String {
    format!("{}/{path}", base.as_str().trim_end_matches('/'))
}

async fn provider(
    name: &'static str,
    base: &Url,
    request: reqwest::RequestBuilder,
    remedy: &'static str,
) -> Finding {
    match request.send().await {
        Ok(answer) if answer.status().is_success() => Finding::good(name, format!("{base} lists its models")),
        Ok(answer) => Finding::bad(name, format!("{base} answers {}", answer.status()), remedy),
        Err(error) => Finding::bad(name, format!("cannot reach {base}: {}", error.without_url()), remedy),
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
    const CHECK_NAME: &str = "prices";
    if config.model_prices.cover_all() {
        return Finding::good(CHECK_NAME, "every model has one");
    }
    if !config.has_provider() {
        return Finding::good(CHECK_NAME, "the built-in script costs nothing");
    }
    Finding::weak(
        CHECK_NAME,
        "models without one are refused to an organization that has a budget",
        "say in MODEL_PRICES what models cost; *=3/15 is for all others",
    )
}

pub(super) async fn port(config: &Config) -> Finding {
    const CHECK_NAME: &str = "port";
    let address = config.listen;
    if tokio::net::TcpListener::bind(address).await.is_ok() {
        return Finding::good(CHECK_NAME, format!("{address} is free"));
    }
    let client = reqwest::Client::builder().timeout(CHECK_TIMEOUT).no_proxy().build();
    let ours = match client {
        Ok(client) => client
            .get(format!("{}health", gateway::url_of(address)))
            .send()
            .await
            .is_ok_and(|answer| answer.status().is_success()),
        Err(_) => false,
    };
    if ours {
        Finding::good(CHECK_NAME, format!("{address}: a gateway answers"))
    } else {
        Finding::bad(
            CHECK_NAME,
            format!("{address} is taken by another program"),
            "choose another with --listen",
        )
    }
}
