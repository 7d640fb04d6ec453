//! `/v1/connectors`: the remote MCP servers of an organization, and the review of what they offer.

mod offer;

use axum::Json;
use axum::http::StatusCode;
use gate::{AdminChange, Subject};
use proto::http::{
    ChangeConnector, ConnectorAuth, ConnectorDetail, ConnectorEntry, ConnectorList, ConnectorOffer,
    CreateConnector, ErrorBody, OkReply, ReviewConnector, ReviewReply, RiskPolicy,
};
use proto::{ConnectorId, text};
use store::{Change, Connector, ConnectorChange, ConnectorTool, GateWrite, ToolPin};
use url::Url;

use super::administer::{admin_event, administer};
use super::auth::User;
use super::params::Path;
use super::secrets::require_credential;
use super::{ApiError, Body};
use crate::app::AppState;

/// The maximum number of connectors of an organization.
const MAX_CONNECTORS: usize = 100;
const MAX_NAME: usize = 100;
const MAX_SCOPE: usize = 1000;

/// Lists the connectors of the organization, without asking their servers.
#[utoipa::path(get, path = "/v1/connectors", tag = "connectors", responses((status = 200, body = ConnectorList)))]
pub(super) async fn list(app: AppState, admin: User) -> Result<Json<ConnectorList>, ApiError> {
    let mut connectors = Vec::new();
    for connector in app.store.connectors(admin.org).await? {
        let decided = app.store.connector_tools(admin.org, connector.id).await?;
        connectors.push(entry(connector, &decided));
    }
    Ok(Json(ConnectorList { connectors }))
}

/// Connects a remote MCP server. Agents can use its tools as the modes of its actions say; a tool that nobody reviewed
/// needs approval.
#[utoipa::path(post, path = "/v1/connectors", tag = "connectors", request_body = CreateConnector,
    responses((status = 201, body = ConnectorEntry), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn create(
    app: AppState,
    admin: User,
    Body(request): Body<CreateConnector>,
) -> Result<(StatusCode, Json<ConnectorEntry>), ApiError> {
    if app.store.connectors(admin.org).await?.len() >= MAX_CONNECTORS {
        return Err(ApiError::bad_request(format!(
            "an organization has at most {MAX_CONNECTORS} connectors"
        )));
    }
    let overrides = request.risk_policy.overrides.clone();
    let connector = new_connector(&app, &admin, request).await?;
    let risks: Vec<_> = overrides.into_iter().map(|(tool, risk)| (tool, Some(risk))).collect();
    check_tools(&risks)?;
    let id = connector.id;
    let mut details = vec![format!("connector {id}"), origin(&connector.url)];
    details.extend(risks.iter().map(set_risk));
    let store = administer(&app, &admin, Subject::Connector, "add", details.join(", "));
    store.create_connector(connector, risks).await?;
    let (connector, decided) = find_connector(&app, &admin, id).await?;
    app.connectors.prepare_lists(vec![connector.clone()]);
    Ok((StatusCode::CREATED, Json(entry(connector, &decided))))
}

/// Shows a connector with the tools that its server offers now, their modes, and how they differ from what was reviewed.
#[utoipa::path(get, path = "/v1/connectors/{connectorId}", tag = "connectors", params(("connectorId" = ConnectorId, Path)),
    responses((status = 200, body = ConnectorDetail), (status = 404, body = ErrorBody)))]
pub(super) async fn get(
    app: AppState,
    admin: User,
    Path(id): Path<ConnectorId>,
) -> Result<Json<ConnectorDetail>, ApiError> {
    let (connector, decided) = find_connector(&app, &admin, id).await?;
    let offer = offer::of(&app, &connector, &decided).await?;
    Ok(Json(ConnectorDetail { connector: entry(connector, &decided), offer }))
}

/// Changes a connector. If its address changes, none of its tools counts as reviewed any more.
#[utoipa::path(patch, path = "/v1/connectors/{connectorId}", tag = "connectors", params(("connectorId" = ConnectorId, Path)),
    request_body = ChangeConnector,
    responses((status = 200, body = ConnectorEntry), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn change(
    app: AppState,
    admin: User,
    Path(id): Path<ConnectorId>,
    Body(request): Body<ChangeConnector>,
) -> Result<Json<ConnectorEntry>, ApiError> {
    let ChangeConnector { name, url, auth, default_risk, enabled, overrides } = request;
    let risks: Vec<_> = overrides.into_iter().collect();
    check_tools(&risks)?;
    let change = ConnectorChange {
        name: name.as_deref().map(check_name).transpose()?,
        url: url.as_deref().map(|url| check_url(&app, "url", url)).transpose()?,
        auth: match auth {
            Some(auth) => Some(check_auth(&app, &admin, auth).await?),
            None => None,
        },
        default_risk,
        enabled,
        risks,
    };
    let store = administer(&app, &admin, Subject::Connector, "change", describe_change(id, &change));
    store.update_connector(admin.org, id, change, app.clock.now()).await?;
    let (connector, decided) = find_connector(&app, &admin, id).await?;
    app.connectors.prepare_lists(vec![connector.clone()]);
    Ok(Json(entry(connector, &decided)))
}

/// Removes a connector.
#[utoipa::path(delete, path = "/v1/connectors/{connectorId}", tag = "connectors", params(("connectorId" = ConnectorId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn remove(
    app: AppState,
    admin: User,
    Path(id): Path<ConnectorId>,
) -> Result<Json<OkReply>, ApiError> {
    let store = administer(&app, &admin, Subject::Connector, "remove", format!("connector {id}"));
    store.delete_connector(admin.org, id).await?;
    Ok(Json(OkReply::OK))
}

