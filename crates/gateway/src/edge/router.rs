//! The table of contents: every route, grouped by who calls it, and what happens around all of them.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::http::header;
use axum::response::IntoResponse as _;
use axum::{Router, middleware, routing};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::RequestBodyTimeoutLayer;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::document::{Document, complete};
use super::{
    contract, cors, create, egress, git_proxy, health, keys, login, me, members, messages, model_proxy,
    observe, secrets, sessions, socket, steer, tickets, tool_calls, tools, workspaces,
};
use crate::app::AppState;

/// All routes with their descriptions.
fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::with_openapi(Document::openapi())
        // Asked by machines.
        .routes(routes!(health::health))
        .routes(routes!(health::ready))
        .routes(routes!(health::metrics))
        // Identity.
        .routes(routes!(me::me))
        .routes(routes!(login::login))
        .routes(routes!(login::logout))
        .routes(routes!(tickets::create))
        .routes(routes!(tickets::revoke))
        .routes(routes!(keys::list, keys::create))
        .routes(routes!(keys::revoke))
        .routes(routes!(members::list, members::add))
        .routes(routes!(members::set_role, members::remove))
        // The vault.
        .routes(routes!(secrets::list))
        .routes(routes!(secrets::set, secrets::remove))
        // What sandboxes reach.
        .routes(routes!(egress::rules, egress::set_rules))
        .routes(routes!(egress::records))
        // What sessions work on.
        .routes(routes!(workspaces::repos, workspaces::add_repo))
        .routes(routes!(workspaces::remove_repo))
        .routes(routes!(workspaces::configurations, workspaces::create_configuration))
        .routes(routes!(
            workspaces::configuration,
            workspaces::change_configuration,
            workspaces::remove_configuration
        ))
        // Sessions.
        .routes(routes!(create::create, sessions::list))
        .routes(routes!(sessions::status))
        .routes(routes!(socket::session, steer::rename, steer::delete))
        .routes(routes!(messages::page))
        .routes(routes!(steer::message))
        .routes(routes!(steer::cancel))
        .routes(routes!(steer::heartbeat))
        .routes(routes!(steer::eager_start))
        .routes(routes!(steer::stop))
        // Called by agents: tools.
        .routes(routes!(tools::callback))
        // The Tool Gateway Contract.
        .routes(routes!(tool_calls::call))
        .routes(routes!(contract::start_run, contract::runs))
        .routes(routes!(contract::run))
        .routes(routes!(contract::finish_run))
        .routes(routes!(contract::audit_events))
        .routes(routes!(contract::artifact))
        .routes(routes!(contract::artifact_content))
        // Called by agents: the model.
        .routes(routes!(model_proxy::messages))
        .routes(routes!(model_proxy::count_tokens))
        .routes(routes!(model_proxy::models))
}

/// All routes, without what they work on. Made once: every sandbox is served its own copy of the service, and
/// describing the API takes longer than starting a sandbox.
static ROUTES: LazyLock<Router<AppState>> = LazyLock::new(|| {
    let router: Router<AppState> = routes().into();
    let json = Bytes::from(api_document().to_json().unwrap_or_default());
    let describe = move || async { ([(header::CONTENT_TYPE, "application/json")], json).into_response() };
    let router = router.route("/openapi.json", routing::get(describe));
    // Git's own protocol, for sandboxes: nothing that a description of ours could say better.
    let router = router.route("/git/{*rest}", routing::get(git_proxy::git).post(git_proxy::git));
    #[cfg(feature = "ui")]
    let router = router
        .route("/", routing::get(super::ui::page))
        .route("/login", routing::get(super::ui::page))
        .route("/ui/{name}", routing::get(super::ui::asset));
    router.fallback(observe::not_found).method_not_allowed_fallback(observe::method_not_allowed)
});

/// The whole service.
pub fn router(app: AppState) -> Router {
    ROUTES
        .clone()
        .layer(RequestBodyTimeoutLayer::new(app.config.client_timeout))
        .layer(CatchPanicLayer::custom(observe::panicked))
        .layer(middleware::from_fn_with_state(app.clone(), cors::cors))
        .layer(middleware::from_fn_with_state(app.clone(), observe::observe))
        .with_state(app)
}

/// The same as sandboxes reach it: what is counted of all of them is none of their business.
pub(crate) fn router_inside(app: AppState) -> Router {
    Router::new().route("/metrics", routing::any(observe::not_found)).fallback_service(router(app))
}

/// The description of the API as it is served.
pub fn api_document() -> utoipa::openapi::OpenApi {
    let mut document = routes().into_openapi();
    complete(&mut document);
    document
}
