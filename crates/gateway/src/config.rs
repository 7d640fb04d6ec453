//! The settings: one struct and one file of defaults, overridden by environment variables and flags. All errors are
//! reported at once.

mod prices;
mod reader;
mod sandbox;
mod values;

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use chrono::TimeDelta;
use gate::GateSettings;
use secrecy::{ExposeSecret as _, SecretString};
use url::Url;

pub(crate) use prices::{Price, TOKENS_PER_PRICE, whole};
pub use prices::{Prices, dollars, micros};
use reader::Reader;
pub use sandbox::{Engine, Sandboxes};
pub use values::{Database, LogFormat, Origin};

/// The defaults, and the documentation of every setting.
pub const DEFAULTS: &str = include_str!("config.default.toml");

/// How long questions of agents wait.
#[derive(Clone, Copy, Debug)]
pub struct QuestionTimes {
    /// How long a question waits for an answer before it is rejected.
    pub lifetime: TimeDelta,
    /// How long an unanswered question keeps the sandbox running when nobody watches.
    pub idle_grace: TimeDelta,
}

/// All settings, validated. Secrets print as `[REDACTED]`.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    pub data_dir: PathBuf,
    /// If absent, it is derived from the bound address.
    pub public_url: Option<Url>,
    pub allowed_origins: Vec<Origin>,
    pub database: Database,
    pub sandboxes: Sandboxes,
    /// The private addresses (`host:port`) that the gateway may connect to on behalf of callers.
    pub allowed_hosts: Vec<String>,
    /// The directory with a directory for each organization, whose SQLite files agents may query.
    pub database_files_dir: Option<PathBuf>,
    /// Addresses of vendors' APIs by the id of the provider, where they differ from the public ones.
    pub integration_urls: Vec<(String, Url)>,
    /// The private addresses (`host:port`) that sandboxes may reach.
    pub egress_allowed_hosts: Vec<String>,
    /// How long egress records are kept.
    pub egress_keep: TimeDelta,
    pub questions: QuestionTimes,
    /// The directories below which local repositories may be given to sessions.
    pub local_roots: Vec<PathBuf>,
    /// GitHub, or a server with the same API.
    pub github_url: Url,
    pub jwt_secret: Option<SecretString>,
    pub service_secret: Option<SecretString>,
    pub vault_key: Option<SecretString>,
    pub old_vault_keys: Vec<SecretString>,
    pub sandbox_token_compat: bool,
    pub anthropic_api_key: Option<SecretString>,
    pub anthropic_base_url: Url,
    /// Any endpoint with the Chat Completions API.
    pub openai_base_url: Option<Url>,
    pub openai_api_key: Option<SecretString>,
    /// The model of sessions that name none.
    pub default_model: Option<String>,
    pub model_script: Option<PathBuf>,
    pub model_prices: Prices,
    /// The budget of a session that has none of its own.
    pub session_budget_micros: Option<i64>,
    /// The directory of the policy. If absent, the built-in policy applies.
    pub policy_dir: Option<PathBuf>,
    pub audit_signing_key: Option<PathBuf>,
    pub audit_checkpoint_dir: Option<PathBuf>,
    /// The number of sessions in memory above which idle ones are evicted.
    pub max_live_sessions: usize,
    pub max_connections: usize,
    pub max_connections_per_address: usize,
    pub client_timeout: Duration,
    pub max_body_bytes: usize,
    /// The memory and the concurrent model requests that all callers share; see the module `shares`.
    pub shared_memory_mib: usize,
    /// Calls of tools that an organization may make in a minute.
    pub calls_per_minute: u32,
    /// How long a call that needs approval waits for it.
    pub approval_lifetime: Duration,
    pub model_requests: usize,
    pub stop_after: Duration,
    pub log: String,
    pub log_format: Option<LogFormat>,
    /// The directories in which programs are searched: the environment's `PATH`.
    pub search_path: Vec<PathBuf>,
}

/// All errors in the settings, each with the name of its setting.
#[derive(Debug)]
pub struct ConfigErrors(pub Vec<String>);

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.join("\n"))
    }
}

impl std::error::Error for ConfigErrors {}

