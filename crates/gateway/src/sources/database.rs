//! The queries of an organization's databases as actions: `db:<uuid>:<query>`.

use std::sync::Arc;
use std::time::Duration;

use databases::{FREE_FORM, Problem, Query, Rows, arguments, free_form_schema, schema};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use gate::{
    CallRequest, Failure, MAX_SHOWN_BYTES, Output, Outside, Permit, Review, SourceError, Tool, ToolScope,
    Work,
};
use ledger::Redactor;
use policy::{ModeKey, Policy, Risk};
use proto::http::{DatabaseQuery, DatabaseTarget};
use proto::{DatabaseId, FreeForm, JsonObject};
use serde_json::{Value, json};
use store::{DatabaseSource, Store, StoreError};

use super::arguments::check_schema;
use super::catalog::{Guide, definition_hash};
use super::connector::policy_risk;
use super::source_kind::DATABASE;
use super::{CatalogAction, CatalogSource, Described, Found, Missing, Source, action_mode_key};
use crate::databases::{Databases, Definition, QueryError, free_form};

/// The timeout of a call as the gate enforces it, beyond that of the query: resolving a name, connecting and cancelling take time too.
const CALL_MARGIN: Duration = Duration::from_secs(22);

/// The id of a database as a source of actions.
pub(crate) fn source_id(id: DatabaseId) -> String {
    DATABASE.source_id(id)
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
         and write {parameter} for the first. {catalog} describes the tables. {}",
        size_note()
    )
}

/// What a caller needs to know about large results.
fn size_note() -> String {
    format!(
        "A result has at most {MAX_SHOWN_BYTES} bytes of JSON: rows beyond that are left out, and `truncated` says so. Select only \
         the columns and rows that you need."
    )
}