/// Asks a server for its tools without storing a connector. The request is recorded before it is sent, because it sends a
/// secret to an address that the caller names.
#[utoipa::path(post, path = "/v1/connectors/validate", tag = "connectors", request_body = CreateConnector,
    responses((status = 200, body = ConnectorOffer), (status = 400, body = ErrorBody)))]
pub(super) async fn validate(
    app: AppState,
    admin: User,
    Body(request): Body<CreateConnector>,
) -> Result<Json<ConnectorOffer>, ApiError> {
    let details = destination(&request);
    let connector = new_connector(&app, &admin, request).await?;
    let event = admin_event(&app, &admin, &AdminChange::new(Subject::Connector, "validate", details));
    app.store.gate_write(GateWrite::new(Change::Nothing, vec![event])).await?;
    Ok(Json(offer::of_unstored(&app, &connector).await?))
}

/// Pins the definitions that an admin has reviewed. A definition that changed since the admin saw it is refused.
#[utoipa::path(post, path = "/v1/connectors/{connectorId}/review", tag = "connectors",
    params(("connectorId" = ConnectorId, Path)), request_body = ReviewConnector,
    responses((status = 200, body = ReviewReply), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn review(
    app: AppState,
    admin: User,
    Path(id): Path<ConnectorId>,
    Body(request): Body<ReviewConnector>,
) -> Result<Json<ReviewReply>, ApiError> {
    let (connector, _) = find_connector(&app, &admin, id).await?;
    let listing = app.connectors.tools_now(&connector).await;
    let listing =
        listing.map_err(|error| ApiError::conflict(format!("the connector cannot be asked: {error}")))?;
    let mut pins = Vec::new();
    for (name, hash) in request.tools {
        let offered = listing.find(&name).filter(|tool| tool.hash().to_string() == hash);
        let Some(tool) = offered else {
            return Err(ApiError::conflict(
                "a definition is not the one that you reviewed: look at it again",
            ));
        };
        let (reviewed_by, reviewed_at) = (admin.id.to_string(), app.clock.now());
        pins.push((name, ToolPin { hash, definition: tool.raw(), reviewed_by, reviewed_at }));
    }
    let pinned: Vec<String> = pins.iter().map(|(name, _)| name.clone()).collect();
    let shown: Vec<String> = pins.iter().map(|(name, pin)| format!("{name} {}", pin.hash)).collect();
    let details = format!("connector {id}, {}", shown.join(", "));
    let store = administer(&app, &admin, Subject::Connector, "review", details);
    store.pin_connector_tools(&connector, pins).await?;
    Ok(Json(ReviewReply { pinned }))
}

async fn find_connector(
    app: &AppState,
    admin: &User,
    id: ConnectorId,
) -> Result<(Connector, Vec<ConnectorTool>), ApiError> {
    let found = app.store.connector(admin.org, id).await?;
    let connector = found.ok_or_else(|| ApiError::not_found("This connector does not exist"))?;
    let decided = app.store.connector_tools(admin.org, id).await?;
    Ok((connector, decided))
}

/// A connector that is not stored yet.
async fn new_connector(
    app: &AppState,
    admin: &User,
    request: CreateConnector,
) -> Result<Connector, ApiError> {
    let at = app.clock.now();
    Ok(Connector {
        id: app.rng.uuid(at).into(),
        org_id: admin.org,
        name: check_name(&request.name)?,
        url: check_url(app, "url", &request.url)?,
        auth: check_auth(app, admin, request.auth).await?,
        default_risk: request.risk_policy.default_risk.unwrap_or(proto::Risk::Write),
        enabled: true,
        created_by: Some(admin.id),
        created_at: at,
        updated_at: at,
    })
}

/// The part of an address that the ledger may keep: path and query may contain a key.
fn origin(url: &str) -> String {
    Url::parse(url).map_or_else(|_| String::new(), |url| url.origin().ascii_serialization())
}

/// Where a request goes and which secrets it carries, for the ledger: origins of addresses and names of secrets.
fn destination(request: &CreateConnector) -> String {
    let server = origin(&request.url);
    match &request.auth {
        ConnectorAuth::None => server,
        ConnectorAuth::Bearer { secret_key } | ConnectorAuth::CustomHeader { secret_key, .. } => {
            format!("{server}, secret {secret_key}")
        }
        ConnectorAuth::Oauth { token_url, client_id_key, client_secret_key, .. } => {
            let token_server = origin(token_url);
            format!("{server}, secrets {client_id_key} and {client_secret_key} at {token_server}")
        }
    }
}

fn check_name(name: &str) -> Result<String, ApiError> {
    let name = name.trim();
    if text::is_line(name, MAX_NAME) {
        Ok(name.to_owned())
    } else {
        Err(ApiError::bad_request("name must have 1 to 100 characters on one line"))
    }
}

fn check_url(app: &AppState, field: &str, url: &str) -> Result<String, ApiError> {
    let checked = app.connectors.check_url(url);
    checked.map(|url| url.to_string()).map_err(|problem| ApiError::bad_request(format!("{field}: {problem}")))
}

async fn check_auth(
    app: &AppState,
    admin: &User,
    mut auth: ConnectorAuth,
) -> Result<serde_json::Value, ApiError> {
    let require = async |field: &str, name: &str| require_credential(app, admin.org, field, name).await;
    match &mut auth {
        ConnectorAuth::None => {}
        ConnectorAuth::Bearer { secret_key } => require("auth.secretKey", secret_key).await?,
        ConnectorAuth::CustomHeader { secret_key, header_name } => {
            let problem = |error| ApiError::bad_request(format!("auth.headerName: {error}"));
            mcp::check_header_name(header_name).map_err(problem)?;
            require("auth.secretKey", secret_key).await?;
        }
        ConnectorAuth::Oauth { token_url, client_id_key, client_secret_key, scope } => {
            *token_url = check_url(app, "auth.tokenUrl", token_url)?;
            require("auth.clientIdKey", client_id_key).await?;
            require("auth.clientSecretKey", client_secret_key).await?;
            if scope
                .as_deref()
                .is_some_and(|scope| scope.len() > MAX_SCOPE || scope.contains(char::is_control))
            {
                return Err(ApiError::bad_request(
                    "auth.scope must have at most 1000 characters on one line",
                ));
            }
        }
    }
    check_header_secret(app, admin, &auth).await?;
    serde_json::to_value(auth).map_err(|error| ApiError::internal(error.to_string()))
}

/// Refuses a secret that no header can carry; otherwise only the first call would find out.
async fn check_header_secret(app: &AppState, admin: &User, auth: &ConnectorAuth) -> Result<(), ApiError> {
    let (ConnectorAuth::Bearer { secret_key } | ConnectorAuth::CustomHeader { secret_key, .. }) = auth else {
        return Ok(());
    };
    let checked = app.connectors.check_header_secret(admin.org, secret_key).await;
    match checked.map_err(|error| ApiError::internal(error.to_string()))? {
        None => Ok(()),
        Some(problem) => Err(ApiError::bad_request(format!(
            "auth.secretKey: the value of {secret_key} cannot be used: {problem}"
        ))),
    }
}

fn check_tools(risks: &[(String, Option<proto::Risk>)]) -> Result<(), ApiError> {
    let fits = |name: &str| {
        (1..=mcp::MAX_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
    };
    let few = risks.len() <= mcp::MAX_TOOLS;
    if few && risks.iter().all(|(tool, _)| fits(tool)) {
        return Ok(());
    }
    Err(ApiError::bad_request("overrides: the names of at most 500 tools, each with 1 to 128 characters"))
}

/// The change for the ledger: the names of fields, and the origin of the address.
fn describe_change(id: ConnectorId, change: &ConnectorChange) -> String {
    let ConnectorChange { name, url, auth, default_risk, enabled, risks } = change;
    let mut parts = vec![format!("connector {id}")];
    parts.extend(name.is_some().then(|| "name".to_owned()));
    parts.extend(url.as_ref().map(|url| format!("url at {}", origin(url))));
    parts.extend(auth.is_some().then(|| "authentication".to_owned()));
    parts.extend(default_risk.map(|risk| format!("default risk {}", risk.as_str())));
    parts.extend(enabled.map(|enabled| if enabled { "enabled".to_owned() } else { "disabled".to_owned() }));
    parts.extend(risks.iter().map(set_risk));
    parts.join(", ")
}

fn set_risk((tool, risk): &(String, Option<proto::Risk>)) -> String {
    format!("risk of {tool}: {}", risk.map_or("default", proto::Risk::as_str))
}

fn entry(connector: Connector, decided: &[ConnectorTool]) -> ConnectorEntry {
    let overrides = decided.iter().filter_map(|tool| Some((tool.tool.clone(), tool.risk?))).collect();
    ConnectorEntry {
        id: connector.id,
        name: connector.name,
        transport: "remote_http".to_owned(),
        url: connector.url,
        auth: serde_json::from_value(connector.auth).unwrap_or(ConnectorAuth::None),
        risk_policy: RiskPolicy { default_risk: Some(connector.default_risk), overrides },
        enabled: connector.enabled,
        created_at: connector.created_at,
        updated_at: connector.updated_at,
    }
}
