//! The table of routes, grouped by who calls them, and the middleware around them.

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

use super::auth::InsideSandbox;
use super::document::{Document, complete};
use super::{
    action_modes, actions, automation_modes, automation_runs, automations, body, changes, connectors,
    contract, cors, create, databases, device_login, egress, environment, exec, files, git, health, hooks,
    inbox, inspect, integrations, invocations, keys, login, mcp, me, members, messages, model_proxy,
    notifications, observe, preferences, questions, secret_files, secrets, services, sessions, setup, socket,
    steer, tickets, tool_calls, tools, usage, verification_media, workspaces,
};
use crate::access::Act;
use crate::app::AppState;

/// Generates the router and the description of the API from one table of routes and their acts. The methods of a path
/// are on one line. The description is built only on request: it takes two megabytes, and as long as starting a
/// sandbox, and is rarely needed.
macro_rules! table {
    ($($($group:ident::$handler:ident => $act:ident),+;)+) => {
        paste! {
            fn routes() -> Router<AppState> {
                let router = Router::new();
                $($(let router = serve::<$group::[<__path_ $handler>], _, _>(router, &$group::$handler, Act::$act);)+)+
                router
            }

            /// Every route (method and path) with its act, sorted.
            pub fn route_acts() -> Vec<(String, Act)> {
                let mut all = vec![("GET, POST /git/{*rest}".to_owned(), GIT_PROXY_ACT)];
                $($(all.extend(names::<$group::[<__path_ $handler>]>().map(|name| (name, Act::$act)));)+)+
                all.sort_by(|one, other| one.0.cmp(&other.0));
                all
            }
        }

        /// The description of the API, as `/openapi.json` serves it.
        pub fn api_document() -> utoipa::openapi::OpenApi {
            let router = OpenApiRouter::<AppState>::with_openapi(Document::openapi());
            $(let router = router.routes(routes!($($group::$handler),+));)+
            let mut document = router.into_openapi();
            tools::describe(&mut document);
            complete(&mut document);
            document
        }
    };
}

