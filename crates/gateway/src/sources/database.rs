//! The queries of an organization's databases as actions: `db:<uuid>:<query>`.

use std::sync::Arc;
use std::time::Duration;

use databases::{FREE_FORM, Problem, Query, Rows, arguments, free_form_schema, schema};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{
    CallRequest, Failure, LARGEST, Output, Outside, Permit, Review, SourceError, Tool, ToolScope, Work,
};
use ledger::Redactor;
use policy::{ModeKey, Policy, Risk};
use proto::http::{DatabaseQuery, DatabaseTarget};
use proto::{DatabaseId, FreeForm, JsonObject};
use serde_json::{Value, json};
use store::{DatabaseSource, Store, StoreError};

use super::arguments::check_schema;
use super::catalog::{definition_hash, generated_guide};
use super::connector::policy_risk;
use super::{CatalogAction, CatalogSource, Described, Found, Source, action_mode_key};
use crate::databases::{Databases, Definition, QueryError, free_form};

/// How the names of databases as sources begin.
const PREFIX: &str = "db:";
/// The timeout of a call as the gate enforces it, beyond that of the query: resolving a name, connecting and cancelling take time too.
const CONNECTING: Duration = Duration::from_secs(22);

/// The id of a database as a source of actions.
pub(crate) fn source_id(id: DatabaseId) -> String {
    format!("{PREFIX}{id}")
}

/// The source of all databases.
pub(crate) struct DatabaseTools {
    pub(crate) store: Store,
    pub(crate) databases: Arc<Databases>,
}

/// What an action executes.
#[derive(Clone, Debug)]
enum Statement {
    Defined(DatabaseQuery),
    /// A statement of the caller.
    FreeForm,
}

/// The actions of a database with their statements.
fn actions(database: &DatabaseSource, definition: &Definition) -> Vec<(CatalogAction, Statement)> {
    let action = |name: &str, description: String, params: Value, risk: Risk, statement: &Value| {
        let raw = json!({"source": source_id(database.id), "name": name, "description": description,
            "schema": params, "risk": risk.as_str(), "statement": statement, "target": definition.target});
        // Operators wrote the definition, so it needs no review; an approval of another one does not count.
        let definition = gate::Definition { hash: definition_hash(&raw), review: Review::NotNeeded };
        CatalogAction { name: name.to_owned(), description, params: params.into(), risk, definition }
    };
    let defined = definition.queries.iter().map(|query| {
        let (description, risk) = (query.description.clone(), policy_risk(query.risk));
        let statement = json!([query.sql, query.parameters]);
        let action = action(&query.name, description, schema(query), risk, &statement);
        (action, Statement::Defined(query.clone()))
    });
    let free = free_form_risk(database.free_form).map(|risk| {
        let description = free_form_description(&definition.target);
        (action(FREE_FORM, description, free_form_schema(), risk, &Value::Null), Statement::FreeForm)
    });
    defined.chain(free).collect()
}

/// The names, risks and mode keys of a database's actions.
pub(crate) fn action_list(database: &DatabaseSource) -> Result<Vec<(String, Risk, ModeKey)>, QueryError> {
    let definition = Definition::of(database)?;
    let listed = actions(database, &definition).into_iter().filter_map(|(action, _)| {
        let key = action_mode_key(&source_id(database.id), &action.name).ok()?;
        Some((action.name, action.risk, key))
    });
    Ok(listed.collect())
}

fn free_form_risk(free_form: FreeForm) -> Option<Risk> {
    match free_form {
        FreeForm::Off => None,
        FreeForm::Read => Some(Risk::Read),
        FreeForm::Write => Some(Risk::Write),
        FreeForm::Danger => Some(Risk::Danger),
    }
}

fn free_form_description(target: &DatabaseTarget) -> String {
    let (engine, parameter, catalog) = match target {
        DatabaseTarget::Postgres { .. } => ("PostgreSQL", "$1", "information_schema.columns"),
        DatabaseTarget::Sqlite { .. } => ("SQLite", "?1", "sqlite_schema"),
    };
    format!(
        "Executes one SELECT statement of yours in {engine}, in a transaction that can only read. Pass values as `params` \
         and write {parameter} for the first. {catalog} describes the tables."
    )
}

impl DatabaseTools {
    async fn find_tool(&self, scope: ToolScope, name: &str) -> Result<Option<Arc<dyn Tool>>, SourceError> {
        let parsed = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once(':'));
        let Some((Ok(id), wanted)) = parsed.map(|(id, action)| (id.parse::<DatabaseId>(), action)) else {
            return Ok(None);
        };
        let unusable = |problem: String| SourceError { source_id: source_id(id), problem };
        let found = self.store.database(scope.org, id).await.map_err(|error| unusable(storage(&error)))?;
        let Some(database) = found.filter(|database| database.enabled) else { return Ok(None) };
        let definition = Definition::of(&database).map_err(|error| unusable(error.to_string()))?;
        let found = actions(&database, &definition).into_iter().find(|(action, _)| action.name == wanted);
        let key = action_mode_key(&source_id(id), wanted).ok();
        let Some(((action, statement), key)) = found.zip(key) else { return Ok(None) };
        let databases = self.databases.clone();
        Ok(Some(Arc::new(BoundQuery { databases, definition, action, statement, key })))
    }
}

