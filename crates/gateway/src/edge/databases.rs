//! `/v1/databases`: the databases that agents of an organization may query, and the queries that are their actions.

use axum::Json;
use axum::http::StatusCode;
use databases::check_queries;
use gate::{AdminChange, Subject, mode_of};
use ledger::Redactor;
use policy::ModeKey;
use proto::http::{
    ChangeDatabase, CreateDatabase, DatabaseActionEntry, DatabaseCheck, DatabaseDetail, DatabaseEntry,
    DatabaseLimits, DatabaseList, DatabaseQuery, DatabaseTarget, ErrorBody, OkReply,
};
use proto::{ActionMode, DatabaseId, FreeForm, ModeSource, Risk, text};
use serde::Serialize;
use serde_json::Value;
use store::{ActionModes, Change, DatabaseChange, DatabaseSource, GateWrite};

use super::administer::{admin_event, administer};
use super::auth::User;
use super::params::Path;
use super::secrets::require_credential;
use super::{ApiError, Body};
use crate::app::AppState;
use crate::databases::{Databases, Definition, QueryError};
use crate::sources::{compile_schema, database_actions};

/// The maximum number of databases of an organization.
const MAX_DATABASES: usize = 50;
/// The maximum size of the queries of one database, which every catalog of an agent contains.
const MAX_QUERIES: usize = 128 * 1024;
const MAX_NAME: usize = 100;

/// Lists the databases of the organization, without connecting to them.
#[utoipa::path(get, path = "/v1/databases", tag = "databases", responses((status = 200, body = DatabaseList)))]
pub(super) async fn list(app: AppState, admin: User) -> Result<Json<DatabaseList>, ApiError> {
    let databases = app.store.databases(admin.org).await?.into_iter().map(entry).collect::<Result<_, _>>()?;
    Ok(Json(DatabaseList { databases }))
}

/// Connects a database. Its queries are actions of agents, as the modes of the organization say. It is stored only if it can
/// be queried now, by a role that can only read.
#[utoipa::path(post, path = "/v1/databases", tag = "databases", request_body = CreateDatabase,
    responses((status = 201, body = DatabaseEntry), (status = 400, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(super) async fn create(
    app: AppState,
    admin: User,
    Body(request): Body<CreateDatabase>,
) -> Result<(StatusCode, Json<DatabaseEntry>), ApiError> {
    if app.store.databases(admin.org).await?.len() >= MAX_DATABASES {
        return Err(ApiError::bad_request(format!("an organization has at most {MAX_DATABASES} databases")));
    }
    let details = destination(&request.target);
    let database = new_database(&app, &admin, request)?;
    check_connection(&app, &admin, &database, &details).await?;
    let details = format!("database {}, {details}, free-form SQL {}", database.id, database.free_form);
    let store = administer(&app, &admin, Subject::DatabaseSource, "add", details);
    store.create_database(database.clone()).await?;
    Ok((StatusCode::CREATED, Json(entry(database)?)))
}

/// Shows a database with its actions and their modes, and whether it can be queried now.
#[utoipa::path(get, path = "/v1/databases/{databaseId}", tag = "databases", params(("databaseId" = DatabaseId, Path)),
    responses((status = 200, body = DatabaseDetail), (status = 404, body = ErrorBody)))]
pub(super) async fn get(
    app: AppState,
    admin: User,
    Path(id): Path<DatabaseId>,
) -> Result<Json<DatabaseDetail>, ApiError> {
    let database = find_database(&app, &admin, id).await?;
    let modes = app.store.all_action_modes(admin.org, None).await?;
    let listed = database_actions(&database).map_err(|error| ApiError::internal(error.to_string()))?;
    let actions =
        listed.into_iter().map(|(name, risk, key)| action_entry(name, risk, &key, &modes)).collect();
    let check = outcome(app.databases.check(&database).await);
    Ok(Json(DatabaseDetail { database: entry(database)?, actions, check }))
}

/// Changes a database. If the place changes, it is stored only if it can be queried there.
#[utoipa::path(patch, path = "/v1/databases/{databaseId}", tag = "databases", params(("databaseId" = DatabaseId, Path)),
    request_body = ChangeDatabase,
    responses((status = 200, body = DatabaseEntry), (status = 400, body = ErrorBody), (status = 404, body = ErrorBody)))]