/// The process environment, read once. Variables that are not UTF-8 are ignored.
#[expect(clippy::disallowed_methods, reason = "this is the one place that reads the environment")]
pub fn environment() -> BTreeMap<String, String> {
    std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect()
}

impl Config {
    /// Loads the defaults, then `environment`, then `flags`. Later ones win.
    pub fn load(
        environment: &BTreeMap<String, String>,
        flags: &[(String, String)],
    ) -> Result<Self, ConfigErrors> {
        let mut reader = Reader::new(DEFAULTS, environment, flags)?;
        let config = Self::read(&mut reader, environment);
        reader.finish(config)
    }

    fn read(r: &mut Reader, environment: &BTreeMap<String, String>) -> Option<Self> {
        let public_url = r.optional("PUBLIC_URL", values::web_url);
        let service_secret = r.secret("SERVICE_TO_SERVICE_AUTH_TOKEN", values::signing_secret);
        let jwt_secret = r.secret("GATEWAY_JWT_SECRET", values::signing_secret);
        r.differ("GATEWAY_JWT_SECRET", "SERVICE_TO_SERVICE_AUTH_TOKEN");
        let model_prices = r.optional("MODEL_PRICES", Prices::parse).unwrap_or_default();
        let session_budget_micros = r.optional("SESSION_BUDGET_DOLLARS", values::dollars);
        if session_budget_micros.is_some() && !model_prices.cover_all() {
            r.complain(
                "SESSION_BUDGET_DOLLARS: a model without a price would spend nothing of it; say in MODEL_PRICES what all \
                 others cost too, e.g. *=3/15",
            );
        }
        Some(Self {
            listen: r.required("PROLIFERATE_LISTEN", values::address)?,
            data_dir: r
                .optional("PROLIFERATE_DATA_DIR", values::path)
                .unwrap_or_else(|| values::default_data_dir(environment)),
            allowed_origins: r.list("ALLOWED_ORIGINS", Origin::parse),
            public_url,
            database: r.optional("DATABASE_URL", Database::parse).unwrap_or(Database::Sqlite),
            sandboxes: Sandboxes::read(r)?,
            allowed_hosts: r.list("CONNECTOR_ALLOWED_HOSTS", values::host_and_port),
            database_files_dir: r.optional("DATABASE_FILES_DIR", values::absolute),
            integration_urls: r.list("INTEGRATION_URLS", values::provider_url),
            local_roots: r.list("WORKSPACE_LOCAL_ROOTS", values::absolute),
            github_url: r.required("GITHUB_URL", values::web_url)?,
            egress_allowed_hosts: r.list("EGRESS_ALLOWED_HOSTS", values::host_and_port),
            egress_keep: r.required("EGRESS_KEEP_DAYS", values::days)?,
            questions: QuestionTimes {
                lifetime: r.required("QUESTION_LIFETIME_DAYS", values::days)?,
                idle_grace: r.required("QUESTION_IDLE_GRACE_SECONDS", values::grace_period)?,
            },
            jwt_secret,
            service_secret,
            vault_key: r.secret("USER_SECRETS_ENCRYPTION_KEY", values::vault_key),
            old_vault_keys: r.secrets("USER_SECRETS_ENCRYPTION_KEY_OLD", values::vault_key),
            sandbox_token_compat: r.required("SANDBOX_TOKEN_COMPAT", values::switch)?,
            anthropic_api_key: r.secret("ANTHROPIC_API_KEY", values::header_value),
            anthropic_base_url: r.required("ANTHROPIC_BASE_URL", values::web_url)?,
            openai_base_url: r.optional("OPENAI_BASE_URL", values::web_url),
            openai_api_key: r.secret("OPENAI_API_KEY", values::header_value),
            default_model: r.optional("DEFAULT_MODEL", values::model_name),
            model_script: r.optional("PROLIFERATE_MODEL_SCRIPT", values::path),
            model_prices,
            session_budget_micros,
            policy_dir: r.optional("PROLIFERATE_POLICY_DIR", values::path),
            audit_signing_key: r.optional("AUDIT_SIGNING_KEY", values::path),
            audit_checkpoint_dir: r.optional("AUDIT_CHECKPOINT_DIR", values::path),
            max_live_sessions: r.required("PROLIFERATE_MAX_LIVE_SESSIONS", values::count)?,
            max_connections: r.required("PROLIFERATE_MAX_CONNECTIONS", values::count)?,
            max_connections_per_address: r
                .required("PROLIFERATE_MAX_CONNECTIONS_PER_ADDRESS", values::count)?,
            client_timeout: r.required("PROLIFERATE_CLIENT_TIMEOUT_SECONDS", values::seconds)?,
            max_body_bytes: r.required("PROLIFERATE_MAX_BODY_BYTES", values::count)?,
            shared_memory_mib: r.required("PROLIFERATE_SHARED_MEMORY_MIB", values::shared_memory)?,
            approval_lifetime: r.required("APPROVAL_LIFETIME_SECONDS", values::approval_lifetime)?,
            calls_per_minute: r.required("PROLIFERATE_CALLS_PER_MINUTE", values::calls)?,
            model_requests: r.required("PROLIFERATE_MODEL_REQUESTS", values::count)?,
            stop_after: r.required("PROLIFERATE_STOP_SECONDS", values::seconds)?,
            log: r.required("PROLIFERATE_LOG", values::log_filter)?,
            log_format: r.optional("PROLIFERATE_LOG_FORMAT", LogFormat::parse),
            search_path: environment
                .get("PATH")
                .map(|path| std::env::split_paths(path).collect())
                .unwrap_or_default(),
        })
    }

