//! `db`: migrates the database, backs it up, restores a backup, and seeds it for a benchmark.

mod seed;

use std::io::IsTerminal as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use gateway::DataDir;
use gateway::config::Database;
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use store::{EMPTY_POSTGRES, InstanceLock, Migration, backup_sqlite, check_backup, restore};
use tokio::process::Command;
use url::Url;

use crate::args::{DbCommand, Seed};
use crate::context::Context;
use crate::failure::Failure;
use crate::output::ask;

pub(crate) async fn run(context: &Context, command: DbCommand) -> Result<(), Failure> {
    match command {
        DbCommand::Migrate => {
            let spinner = context.out.spinner("bringing the schema up to date");
            let store = context.store_or_new().await;
            spinner.finish_and_clear();
            let backend = store?.backend();
            let version = Migration::LATEST;
            let sentence = format!("{backend} is at schema version {version}");
            context.out.result(&json!({ "backend": backend, "version": version }), &sentence);
            Ok(())
        }
        DbCommand::Backup { file } => backup(context, &file).await,
        DbCommand::Restore { file, yes } => restore_from(context, &file, yes).await,
        DbCommand::Seed { what: Seed::Bench } => seed::bench(context).await,
    }
}

async fn backup(context: &Context, file: &Path) -> Result<(), Failure> {
    if file.exists() {
        return Err(Failure::usage(format!("{} exists already: name a new file", file.display())));
    }
    let spinner = context.out.spinner("copying the database");
    let done = match &context.config.database {
        Database::Sqlite => backup_sqlite(&context.config.sqlite_file(), file).await.map_err(Failure::from),
        Database::Postgres(url) => {
            // Create the file with mode 0600 before pg_dump writes to it, so that no other user can open it in
            // between.
            std::fs::File::options()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(file)
                .map_err(|error| Failure::failed(format!("cannot write {}: {error}", file.display())))?;
            run_tool(
                postgres_tool("pg_dump", url)?
                    .args(["--format=custom", "--no-owner"])
                    .arg("--file")
                    .arg(file),
            )
            .await
        }
    };
    spinner.finish_and_clear();
    if let Err(failure) = done {
        // Remove a partial file: it would look like a valid backup.
        let _ = std::fs::remove_file(file);
        return Err(failure);
    }
    let bytes = std::fs::metadata(file).map(|file| file.len()).unwrap_or_default();
    let keys =
        "keep keys.env of the data dir (or your key settings) apart from it: both together open every secret";
    let sentence = format!("{} ({bytes} bytes) written; {keys}", file.display());
    context.out.result(&json!({ "file": file, "bytes": bytes }), &sentence);
    Ok(())
}

async fn restore_from(context: &Context, file: &Path, yes: bool) -> Result<(), Failure> {
    let spinner = context.out.spinner("checking the backup");
    let checked = match &context.config.database {
        Database::Sqlite => check_backup(file).await.map(drop).map_err(Failure::from),
        Database::Postgres(_) => run_tool(Command::new("pg_restore").arg("--list").arg(file)).await,
    };
    spinner.finish_and_clear();
    checked?;
    // Hold both locks until the restore ends: a gateway that starts meanwhile must not open a half-restored database.
    let _held = DataDir::hold(&context.config.data_dir)?;
    let _lock = match &context.config.database {
        Database::Sqlite => None,
        Database::Postgres(url) => Some(InstanceLock::acquire(url.expose_secret(), Duration::ZERO).await?),
    };
    if !yes && !confirm_restore(file)? {
        return Err(Failure::failed("nothing was changed"));
    }
    let spinner = context.out.spinner("restoring");
    let kept = match &context.config.database {
        Database::Sqlite => restore(file, &context.config.sqlite_file()).await.map_err(Failure::from),
        Database::Postgres(url) => restore_postgres(url, file).await.map(|()| None),
    };
    spinner.finish_and_clear();
    let kept = kept?;
    // Migrate a backup of an older schema: otherwise the restore could not be recorded in its ledger.
    let store = context.store_or_new().await?;
    store.skip_used_numbers().await?;
    let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let records = context.governance(&store).record_restore(&name).await?;
    let note =
        kept.as_ref().map(|kept| format!("; the old one is kept as {}", kept.display())).unwrap_or_default();
    context.out.result(
        &json!({ "restored": file, "kept": kept, "records": records }),
        &format!("{} restored, with {records} records of the ledger{note}", file.display()),
    );
    Ok(())
}

/// Replaces the complete database with the dump in one transaction.
async fn restore_postgres(url: &SecretString, dump: &Path) -> Result<(), Failure> {
    let script = tempfile::NamedTempFile::new();
    let script = script.map_err(|error| Failure::failed(format!("cannot make a temporary file: {error}")))?;
    let mut unpack = Command::new("pg_restore");
    run_tool(unpack.arg("--no-owner").arg("--file").arg(script.path()).arg(dump)).await?;
    let mut load = postgres_tool("psql", url)?;
    load.args(["--no-psqlrc", "--quiet", "--single-transaction", "--set=ON_ERROR_STOP=1"]);
    load.args(EMPTY_POSTGRES.map(|statement| format!("--command={statement}")));
    run_tool(load.arg("--file").arg(script.path())).await
}

fn confirm_restore(file: &Path) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        return Err(Failure::usage("this replaces the database: add --yes to do it without a terminal"));
    }
    ask(&format!("Replace the database by {}?", file.display()))
}

/// Builds a command that runs one of PostgreSQL's own tools. The password is passed in the environment, because other
/// users can read a process's arguments.
fn postgres_tool(program: &str, url: &SecretString) -> Result<Command, Failure> {
    let wrong = || Failure::usage("DATABASE_URL: must be postgres://user:password@host:port/database");
    let mut url = Url::parse(url.expose_secret()).map_err(|_| wrong())?;
    let password = percent_decode_str(url.password().unwrap_or_default()).decode_utf8_lossy().into_owned();
    url.set_password(None).map_err(|()| wrong())?;
    let mut command = Command::new(program);
    command.arg("--dbname").arg(url.as_str());
    if !password.is_empty() {
        command.env("PGPASSWORD", password);
    }
    Ok(command)
}

async fn run_tool(command: &mut Command) -> Result<(), Failure> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().await;
    let output = output.map_err(|error| {
        Failure::missing(format!("cannot run {program}: {error}. Install postgresql-client."))
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::failed(format!("{program} failed: {}", said.lines().next().unwrap_or("it said nothing"))))
}