pub(super) async fn change(
    app: AppState,
    admin: User,
    Path(id): Path<DatabaseId>,
    Body(request): Body<ChangeDatabase>,
) -> Result<Json<DatabaseEntry>, ApiError> {
    let mut database = find_database(&app, &admin, id).await?;
    let ChangeDatabase { name, target, queries, free_form, limits, enabled } = request;
    let change = DatabaseChange {
        name: name.map(check_name).transpose()?,
        target: target.map(|target| check_target(&app, target)).transpose()?,
        queries: queries.map(|queries| checked_queries(&queries)).transpose()?,
        free_form,
        limits: limits.map(check_limits).transpose()?,
        enabled,
    };
    if let Some(target) = &change.target {
        database.target = target.clone();
        let details = destination(&parse_definition(&database)?.target);
        check_connection(&app, &admin, &database, &details).await?;
    }
    let details = describe_change(id, &change, &database)?;
    let store = administer(&app, &admin, Subject::DatabaseSource, "change", details);
    store.update_database(admin.org, id, change, app.clock.now()).await?;
    Ok(Json(entry(find_database(&app, &admin, id).await?)?))
}

/// Takes a database away from agents. The database itself stays as it is.
#[utoipa::path(delete, path = "/v1/databases/{databaseId}", tag = "databases", params(("databaseId" = DatabaseId, Path)),
    responses((status = 200, body = OkReply), (status = 404, body = ErrorBody)))]
pub(super) async fn remove(
    app: AppState,
    admin: User,
    Path(id): Path<DatabaseId>,
) -> Result<Json<OkReply>, ApiError> {
    let store = administer(&app, &admin, Subject::DatabaseSource, "remove", format!("database {id}"));
    store.delete_database(admin.org, id).await?;
    Ok(Json(OkReply::OK))
}

/// Checks whether a database could be stored: that it can be queried, by a role that can only read, and that its queries are
/// well-formed.
#[utoipa::path(post, path = "/v1/databases/validate", tag = "databases", request_body = CreateDatabase,
    responses((status = 200, body = DatabaseCheck), (status = 400, body = ErrorBody)))]
pub(super) async fn validate(
    app: AppState,
    admin: User,
    Body(request): Body<CreateDatabase>,
) -> Result<Json<DatabaseCheck>, ApiError> {
    let details = destination(&request.target);
    let database = new_database(&app, &admin, request)?;
    record_check(&app, &admin, &details).await?;
    Ok(Json(outcome(app.databases.check(&database).await)))
}

fn action_entry(name: String, risk: policy::Risk, key: &ModeKey, modes: &ActionModes) -> DatabaseActionEntry {
    let mode = mode_of(key, modes, risk, None, None);
    DatabaseActionEntry {
        name,
        risk_level: Risk::try_from(risk.as_str().to_owned()).unwrap_or(Risk::Danger),
        key: key.as_str().to_owned(),
        mode: ActionMode::try_from(mode.mode.as_str().to_owned()).unwrap_or(ActionMode::Deny),
        mode_source: ModeSource::try_from(mode.source.as_str().to_owned())
            .unwrap_or(ModeSource::InferredDefault),
    }
}

async fn find_database(app: &AppState, admin: &User, id: DatabaseId) -> Result<DatabaseSource, ApiError> {
    let found = app.store.database(admin.org, id).await?;
    found.ok_or_else(|| ApiError::not_found("This database does not exist"))
}

async fn check_connection(
    app: &AppState,
    admin: &User,
    database: &DatabaseSource,
    details: &str,
) -> Result<(), ApiError> {
    if let DatabaseTarget::Postgres { secret_key: Some(key), .. } = parse_definition(database)?.target {
        require_credential(app, admin.org, "target.secretKey", &key).await?;
    }
    record_check(app, admin, details).await?;
    let checked = app.databases.check(database).await;
    checked.map_err(|error| {
        let problem = error.shown(&Redactor::default());
        ApiError::bad_request(format!("the database cannot be used: {problem}"))
    })
}

/// Records a check before it is made, because it sends a secret to a host that the caller names.
async fn record_check(app: &AppState, admin: &User, details: &str) -> Result<(), ApiError> {
    let event = admin_event(app, admin, &AdminChange::new(Subject::DatabaseSource, "validate", details));
    app.store.gate_write(GateWrite::new(Change::Nothing, vec![event])).await?;
    Ok(())
}

fn outcome(checked: Result<(), QueryError>) -> DatabaseCheck {
    let error = checked.err().map(|error| error.shown(&Redactor::default()));
    DatabaseCheck { ok: error.is_none(), error }
}