    /// The base URL of the Chat Completions API, if a provider with it is configured. A key alone means OpenAI's own.
    pub fn chat_url(&self) -> Option<Url> {
        let own = || Url::parse("https://api.openai.com/v1").ok();
        self.openai_base_url.clone().or_else(|| self.openai_api_key.as_ref().and_then(|_| own()))
    }

    /// The keys of the model providers, without the words that endpoints without keys are configured with (`ollama`):
    /// ordinary texts have those too.
    pub fn provider_keys(&self) -> impl Iterator<Item = &SecretString> {
        let keys = [&self.anthropic_api_key, &self.openai_api_key].into_iter().flatten();
        keys.filter(|key| is_secret_key(key.expose_secret()))
    }

    /// Whether a model provider is configured. Otherwise the scripted model answers.
    pub fn has_provider(&self) -> bool {
        self.anthropic_api_key.is_some() || self.chat_url().is_some()
    }

    /// The path of a program on the search path.
    pub fn program(&self, name: &str) -> Option<PathBuf> {
        find_program(&self.search_path, name)
    }

    /// The file of the key that signs the ledger's checkpoints.
    pub fn audit_key_file(&self) -> PathBuf {
        self.audit_signing_key.clone().unwrap_or_else(|| self.data_dir.join("audit.key"))
    }

    /// The directory in which checkpoints are written outside of the database.
    pub fn checkpoint_dir(&self) -> PathBuf {
        self.audit_checkpoint_dir.clone().unwrap_or_else(|| self.data_dir.join("checkpoints"))
    }

    /// The settings for the gate.
    pub fn gate_settings(&self) -> GateSettings {
        GateSettings {
            policy_dir: self.policy_dir.clone(),
            audit_key_file: self.audit_key_file(),
            checkpoint_dir: self.checkpoint_dir(),
            calls_per_minute: self.calls_per_minute,
            approval_lifetime: self.approval_lifetime,
            single_instance: matches!(self.database, Database::Sqlite),
        }
    }

    /// The path of the SQLite database, whether it is used or not.
    pub fn sqlite_file(&self) -> PathBuf {
        self.data_dir.join("proliferate.db")
    }
}

/// The path of a program in the first of these directories that has it.
pub fn find_program(search_path: &[PathBuf], name: &str) -> Option<PathBuf> {
    let executable = |file: &PathBuf| {
        file.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    search_path.iter().map(|directory| directory.join(name)).find(executable)
}

/// Whether a provider's key is random enough to be looked for.
fn is_secret_key(key: &str) -> bool {
    key.len() >= 24 || key.len() >= 8 && key.bytes().any(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests;
