//! The settings of sandboxes: the engine that runs them, and their resource limits.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use chrono::TimeDelta;
use sandbox::Limits;

use super::reader::Reader;
use super::values;

const MIB: u64 = 1024 * 1024;

/// The settings of sandboxes.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    pub engine: Engine,
    pub limits: Limits,
    pub rootfs: Option<PathBuf>,
    /// Whether agents get a browser where there is one.
    pub browser: bool,
    pub uids: RangeInclusive<u32>,
    /// The number of sandboxes booted in advance. The program that starts the gateway chooses a default.
    pub pool_size: Option<usize>,
    /// How long a sandbox is used after its boot. If absent, forever.
    pub lifetime: Option<TimeDelta>,
}

/// The engine that runs sandboxes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Bubblewrap on this machine.
    Local,
    /// Agents that run elsewhere, at this URL.
    Attach(String),
    /// Plain processes of the gateway's user, without isolation.
    Process,
}

impl Sandboxes {
    pub(super) fn read(r: &mut Reader) -> Option<Self> {
        let attach = r.optional("SANDBOX_ATTACH_URL", values::text);
        let engine = match r.required("SANDBOX_PROVIDER", parse_provider)? {
            "attach" => {
                if attach.is_none() {
                    r.complain("SANDBOX_ATTACH_URL: missing, though SANDBOX_PROVIDER is attach");
                }
                Engine::Attach(attach?)
            }
            "process" => Engine::Process,
            _ => Engine::Local,
        };
        let limits = Limits {
            memory_bytes: r.required("SANDBOX_MEMORY_MIB", mebibytes)?,
            pids: r.required("SANDBOX_PROCESSES", number)?,
            cpu_millis: r.required("SANDBOX_CPU_MILLIS", number)?,
            disk_bytes: r.required("SANDBOX_DISK_MIB", mebibytes)?,
            tmp_bytes: r.required("SANDBOX_TMP_MIB", mebibytes)?,
            files: r.required("SANDBOX_OPEN_FILES", number)?,
        };
        let rootfs = r.optional("SANDBOX_ROOTFS", values::path);
        let browser = r.required("SANDBOX_BROWSER", values::switch)?;
        let pool_size = r.optional("WARM_POOL_SIZE", values::pool_size);
        let lifetime = r.optional("SANDBOX_LIFETIME_SECONDS", lifetime);
        let uids = r.required("SANDBOX_UIDS", uids)?;
        Some(Self { engine, limits, rootfs, browser, uids, pool_size, lifetime })
    }
}

fn parse_provider(text: &str) -> Result<&'static str, String> {
    let found = ["local", "attach", "process"].into_iter().find(|name| *name == text);
    found.ok_or_else(|| "the known engines are: local, attach, process".to_owned())
}

fn number(text: &str) -> Result<u64, String> {
    values::count(text).map(|count| count as u64)
}

/// Parses a lifetime. A year at most, which every clock can represent.
fn lifetime(text: &str) -> Result<TimeDelta, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=31_536_000).contains(seconds));
    let seconds = seconds.ok_or_else(|| "must be a whole number of seconds from 1 to 31536000".to_owned())?;
    Ok(TimeDelta::seconds(seconds))
}

/// Parses MiB as bytes. Limited so that the bytes fit into every kernel counter.
fn mebibytes(text: &str) -> Result<u64, String> {
    let most = 1 << 30;
    let whole = number(text)?;
    if whole <= most { Ok(whole * MIB) } else { Err(format!("must be at most {most}")) }
}

/// Parses a range of user ids. Only ids above 65535 are allowed, so that they belong to no system user
/// and not to `nobody`.
fn uids(text: &str) -> Result<RangeInclusive<u32>, String> {
    let wanted = || "must be FIRST-LAST, both above 65535, e.g. 200000-265535".to_owned();
    let (first, last) = text.split_once('-').ok_or_else(wanted)?;
    let (first, last) = (first.parse().map_err(|_| wanted())?, last.parse().map_err(|_| wanted())?);
    if first > 65_535 && first <= last && last < u32::MAX { Ok(first..=last) } else { Err(wanted()) }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Engine};

    fn load(settings: &[(&str, &str)]) -> Result<Config, String> {
        let flags: Vec<_> =
            settings.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Config::load(&std::collections::BTreeMap::new(), &flags).map_err(|errors| errors.to_string())
    }

    #[test]
    fn the_default_engine_and_limits_apply_without_settings() {
        let sandboxes = load(&[]).unwrap().sandboxes;
        assert_eq!(sandboxes.engine, Engine::Local);
        assert_eq!(sandboxes.limits, sandbox::Limits::default());
    }

    #[test]
    fn every_wrong_setting_is_named() {
        for (name, value) in [
            ("SANDBOX_PROVIDER", "docker"),
            ("SANDBOX_PROVIDER", "attach"),
            ("SANDBOX_MEMORY_MIB", "0"),
            ("SANDBOX_DISK_MIB", "9999999999999"),
            ("SANDBOX_UIDS", "0-100"),
            ("SANDBOX_UIDS", "300000-200000"),
            ("SANDBOX_UIDS", "many"),
            ("SANDBOX_LIFETIME_SECONDS", "0"),
            ("SANDBOX_LIFETIME_SECONDS", "1h"),
            ("SANDBOX_LIFETIME_SECONDS", "31536001"),
            ("APPROVAL_LIFETIME_SECONDS", "0"),
            ("APPROVAL_LIFETIME_SECONDS", "2592001"),
            ("EGRESS_KEEP_DAYS", "0"),
            ("EGRESS_KEEP_DAYS", "36501"),
            ("WARM_POOL_SIZE", "-1"),
            ("WARM_POOL_SIZE", "65"),
            ("CONNECTOR_ALLOWED_HOSTS", "127.0.0.1"),
            ("CONNECTOR_ALLOWED_HOSTS", "http://x:1"),
            ("CONNECTOR_ALLOWED_HOSTS", "x:99999"),
            ("CONNECTOR_ALLOWED_HOSTS", "x:1/path"),
        ] {
            let error = load(&[(name, value)]).unwrap_err();
            assert!(error.contains(&name[..8]), "{name}={value}: {error}");
        }
        let attach =
            [("SANDBOX_PROVIDER", "attach"), ("SANDBOX_ATTACH_URL", "http://127.0.0.1:1/s/{sessionId}")];
        assert!(matches!(load(&attach).unwrap().sandboxes.engine, Engine::Attach(_)));
        let hosts =
            load(&[("CONNECTOR_ALLOWED_HOSTS", "127.0.0.1:58800, internal:80")]).unwrap().allowed_hosts;
        assert_eq!(hosts, ["127.0.0.1:58800", "internal:80"]);
    }
}