/// A database that is not stored yet.
fn new_database(app: &AppState, admin: &User, request: CreateDatabase) -> Result<DatabaseSource, ApiError> {
    let at = app.clock.now();
    Ok(DatabaseSource {
        id: app.rng.uuid(at).into(),
        org_id: admin.org,
        name: check_name(request.name)?,
        target: check_target(app, request.target)?,
        queries: checked_queries(&request.queries)?,
        free_form: request.free_form,
        limits: check_limits(request.limits)?,
        enabled: true,
        created_by: Some(admin.id),
        created_at: at,
        updated_at: at,
    })
}

fn check_name(name: String) -> Result<String, ApiError> {
    if !name.trim().is_empty() && text::is_line(&name, MAX_NAME) {
        return Ok(name);
    }
    Err(ApiError::bad_request("name must have 1 to 100 characters on one line"))
}

fn check_target(app: &AppState, target: DatabaseTarget) -> Result<Value, ApiError> {
    let checked = app.databases.check_target(target);
    json(&checked.map_err(|problem| ApiError::bad_request(format!("target: {problem}")))?)
}

fn check_limits(limits: DatabaseLimits) -> Result<Value, ApiError> {
    let checked = Databases::check_limits(limits);
    json(&checked.map_err(|problem| ApiError::bad_request(format!("limits: {problem}")))?)
}

fn checked_queries(queries: &[DatabaseQuery]) -> Result<Value, ApiError> {
    let stored = json(&queries)?;
    if stored.to_string().len() > MAX_QUERIES {
        return Err(ApiError::bad_request("queries: the queries of a database have at most 128 KiB of JSON"));
    }
    check_queries(queries).map_err(|problem| ApiError::bad_request(format!("queries: {problem}")))?;
    for query in queries {
        for parameter in &query.parameters {
            compile_schema(&Value::Object(parameter.schema.clone())).map_err(|problem| {
                let (query, parameter) = (&query.name, &parameter.name);
                ApiError::bad_request(format!(
                    "queries: query {query}: the schema of the parameter {parameter} is wrong: {problem}"
                ))
            })?;
        }
    }
    Ok(stored)
}

fn json<T: Serialize>(value: &T) -> Result<Value, ApiError> {
    serde_json::to_value(value).map_err(|error| ApiError::internal(error.to_string()))
}

/// Where a database is and which secret it needs, for the ledger.
fn destination(target: &DatabaseTarget) -> String {
    match target {
        DatabaseTarget::Postgres { host, port, database, user, secret_key, tls } => {
            let secret = secret_key.as_deref().map_or_else(String::new, |key| format!(", secret {key}"));
            let tls = if *tls { "" } else { ", without TLS" };
            format!("{database} at {host}:{port} as {user}{secret}{tls}")
        }
        DatabaseTarget::Sqlite { file } => format!("SQLite file {file}"),
    }
}

/// What changes, for the ledger. A changed list of queries is named by its hash, because it may be long.
fn describe_change(
    id: DatabaseId,
    change: &DatabaseChange,
    database: &DatabaseSource,
) -> Result<String, ApiError> {
    let DatabaseChange { name, target, queries, free_form, limits, enabled } = change;
    let mut parts = vec![format!("database {id}")];
    parts.extend(name.is_some().then(|| "name".to_owned()));
    if target.is_some() {
        parts.push(destination(&parse_definition(database)?.target));
    }
    let hash = |queries: &Value| ledger::sha256(queries.to_string().as_bytes());
    parts.extend(queries.as_ref().map(|queries| format!("queries sha256 {}", hash(queries))));
    parts.extend(free_form.map(|free_form: FreeForm| format!("free-form SQL {free_form}")));
    parts.extend(limits.as_ref().map(|limits| format!("limits {limits}")));
    parts.extend(enabled.map(|enabled| if enabled { "enabled".to_owned() } else { "disabled".to_owned() }));
    Ok(parts.join(", "))
}

fn parse_definition(database: &DatabaseSource) -> Result<Definition, ApiError> {
    Definition::of(database).map_err(|error| ApiError::internal(error.to_string()))
}

fn entry(database: DatabaseSource) -> Result<DatabaseEntry, ApiError> {
    let Definition { target, queries, limits } = parse_definition(&database)?;
    Ok(DatabaseEntry {
        id: database.id,
        name: database.name,
        target,
        queries,
        free_form: database.free_form,
        limits,
        enabled: database.enabled,
        created_at: database.created_at,
        updated_at: database.updated_at,
    })
}
