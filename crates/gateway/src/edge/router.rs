//! The table of contents: every route, grouped by who calls it, and what happens around all of them.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::handler::Handler;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use axum::{Router, middleware, routing};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::RequestBodyTimeoutLayer;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::{PathItemExt as _, paste, routes};

use super::document::{Document, complete};
use super::{
    action_modes, body, contract, cors, create, egress, git_proxy, health, keys, login, me, members,
    messages, model_proxy, observe, secrets, sessions, socket, steer, tickets, tool_calls, tools, workspaces,
};
use crate::app::AppState;

/// Every route once, with all methods of a path in one line. It serves them and it describes them, but not both at once:
/// the description takes as long as starting a sandbox, and two megabytes, and hardly anybody asks for it.
macro_rules! table {
    ($($($group:ident::$handler:ident),+;)+) => {
        paste! {
            fn routes() -> Router<AppState> {
                let router = Router::new();
                $($(let router = serve::<$group::[<__path_ $handler>], _, _>(router, &$group::$handler);)+)+
                router
            }
        }

        /// The description of the API as it is served.
        pub fn api_document() -> utoipa::openapi::OpenApi {
            let router = OpenApiRouter::<AppState>::with_openapi(Document::openapi());
            $(let router = router.routes(routes!($($group::$handler),+));)+
            let mut document = router.into_openapi();
            complete(&mut document);
            document
        }
    };
}

/// Serves a handler where its description says.
fn serve<P: utoipa::Path, H: Handler<T, AppState>, T: 'static>(
    router: Router<AppState>,
    handler: &H,
) -> Router<AppState> {
    let methods = P::methods()
        .iter()
        .fold(MethodRouter::new(), |methods, method| methods.on(method.to_method_filter(), handler.clone()));
    router.route(&P::path(), methods)
}

table! {
    // Asked by machines.
    health::health;
    health::ready;
    health::metrics;
    // Identity.
    me::me;
    login::login;
    login::logout;
    tickets::create;
    tickets::revoke;
    keys::list, keys::create;
    keys::revoke;
    members::list, members::add;
    members::set_role, members::remove;
    // The vault.
    secrets::list;
    secrets::set, secrets::remove;
    // What sandboxes reach.
    egress::rules, egress::set_rules;
    egress::records;
    // What sessions work on.
    workspaces::repos, workspaces::add_repo;
    workspaces::remove_repo;
    workspaces::configurations, workspaces::create_configuration;
    workspaces::configuration, workspaces::change_configuration, workspaces::remove_configuration;
    // Sessions.
    create::create, sessions::list;
    sessions::status;
    socket::session, steer::rename, steer::delete;
    messages::page;
    steer::message;
    steer::cancel;
    steer::heartbeat;
    steer::presence;
    steer::eager_start;
    steer::stop;
    // Called by agents: tools.
    tools::callback;
    // The Tool Gateway Contract.
    tool_calls::call;
    contract::start_run, contract::runs;
    contract::run;
    contract::finish_run;
    contract::audit_events;
    contract::artifact;
    contract::artifact_content;
    action_modes::modes, action_modes::set_mode;
    // Called by agents: the model.
    model_proxy::messages;
    model_proxy::count_tokens;
    model_proxy::models;
}

/// The description as it is sent, for those who ask.
static DESCRIPTION: LazyLock<Bytes> =
    LazyLock::new(|| Bytes::from(api_document().to_json().unwrap_or_default()));

async fn describe() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], DESCRIPTION.clone()).into_response()
}

/// All routes, without what they work on. Made once: every sandbox is served its own copy of the service.
static ROUTES: LazyLock<Router<AppState>> = LazyLock::new(|| {
    let router = routes().route("/openapi.json", routing::get(describe));
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
        .layer(middleware::from_fn(body::count_shares))
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