impl DatabaseTools {
    async fn find_tool(&self, scope: ToolScope, name: &str) -> Result<Option<Arc<dyn Tool>>, SourceError> {
        let Some((id, wanted)) = DATABASE.parse::<DatabaseId>(name) else { return Ok(None) };
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
        "\nResults have at most {} rows; `truncated` says that there are more. {}\n",
        definition.limits.max_rows,
        size_note()
    );
    Ok(CatalogSource {
        guide: Guide::Generated { title: format!("{} (database)", database.name), note },
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
        DATABASE.claims(name)
    }

    fn find<'a>(&'a self, _: &'a Policy, scope: ToolScope, name: &'a str) -> Found<'a> {
        self.find_tool(scope, name).boxed()
    }

    fn explain_missing<'a>(&'a self, scope: ToolScope, name: &'a str) -> Missing<'a> {
        async move {
            let Some((id, _)) = DATABASE.parse::<DatabaseId>(name) else {
                return Some(DATABASE.unknown_id());
            };
            match self.store.database(scope.org, id).await.ok()? {
                Some(database) if database.enabled => None,
                found => Some(DATABASE.unusable(id, found.is_some())),
            }
        }
        .boxed()
    }

    /// Does not connect: an agent that lists its actions must not wait for every database. `databases check` does.
    fn describe<'a>(&'a self, _: &'a Policy, scope: ToolScope) -> Described<'a> {
        async move {
            match self.store.databases(scope.org).await {
                Ok(all) => all.into_iter().filter(|database| database.enabled).map(describe).collect(),
                Err(error) => {
                    let source_id = DATABASE.name.to_owned();
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
        Duration::from_millis(self.definition.limits.timeout_ms.into()) + CALL_MARGIN
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
            let rows = done.map_err(|error| failure(&error, permit.redactor()))?;
            output(rows, permit.redactor())
        }
        .boxed()
    }
}

/// The rows as they are stored and returned: without secrets, and only as many as a caller is shown.
fn output(rows: Rows, redactor: &Redactor) -> Result<Output, Failure> {
    // Redaction may lengthen the rows, and cannot find what was cut before.
    let response = shorten(redactor.value(&rows.into_json())).ok_or_else(|| {
        Failure::Refused(format!(
            "not even one row of the result fits into {MAX_SHOWN_BYTES} bytes of JSON: select fewer columns, or parts of long values"
        ))
    })?;
    let mut data = JsonObject::new();
    data.insert("response".to_owned(), response);
    Ok(Output { text: String::new(), data: Some(data) })
}

/// Leaves out rows at the end until the rest can be shown, because a longer result is shown without any rows. `None` if not
/// even the first row fits.
fn shorten(mut response: Value) -> Option<Value> {
    if json_length(&response) <= MAX_SHOWN_BYTES {
        return Some(response);
    }
    let mut rows: Vec<Value> = response["rows"].as_array_mut().map(std::mem::take)?;
    // Rows that the database did not send are not counted.
    if response["truncated"] == false {
        response["totalRowCount"] = rows.len().into();
    }
    response["truncated"] = true.into();
    let mut length = json_length(&response);
    let fits = |row: &&Value| {
        length += json_length(row) + ",".len();
        length <= MAX_SHOWN_BYTES
    };
    let kept = rows.iter().take_while(fits).count();
    rows.truncate(kept);
    response["rowCount"] = kept.into();
    response["rows"] = rows.into();
    (kept > 0).then_some(response)
}

fn json_length(value: &Value) -> usize {
    value.to_string().len()
}

/// A query changes nothing, so a caller may try again what failed for a reason that passes.
fn failure(error: &QueryError, redactor: &Redactor) -> Failure {
    let shown = || error.shown(redactor);
    match error {
        QueryError::Problem(Problem::Timeout) => Failure::Timeout,
        QueryError::Problem(Problem::Invalid(_)) => Failure::Invalid(shown()),
        QueryError::Problem(Problem::Unreachable | Problem::Broken)
        | QueryError::OverShare(_)
        | QueryError::Vault => Failure::Down(shown()),
        _ => Failure::Refused(shown()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(count: usize, value: &str, truncated: bool) -> Rows {
        let row = |at: usize| json!({"id": at, "value": value}).as_object().cloned().unwrap_or_default();
        Rows {
            columns: vec!["id".to_owned(), "value".to_owned()],
            rows: (0..count).map(row).collect(),
            truncated,
        }
    }

    fn shown(rows: Rows, redactor: &Redactor) -> Value {
        let mut output = output(rows, redactor).unwrap();
        gate::shown(&output.data.as_mut().unwrap().remove("response").unwrap())
    }

    #[test]
    fn a_large_result_keeps_the_rows_that_can_be_shown() {
        let none = Redactor::default();
        let small = shown(rows(2, "x", false), &none);
        assert_eq!((&small["rowCount"], &small["truncated"]), (&json!(2), &json!(false)));
        assert!(small.get("totalRowCount").is_none(), "{small}");
        let large = shown(rows(1000, "0123456789", false), &none);
        let kept = large["rows"].as_array().unwrap();
        assert!(kept.len() > 200 && json_length(&large) <= MAX_SHOWN_BYTES, "{} rows", kept.len());
        assert!(json_length(&large) + 50 > MAX_SHOWN_BYTES, "another row would not fit");
        assert_eq!(large["rowCount"], json!(kept.len()));
        assert_eq!((&large["totalRowCount"], &large["truncated"]), (&json!(1000), &json!(true)));
        let more = shown(rows(1000, "0123456789", true), &none);
        assert!(more.get("totalRowCount").is_none(), "the database has more: {more}");
        let Err(Failure::Refused(problem)) = output(rows(3, &"x".repeat(MAX_SHOWN_BYTES), false), &none)
        else {
            panic!("a row that cannot be shown is returned")
        };
        assert!(problem.contains("select fewer columns"), "{problem}");
    }

    #[test]
    fn secrets_are_removed_before_rows_and_failures_are_cut() {
        let secret = "p4ssw0rd";
        let redactor = Redactor::new([secret]).unwrap();
        // Each row becomes longer by its redaction.
        let large = shown(rows(400, secret, false), &redactor);
        assert!(
            !large["rows"].as_array().unwrap().is_empty() && !large.to_string().contains("p4ss"),
            "{large}"
        );
        // The end of what is shown would be in the middle of the secret.
        let failed = |before: usize| {
            let text = format!("{}{secret}", "x ".repeat(before));
            failure(&QueryError::Problem(Problem::Statement(text)), &redactor)
        };
        for before in 150..210 {
            let Failure::Refused(problem) = failed(before) else { panic!("it is refused") };
            assert!(!problem.contains("p4s"), "{problem}");
        }
        let lines = Redactor::new(["line one\nline two"]).unwrap();
        let error = QueryError::Problem(Problem::Statement("bad: line one\nline two\u{1b}[2J".to_owned()));
        let Failure::Refused(problem) = failure(&error, &lines) else { panic!("it is refused") };
        assert!(!problem.contains("line") && !problem.contains('\u{1b}'), "{problem}");
    }
}
