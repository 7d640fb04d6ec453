//! Logs and metrics of a running gateway. Neither contains tokens or secret values.

use std::io::IsTerminal as _;
use std::sync::OnceLock;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;

use crate::config::{Config, LogFormat};

/// Starts logging to standard error. A second call does nothing: tests start several gateways in one process.
pub fn start_logging(config: &Config) {
    let filter = EnvFilter::try_new(&config.log).unwrap_or_else(|_| EnvFilter::new("info"));
    // The SDK logs messages of servers as they are, and they may contain anything.
    let filter = "rmcp=off".parse().into_iter().fold(filter, EnvFilter::add_directive);
    // Standard error may be closed. Reporting that failure on the same standard error would panic, and end the task
    // that logged.
    let base = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let terminal = std::io::stderr().is_terminal();
    let format = config.log_format.unwrap_or(if terminal { LogFormat::Text } else { LogFormat::Json });
    let _already_started = match format {
        LogFormat::Json => base.json().flatten_event(true).with_span_list(false).try_init(),
        LogFormat::Text => base.with_ansi(terminal).with_target(false).try_init(),
    };
}

/// Histogram buckets in seconds, from a cached response to a slow clone.
const LATENCY_BUCKETS: [f64; 11] = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0];

/// Starts recording metrics, once for all gateways of this process. `None` if something else already records them.
pub fn start_metrics() -> Option<PrometheusHandle> {
    static STARTED: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    STARTED.get_or_init(install_metrics).clone()
}

fn install_metrics() -> Option<PrometheusHandle> {
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &LATENCY_BUCKETS);
    let handle = builder.ok()?.install_recorder().ok()?;
    metrics::describe_counter!(
        "proliferate_http_requests_total",
        "Requests answered, by route, method and status."
    );
    metrics::describe_histogram!(
        "proliferate_http_request_seconds",
        "Time to the head of the answer, by route."
    );
    metrics::describe_histogram!("proliferate_boot_stage_seconds", "Time of each stage of a boot.");
    metrics::describe_gauge!("proliferate_pool_waiting", "Booted sandboxes that nobody has taken yet.");
    metrics::describe_counter!(
        "proliferate_pool_taken_total",
        "Pooled sandboxes that were taken, by outcome."
    );
    metrics::describe_counter!("proliferate_pool_failures_total", "Boots for the pool that failed.");
    metrics::describe_histogram!("proliferate_pool_boot_seconds", "Time of each boot for the pool.");
    metrics::describe_gauge!("proliferate_connections", "Open client connections.");
    metrics::describe_gauge!("proliferate_share_limit", "How much of a share there is for all callers.");
    metrics::describe_gauge!("proliferate_share_used", "How much of a share all callers hold.");
    metrics::describe_counter!(
        "proliferate_share_refused_total",
        "Requests beyond a share, by share and by whose it was."
    );
    metrics::describe_counter!("proliferate_connections_refused_total", "Connections refused by a cap.");
    metrics::describe_counter!("proliferate_auth_failures_total", "Requests without a valid credential.");
    describe_work();
    metrics::gauge!("proliferate_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    Some(handle)
}

fn describe_work() {
    metrics::describe_gauge!("proliferate_live_sessions", "Sessions in the memory of this instance.");
    metrics::describe_gauge!(
        "proliferate_prompts_waiting",
        "Prompts in the database that wait for their turn."
    );
    metrics::describe_gauge!("proliferate_writes_waiting", "Writes that wait for SQLite's writer.");
    metrics::describe_gauge!("proliferate_sandboxes", "Sandboxes that run on this host.");
    metrics::describe_gauge!("proliferate_sandbox_memory_bytes", "Memory of all local sandboxes together.");
    metrics::describe_gauge!(
        "proliferate_sandbox_disk_bytes",
        "Files of all local sandboxes together, when last measured."
    );
    metrics::describe_gauge!(
        "proliferate_checkpoint_age_seconds",
        "Time since the last signed checkpoint of the ledger."
    );
    metrics::describe_counter!(
        "proliferate_action_sources_failed_total",
        "Sources of actions that were missing from a catalog because they could not be asked, by kind."
    );
    metrics::describe_counter!("proliferate_turns_total", "Turns that ended, by outcome.");
    metrics::describe_counter!("proliferate_gate_verdicts_total", "Decisions of the gate, by verdict.");
    metrics::describe_counter!(
        "proliferate_model_requests_total",
        "Requests to the model that were counted."
    );
    metrics::describe_counter!("proliferate_model_tokens_total", "Tokens of the model, by kind.");
    metrics::describe_counter!(
        "proliferate_model_cost_microdollars_total",
        "What the model cost by MODEL_PRICES, in millionths of a dollar."
    );
}

/// Counts the usage of one model request.
pub(crate) fn count_usage(used: &store::Usage) {
    let count = |number: i64| u64::try_from(number).unwrap_or_default();
    metrics::counter!("proliferate_model_requests_total").increment(count(used.requests));
    let kinds = [
        ("input", used.input_tokens),
        ("output", used.output_tokens),
        ("cache_read", used.cache_read_tokens),
        ("cache_write", used.cache_write_tokens),
    ];
    for (kind, tokens) in kinds {
        metrics::counter!("proliferate_model_tokens_total", "kind" => kind).increment(count(tokens));
    }
    metrics::counter!("proliferate_model_cost_microdollars_total").increment(count(used.cost_micros));
}

/// A duration in milliseconds, as an integer for JSON.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
