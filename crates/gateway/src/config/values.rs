//! Parsers of setting values. Each error says in one phrase what the parser expected.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use chrono::TimeDelta;
use secrecy::SecretString;
use url::Url;

/// The database that the gateway uses.
#[derive(Clone, Debug)]
pub enum Database {
    /// A file in the data directory.
    Sqlite,
    /// A PostgreSQL URL, which may contain a password.
    Postgres(SecretString),
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Text,
}

/// A web origin: scheme, host and port, as browsers send it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin(String);

impl Database {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            Ok(Self::Postgres(text.into()))
        } else {
            Err("must begin with postgres://; leave it out for SQLite in the data dir".to_owned())
        }
    }
}

impl LogFormat {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "json" => Ok(Self::Json),
            "text" => Ok(Self::Text),
            _ => Err("must be json or text".to_owned()),
        }
    }
}

impl Origin {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let url = web_url(text)?;
        if url.path() != "/" || url.query().is_some() {
            return Err("an origin is scheme://host[:port] only, without a path".to_owned());
        }
        Ok(Self::of(&url))
    }

    /// The origin of pages at `url`.
    pub fn of(url: &Url) -> Self {
        Self(url.origin().ascii_serialization())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let wanted = "must be address:port, e.g. 127.0.0.1:8787";
    text.to_socket_addrs().ok().and_then(|mut all| all.next()).ok_or_else(|| wanted.to_owned())
}

/// Parses days. A hundred years at most, which every clock can represent.
pub(super) fn days(text: &str) -> Result<TimeDelta, String> {
    let days = text.parse().ok().filter(|days| (1..=36_500).contains(days));
    days.map(TimeDelta::days).ok_or_else(|| "must be a whole number of days from 1 to 36500".to_owned())
}

pub(super) fn web_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|e| format!("must be a URL: {e}"))?;
    match url.scheme() {
        "http" | "https" if url.has_host() && url.username().is_empty() && url.password().is_none() => {
            Ok(url)
        }
        _ => Err("must be an http:// or https:// URL without a user name".to_owned()),
    }
}

#[expect(clippy::unnecessary_wraps, reason = "a parser of the reader, like the others")]
pub(super) fn path(text: &str) -> Result<PathBuf, String> {
    Ok(PathBuf::from(text))
}

/// Parses an absolute path, which means the same wherever the gateway was started.
pub(super) fn absolute(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err("must be absolute paths".to_owned()) }
}

#[expect(clippy::unnecessary_wraps, reason = "a parser of the reader, like the others")]
pub(super) fn text(text: &str) -> Result<String, String> {
    Ok(text.to_owned())
}

pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err("must be 1 or 0".to_owned()),
    }
}

/// Parses `host:port`. It is compared as text, so it must be written exactly like the host and port of
/// a URL.
pub(super) fn host_and_port(text: &str) -> Result<String, String> {
    let wanted = || "must be host:port, e.g. 127.0.0.1:58800".to_owned();
    let url = Url::parse(&format!("http://{text}")).map_err(|_| wanted())?;
    let same = url.host_str().zip(text.rsplit_once(':')).is_some_and(|(host, (given, port))| {
        host == given && port.parse::<u16>().is_ok_and(|port| port.to_string() == text[given.len() + 1..])
    });
    if same { Ok(text.to_owned()) } else { Err(wanted()) }
}

/// Parses `provider=URL`.
pub(super) fn provider_url(text: &str) -> Result<(String, Url), String> {
    let (provider, url) =
        text.split_once('=').ok_or("must be provider=URL, e.g. sentry=https://host/api/0")?;
    if providers::find(provider).is_none() {
        return Err(format!("there is no provider {provider:?}"));
    }
    Ok((provider.to_owned(), web_url(url)?))
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "must be a whole number above 0".to_owned())
}

/// Parses a number of calls in a minute.
pub(super) fn calls(text: &str) -> Result<u32, String> {
    let calls = text.parse().ok().filter(|calls| *calls >= 10);
    calls.ok_or_else(|| "must be a whole number from 10 to 4294967295".to_owned())
}

/// Parses the shared memory in MiB. At least 256, because a session's eighth must hold the largest body
/// of 32 MiB.
pub(super) fn shared_memory(text: &str) -> Result<usize, String> {
    let mib = text.parse().ok().filter(|mib| (256..=1_048_576).contains(mib));
    mib.ok_or_else(|| "must be a whole number of MiB from 256 to 1048576".to_owned())
}

/// Parses the size of the sandbox pool. Each pooled sandbox takes as much memory as an agent.
pub(super) fn pool_size(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|size| *size <= 64).ok_or_else(|| "must be 0 to 64".to_owned())
}

/// Parses dollars as micro-dollars.
pub(super) fn dollars(text: &str) -> Result<i64, String> {
    super::micros(text).ok_or_else(|| "must be dollars, e.g. 2.50".to_owned())
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    // Limited to what every clock can represent; a day is longer than anything here should wait.
    let seconds = text.parse().ok().filter(|n| (1..=86_400).contains(n)).map(Duration::from_secs);
    seconds.ok_or_else(|| "must be a whole number of seconds from 1 to 86400".to_owned())
}

/// Parses how long a request waits for approval: at most 30 days, because the encrypted request is kept as long.
pub(super) fn approval_lifetime(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|n| (1..=2_592_000).contains(n)).map(Duration::from_secs);
    seconds.ok_or_else(|| "must be a whole number of seconds from 1 to 2592000".to_owned())
}

/// Parses seconds for comparisons of the wall clock.
pub(super) fn grace_period(text: &str) -> Result<TimeDelta, String> {
    TimeDelta::from_std(seconds(text)?).map_err(|error| error.to_string())
}

pub(super) fn log_filter(text: &str) -> Result<String, String> {
    tracing_subscriber::EnvFilter::try_new(text).map_err(|e| e.to_string())?;
    Ok(text.to_owned())
}

/// A short key could be brute-forced offline from one token.
pub(super) fn signing_secret(text: &str) -> Result<(), String> {
    if text.len() < 32 { Err(format!("has {} bytes, must have at least 32", text.len())) } else { Ok(()) }
}

pub(super) fn vault_key(text: &str) -> Result<(), String> {
    match hex::decode(text) {
        Ok(bytes) if bytes.len() == 32 => Ok(()),
        _ => Err("must be 64 hexadecimal digits (make one with: openssl rand -hex 32)".to_owned()),
    }
}

/// An API key is sent in a header, and a line break in it would inject headers.
pub(super) fn model_name(text: &str) -> Result<String, String> {
    if text.len() <= 200 && !text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Ok(text.to_owned());
    }
    Err("must be the name of a model, of at most 200 bytes and without spaces".to_owned())
}

pub(super) fn header_value(text: &str) -> Result<(), String> {
    axum::http::HeaderValue::from_str(text)
        .map(drop)
        .map_err(|_| "has characters that no header can carry".to_owned())
}

/// The XDG data directory, or the current directory if there is no home directory.
pub(super) fn default_data_dir(environment: &BTreeMap<String, String>) -> PathBuf {
    let set = |name: &str| environment.get(name).filter(|value| value.starts_with('/')).map(PathBuf::from);
    set("XDG_DATA_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".local/share")))
        .map_or_else(|| PathBuf::from("proliferate-data"), |base| base.join("proliferate"))
}