fn describe(database: DatabaseSource) -> Result<CatalogSource, SourceError> {
    let id = source_id(database.id);
    let definition = Definition::of(&database)
        .map_err(|error| SourceError { source_id: id.clone(), problem: error.to_string() })?;
    let actions: Vec<_> = actions(&database, &definition).into_iter().map(|(action, _)| action).collect();
    let note = format!(
        "\nResults have at most {} rows; `truncated` says that there are more.\n",
        definition.limits.max_rows
    );
    Ok(CatalogSource {
        guide: generated_guide(&format!("{} (database)", database.name), &actions) + &note,
        integration_id: None,
        display_name: Some(database.name),
        actions,
        id,
    })
}

fn storage(error: &StoreError) -> String {
    tracing::error!(%error, "the databases of an organization cannot be read");
    "the database does not answer".to_owned()
}

impl Source for DatabaseTools {
    fn claims(&self, _: &Policy, name: &str) -> bool {
        name.starts_with(PREFIX)
    }

    fn find<'a>(&'a self, _: &'a Policy, scope: ToolScope, name: &'a str) -> Found<'a> {
        self.find_tool(scope, name).boxed()
    }

    /// Does not connect: an agent that lists its actions must not wait for every database. `databases check` does.
    fn describe<'a>(&'a self, _: &'a Policy, scope: ToolScope) -> Described<'a> {
        async move {
            match self.store.databases(scope.org).await {
                Ok(all) => all.into_iter().filter(|database| database.enabled).map(describe).collect(),
                Err(error) => {
                    let source_id = PREFIX.trim_end_matches(':').to_owned();
                    vec![Err(SourceError { source_id, problem: storage(&error) })]
                }
            }
        }
        .boxed()
    }
}

/// One query of a database.
struct BoundQuery {
    databases: Arc<Databases>,
    definition: Definition,
    action: CatalogAction,
    statement: Statement,
    key: ModeKey,
}

impl Tool for BoundQuery {
    fn risk(&self) -> Risk {
        self.action.risk
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.definition.limits.timeout_ms.into()) + CONNECTING
    }

    fn mode_key(&self) -> Option<ModeKey> {
        Some(self.key.clone())
    }

    fn definition(&self) -> Option<gate::Definition> {
        Some(self.action.definition)
    }

    fn check(&self, parameters: &Value) -> Result<(), String> {
        check_schema(&self.action.params, parameters)
    }

    fn work(&self) -> Work<'_> {
        Work::Outside(self)
    }
}

impl Outside for BoundQuery {
    /// Every query runs in a transaction that can only read.
    fn replay_safe(&self) -> bool {
        true
    }

    fn execute<'a>(
        &'a self,
        permit: &'a Permit,
        call: &'a CallRequest,
    ) -> BoxFuture<'a, Result<Output, Failure>> {
        let parameters = &call.target.parameters;
        let query = match &self.statement {
            Statement::Defined(query) => {
                Query { sql: query.sql.clone(), parameters: arguments(query, parameters) }
            }
            Statement::FreeForm => free_form(parameters),
        };
        async move {
            let done = self.databases.run(permit, call, &self.definition, query).await;
            output(done.map_err(failure)?)
        }
        .boxed()
    }
}

/// The rows as they are stored and returned: columns that are named like secrets are redacted.
fn output(rows: Rows) -> Result<Output, Failure> {
    let redactor = Redactor::new(std::iter::empty::<&str>());
    let redactor = redactor.map_err(|_| Failure::Refused("the rows cannot be redacted".to_owned()))?;
    let mut data = JsonObject::new();
    data.insert("response".to_owned(), redactor.redact_and_truncate(&rows.into_json(), LARGEST));
    Ok(Output { text: String::new(), data: Some(data) })
}

/// A query changes nothing, so a caller may try again what failed for a reason that passes.
fn failure(error: QueryError) -> Failure {
    match error {
        QueryError::Problem(Problem::Timeout) => Failure::Timeout,
        QueryError::Problem(Problem::Invalid(text)) => Failure::Invalid(text),
        QueryError::Problem(problem @ (Problem::Unreachable | Problem::Broken)) => {
            Failure::Down(problem.to_string())
        }
        QueryError::OverShare(_) | QueryError::Vault => Failure::Down(error.to_string()),
        _ => Failure::Refused(error.to_string()),
    }
}
