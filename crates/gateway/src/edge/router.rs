//! The table of contents: every route, grouped by who calls it, and what happens around all of them.

use std::sync::LazyLock;

use axum::body::Bytes;
use axum::handler::Handler;
use axum::http::header;
use axum::response::{IntoResponse as _, Response};
use axum::routing::MethodRouter;
use axum::{Extension, Router, middleware, routing};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::RequestBodyTimeoutLayer;
use utoipa::OpenApi as _;
use utoipa::openapi::HttpMethod;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::{PathItemExt as _, paste, routes};

use super::document::{Document, complete};
use super::{
    action_modes, body, contract, cors, create, egress, git, health, keys, login, me, members, messages,
    model_proxy, observe, secrets, sessions, socket, steer, tickets, tool_calls, tools, workspaces,
};
use crate::access::Act;
use crate::app::AppState;

/// Every route once with its act, all methods of a path in one line. It serves them and it describes them, but not both at once:
/// the description takes as long as starting a sandbox, and two megabytes, and hardly anybody asks for it.
macro_rules! table {
    ($($($group:ident::$handler:ident => $act:ident),+;)+) => {
        paste! {
            fn routes() -> Router<AppState> {
                let router = Router::new();
                $($(let router = serve::<$group::[<__path_ $handler>], _, _>(router, &$group::$handler, Act::$act);)+)+
                router
            }

            /// Every route with its act, sorted.
            pub fn route_acts() -> Vec<(String, Act)> {
                let mut all = vec![("GET, POST /git/{*rest}".to_owned(), GIT)];
                $($(all.extend(names::<$group::[<__path_ $handler>]>().map(|name| (name, Act::$act)));)+)+
                all.sort_by(|one, other| one.0.cmp(&other.0));
                all
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

/// Serves a handler where its description says. The extractors of `auth` find the act in the request, and refuse one that
/// has none.
fn serve<P: utoipa::Path, H: Handler<T, AppState>, T: 'static>(
    router: Router<AppState>,
    handler: &H,
    act: Act,
) -> Router<AppState> {
    let methods: MethodRouter<AppState> = P::methods()
        .iter()
        .fold(MethodRouter::new(), |methods, method| methods.on(method.to_method_filter(), handler.clone()));
    router.route(&P::path(), methods.route_layer(Extension(act)))
}

fn names<P: utoipa::Path>() -> impl Iterator<Item = String> {
    let method = |method: &HttpMethod| serde_json::to_value(method).ok()?.as_str().map(str::to_uppercase);
    P::methods().into_iter().filter_map(move |one| Some(format!("{} {}", method(&one)?, P::path())))
}

table! {
    // Asked by machines.
    health::health => Public;
    health::ready => Public;
    health::metrics => Public;
    // Identity.
    me::me => Identify;
    login::login => Public;
    login::logout => Identify;
    tickets::create => MakeTicket;
    tickets::revoke => MakeTicket;
    keys::list => ManageOwnKeys, keys::create => ManageOwnKeys;
    keys::revoke => ManageOwnKeys;
    members::list => ReadOrganization, members::add => ManageOrganization;
    members::set_role => ManageRoles, members::remove => ManageOrganization;
    // The vault.
    secrets::list => ReadOrganization;
    secrets::set => ManageOrganization, secrets::remove => ManageOrganization;
    // What sandboxes reach.
    egress::rules => ReadOrganization, egress::set_rules => ManageOrganization;
    egress::records => ReadOrganization;
    // What sessions work on.
    workspaces::repos => ReadWorkspaces, workspaces::add_repo => ManageOrganization;
    workspaces::remove_repo => ManageOrganization;
    workspaces::configurations => ReadWorkspaces, workspaces::create_configuration => MakeConfiguration;
    workspaces::configuration => ReadWorkspaces, workspaces::change_configuration => ChangeConfiguration, workspaces::remove_configuration => ManageOrganization;
    // Sessions.
    create::create => CreateSession, sessions::list => Watch;
    sessions::status => ReadStatus;
    socket::session => ReadStatus, steer::rename => ChangeSession, steer::delete => DeleteSession;
    messages::page => Watch;
    steer::message => Prompt;
    steer::cancel => Steer;
    steer::heartbeat => Steer;
    steer::presence => Watch;
    steer::eager_start => EagerStart;
    steer::stop => ChangeSession;
    // Called by agents: tools.
    tools::callback => CallPlatformTool;
    // The Tool Gateway Contract.
    tool_calls::call => CallTool;
    contract::start_run => StartAgentRun, contract::runs => ReadRuns;
    contract::run => ReadRuns;
    contract::finish_run => FinishRun;
    contract::audit_events => ReadLedger;
    contract::artifact => ReadRuns;
    contract::artifact_content => ReadRuns;
    action_modes::modes => ReadOrganization, action_modes::set_mode => ManageOrganization;
    // Called by agents: the model.
    model_proxy::messages => AskModel;
    model_proxy::count_tokens => AskModel;
    model_proxy::models => AskModel;
}

/// The act of git's own routes, which the table of contents does not describe.
const GIT: Act = Act::UseGitProxy;

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
    let proxy = routing::get(git::git).post(git::git).route_layer(Extension(GIT));
    let router = router.route("/git/{*rest}", proxy);
    let slash = routing::get(socket::session_with_slash).route_layer(Extension(Act::Watch));
    let router = router.route("/proliferate/{id}/", slash);
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
