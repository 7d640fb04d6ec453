//! `/health`, `/ready` and `/metrics`, for monitoring.

use std::time::Duration;

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use proto::http::{Check, ErrorBody, Health, Readiness};

use super::{ApiError, gauges};
use crate::app::AppState;

/// The timeout of each readiness check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// Answers if the process is alive. Needs no token and ignores one.
#[utoipa::path(get, path = "/health", tag = "operations", responses((status = 200, body = Health)), security(()))]
pub(super) async fn health() -> Json<Health> {
    Json(Health::ok())
}

/// Checks whether everything that this instance depends on is available: database, sandboxes, disk and gate.
#[utoipa::path(get, path = "/ready", tag = "operations", security(()),
    responses((status = 200, body = Readiness), (status = 503, body = Readiness)))]
pub(super) async fn ready(app: AppState) -> Response {
    let database = async { app.store.ping().await.map_err(|error| error.to_string()) };
    let sandboxes = async { app.runtime.sandboxes.check().await.map_err(|error| error.to_string()) };
    let (database, sandboxes, disk) =
        tokio::join!(in_time(database), in_time(sandboxes), in_time(app.process.space.check()));
    let mut checks = vec![
        check("database", app.store.backend(), &database),
        check("sandboxes", app.runtime.sandboxes.name(), &sandboxes),
        check(
            "disk",
            if disk.is_ok() { "the data dir" } else { "the data dir cannot be written: is it full?" },
            &disk,
        ),
    ];
    checks.extend(app.gate.checks().map(|(name, result)| check(name, "the gate", &result)));
    let readiness = Readiness::from_checks(checks);
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

/// Returns all metrics in the text format of Prometheus. No label names an organization, user or session.
#[utoipa::path(get, path = "/metrics", tag = "operations", security(()),
    responses((status = 200, body = String), (status = 404, body = ErrorBody)))]
pub(super) async fn metrics(app: AppState) -> Result<Response, ApiError> {
    let handle =
        app.process.metrics.as_ref().ok_or_else(|| ApiError::not_found("Metrics are counted elsewhere"))?;
    gauges::refresh(&app).await;
    let text = handle.render();
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

/// Fails a check that does not answer within [`CHECK_TIMEOUT`]: a dependency may accept connections and never respond.
async fn in_time(ping: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    tokio::time::timeout(CHECK_TIMEOUT, ping).await.unwrap_or_else(|_| Err("it does not answer".to_owned()))
}

fn check(name: &str, what: &str, result: &Result<(), String>) -> Check {
    // The reason may name hosts, so it is only logged. The client learns which part is down.
    if let Err(reason) = result {
        tracing::warn!(part = name, reason, "not ready");
    }
    Check { name: name.to_owned(), ok: result.is_ok(), detail: what.to_owned() }
}
