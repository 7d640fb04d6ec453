//! What machines ask about us: alive, ready, and how it goes.

use axum::Json;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use proto::http::{Check, Health, Readiness};

use super::ApiError;
use crate::app::AppState;
use crate::config::SandboxProvider;
use crate::coord::Coord;

/// Whether the process answers at all. Needs no token and ignores one.
#[utoipa::path(get, path = "/health", tag = "operations", responses((status = 200, body = Health)), security(()))]
pub(super) async fn health() -> Json<Health> {
    Json(Health::ok())
}

/// Whether everything this instance stands on answers.
#[utoipa::path(get, path = "/ready", tag = "operations", security(()),
    responses((status = 200, body = Readiness), (status = 503, body = Readiness)))]
pub(super) async fn ready(app: AppState) -> Response {
    let database = app.store.ping().await.map_err(|error| error.to_string());
    let coordination = app.coord.ping().await;
    let kind = match app.coord {
        Coord::Local => "this instance alone",
        Coord::Redis(_) => "Redis",
    };
    let readiness = Readiness::of(vec![
        check("database", app.store.backend(), database),
        check("coordination", kind, coordination),
        provider(&app),
    ]);
    let status = if readiness.ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(readiness)).into_response()
}

/// Counters and latencies in the text format of Prometheus; no label names an organisation, user or session.
#[utoipa::path(get, path = "/metrics", tag = "operations", responses((status = 200, body = String)), security(()))]
pub(super) async fn metrics(app: AppState) -> Result<Response, ApiError> {
    let handle = app.metrics.as_ref().ok_or_else(|| ApiError::not_found("Metrics are counted elsewhere"))?;
    let text = handle.render();
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response())
}

fn check(name: &str, what: &str, result: Result<(), String>) -> Check {
    // The reason may name hosts; it is for the log, the client learns which part is down.
    if let Err(reason) = &result {
        tracing::warn!(part = name, reason, "not ready");
    }
    Check { name: name.to_owned(), ok: result.is_ok(), detail: what.to_owned() }
}

fn provider(app: &AppState) -> Check {
    match app.config.sandbox_provider {
        SandboxProvider::Local => {
            let found = app.config.program("bwrap").map(drop);
            check("sandboxes", "local (bubblewrap)", found.ok_or_else(|| "bwrap is not on the PATH".to_owned()))
        }
    }
}