/// Adds a handler to the router, under the path and methods of its `utoipa` description. The act becomes an extension
/// of the request, where the extractors of `auth` read it; they refuse requests without one.
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
    // Health and metrics.
    health::health => Public;
    health::ready => Public;
    health::metrics => Public;
    // Identity.
    me::me => Identify;
    login::login => Public;
    login::logout => Identify;
    device_login::start => Public;
    device_login::poll => Public;
    device_login::show => ManageOwnKeys;
    device_login::approve => ManageOwnKeys;
    device_login::deny => ManageOwnKeys;
    tickets::create => MakeTicket;
    tickets::revoke => MakeTicket;
    keys::list => ManageOwnKeys, keys::create => ManageOwnKeys;
    keys::revoke => ManageOwnKeys;
    members::list => ReadOrganization, members::add => ManageOrganization;
    members::set_role => ManageRoles, members::remove => ManageOrganization;
    // The vault.
    secrets::list => ReadOrganization;
    secrets::set => ManageOrganization, secrets::remove => ManageOrganization;
    secret_files::list => ReadOrganization, secret_files::set => ManageOrganization, secret_files::remove => ManageOrganization;
    // Egress of sandboxes.
    egress::rules => ReadOrganization, egress::set_rules => ManageOrganization;
    egress::records => ReadOrganization;
    usage::usage => ReadOrganization;
    // Repositories and configurations.
    workspaces::repos => ReadWorkspaces, workspaces::add_repo => ManageOrganization;
    workspaces::change_repo => ManageOrganization, workspaces::remove_repo => ManageOrganization;
    workspaces::configurations => ReadWorkspaces, workspaces::create_configuration => MakeConfiguration;
    workspaces::configuration => ReadWorkspaces, workspaces::change_configuration => ChangeConfiguration, workspaces::remove_configuration => ManageOrganization;
    // Connectors.
    connectors::list => ManageOrganization, connectors::create => ManageOrganization;
    connectors::validate => ManageOrganization;
    connectors::get => ManageOrganization, connectors::change => ManageOrganization, connectors::remove => ManageOrganization;
    connectors::review => ManageOrganization;
    // Databases of agents.
    databases::list => ManageOrganization, databases::create => ManageOrganization;
    databases::validate => ManageOrganization;
    databases::get => ManageOrganization, databases::change => ManageOrganization, databases::remove => ManageOrganization;
    // Notifications.
    notifications::get => ManageOrganization, notifications::set => ManageOrganization, notifications::remove => ManageOrganization;
    notifications::test => ManageOrganization;
    // Automations.
    automations::list => ReadOrganization, automations::create => ManageOrganization;
    automations::get => ReadOrganization, automations::change => ManageOrganization, automations::remove => ManageOrganization;
    automations::trigger_events => ReadOrganization;
    automation_runs::of_automation => ReadOrganization, automation_runs::start => RunAutomation;
    automation_runs::list => ReadOrganization;
    automation_runs::get => ReadOrganization;
    automation_runs::cancel => RunAutomation;
    automation_runs::rerun => RunAutomation;
    automation_runs::assign => RunAutomation;
    automation_runs::resolve => RunAutomation;
    hooks::receive => Public;
    // Integrations.
    integrations::list => ReadOrganization, integrations::add => ManageOrganization;
    integrations::change => ManageOrganization, integrations::remove => ManageOrganization;
    integrations::of_automation => ReadOrganization, integrations::choose_for_automation => ManageOrganization;
    // Sessions.
    create::create => CreateSession, sessions::list => Watch;
    sessions::status => ReadStatus;
    socket::session => ReadStatus, steer::rename => ChangeSession, steer::delete => DeleteSession;
    messages::page => Watch;
    verification_media::media => Watch;
    steer::message => Prompt;
    steer::set_model => Prompt;
    steer::cancel => Steer;
    questions::list => Watch;
    inbox::list => Watch;
    changes::follow => Watch;
    questions::answer => Prompt;
    steer::heartbeat => Steer;
    steer::presence => Watch;
    steer::eager_start => EagerStart;
    steer::stop => ChangeSession;
    // Work in the sandbox of a session.
    exec::exec => EnterSandbox;
    files::list => EnterSandbox;
    files::content => EnterSandbox, files::write => EnterSandbox;
    inspect::diff => EnterSandbox;
    inspect::logs => EnterSandbox;
    setup::finish => ChangeSession;
    // The app of a session.
    environment::show => UseServices, environment::submit => ChangeSession;
    environment::apply => UseServices;
    environment::scrub => UseServices;
    services::list => UseServices, services::start => UseServices;
    services::stop => UseServices;
    services::restart => UseServices;
    services::logs => UseServices;
    services::test => ChangeSession;
    services::expose => UseServices;
    // Called by agents: tools.
    tools::callback => CallPlatformTool;
    // Actions.
    actions::available => ReadActions;
    actions::guide => ReadActions;
    preferences::list => ChangeOwnPreferences, preferences::set => ChangeOwnPreferences;
    invocations::invoke => InvokeAction;
    invocations::list => ReadActions;
    invocations::get => ReadActions;
    invocations::approve => DecideInvocation;
    invocations::deny => DecideInvocation;
    invocations::get_any => ReadActions;
    invocations::approve_any => DecideInvocation;
    invocations::deny_any => DecideInvocation;
    mcp::serve => UseMcp;
    // The Tool Gateway Contract.
    tool_calls::call => CallTool;
    contract::start_run => StartAgentRun, contract::runs => ReadRuns;
    contract::run => ReadRuns;
    contract::finish_run => FinishRun;
    contract::audit_events => ReadLedger;
    contract::artifact => ReadRuns;
    contract::artifact_content => ReadRuns;
    action_modes::modes => ReadOrganization, action_modes::set_mode => SetActionModes;
    action_modes::unset_mode => SetActionModes;
    automation_modes::list => ReadOrganization, automation_modes::set => SetActionModes;
    automation_modes::unset => SetActionModes;
    // Called by agents: the model.
    model_proxy::messages => AskModel;
    model_proxy::chat_completions => AskModel;
    model_proxy::count_tokens => AskModel;
    model_proxy::models => AskModel;
}

/// The act of the git proxy's routes, which are not in the table.
const GIT_PROXY_ACT: Act = Act::UseGitProxy;

/// The serialized description of the API, built on the first request.
static OPENAPI_JSON: LazyLock<Bytes> =
    LazyLock::new(|| Bytes::from(api_document().to_json().unwrap_or_default()));

async fn describe() -> Response {
    ([(header::CONTENT_TYPE, "application/json")], OPENAPI_JSON.clone()).into_response()
}

/// All routes without their state. Built once, because every sandbox is served by its own clone of the router.
static ROUTES: LazyLock<Router<AppState>> = LazyLock::new(|| {
    let router = routes().route("/openapi.json", routing::get(describe));
    // Not in the OpenAPI document: this is git's own smart HTTP protocol, which only sandboxes use.
    let proxy = routing::get(git::git).post(git::git).route_layer(Extension(GIT_PROXY_ACT));
    let router = router.route("/git/{*rest}", proxy);
    let slash = routing::get(socket::session_with_slash).route_layer(Extension(Act::Watch));
    let router = router.route("/proliferate/{id}/", slash);
    #[cfg(feature = "ui")]
    let router = router
        .route("/", routing::get(super::ui::page))
        .route("/login", routing::get(super::ui::page))
        .route("/device", routing::get(super::ui::page))
        .route("/ui/{name}", routing::get(super::ui::asset));
    router.fallback(observe::not_found).method_not_allowed_fallback(observe::method_not_allowed)
});

/// The complete service: all routes and the middleware around them.
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

/// The service for sandboxes. It has no `/metrics`, because a sandbox must not see numbers about others.
pub(crate) fn router_inside(app: AppState) -> Router {
    let inside = Router::new().route("/metrics", routing::any(observe::not_found));
    inside.fallback_service(router(app)).layer(Extension(InsideSandbox))
}
