//! `audit export`: writes everything that an auditor needs to verify the ledger without us into one directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use gate::{audit_public_key, read_checkpoints, sign_ledger};
use ledger::Checkpoint;
use serde_json::json;
use store::Store;

use super::{CHECKPOINTS_FILE, EVENTS_PER_QUERY, KEY_FILE, LEDGER_FILE};
use crate::context::Context;
use crate::failure::Failure;

const WRITE_BUFFER_BYTES: usize = 1 << 20;

pub(super) async fn run(context: &Context, directory: &Path) -> Result<(), Failure> {
    let store = context.store().await?;
    let failed =
        |error: io::Error| Failure::failed(format!("cannot write to {}: {error}", directory.display()));
    fs::create_dir_all(directory).map_err(failed)?;
    let mut ledger = BufWriter::with_capacity(WRITE_BUFFER_BYTES, create(directory, LEDGER_FILE)?);
    // Sign first, so that the export ends with a signed checkpoint.
    let signed = sign_ledger(&context.config.gate_settings(), &store, &context.clock).await?;
    let checkpoints = read_checkpoints(&context.config.gate_settings())?;
    let newest = checkpoints.iter().map(|checkpoint| checkpoint.size).max().unwrap_or_default();
    let size = if signed { newest } else { store.ledger_size().await? };
    let spinner = context.out.spinner("exporting the ledger");
    let progress =
        |count: u64| spinner.set_message(format!("exporting the ledger: {count} of {size} records"));
    let records = write_records(&store, &mut ledger, size, progress).await;
    spinner.finish_and_clear();
    let records = records?;
    ledger.flush().and_then(|()| ledger.get_ref().sync_all()).map_err(failed)?;
    let notes: Vec<_> = checkpoints.iter().map(Checkpoint::to_string).collect();
    write(directory, CHECKPOINTS_FILE, &notes.join("\n"))?;
    if let Some(key) = audit_public_key(&context.config.gate_settings())? {
        write(directory, KEY_FILE, &format!("{key}\n"))?;
    }
    let value = json!({ "directory": directory, "records": records, "checkpoints": checkpoints.len(), "signed": signed });
    let mut sentence =
        format!("{records} records and {} checkpoints written to {}", checkpoints.len(), directory.display());
    if !signed {
        sentence +=
            "; there is no signing key on this machine, so what came after the newest checkpoint is unsigned";
    }
    context.out.result(&value, &sentence);
    Ok(())
}

async fn write_records(
    store: &Store,
    out: &mut impl Write,
    size: u64,
    progress: impl Fn(u64),
) -> Result<u64, Failure> {
    let failed = |error: io::Error| Failure::failed(format!("cannot write the export: {error}"));
    let mut written = 0;
    while written < size {
        let limit = i64::try_from(size - written).unwrap_or(EVENTS_PER_QUERY).min(EVENTS_PER_QUERY);
        let page = store.ledger_entries(written, limit).await?;
        if page.is_empty() {
            break;
        }
        for entry in &page {
            writeln!(out, "{}", entry.to_line()).map_err(failed)?;
        }
        written += page.len() as u64;
        progress(written);
    }
    Ok(written)
}

/// Creates a new file, and fails if it exists: an export is never mixed with an older one.
fn create(directory: &Path, name: &str) -> Result<File, Failure> {
    let path = directory.join(name);
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    file.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => {
            Failure::usage(format!("{} exists already: name a new directory", path.display()))
        }
        _ => Failure::failed(format!("cannot make {}: {error}", path.display())),
    })
}

fn write(directory: &Path, name: &str, text: &str) -> Result<(), Failure> {
    let mut file = create(directory, name)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written
        .map_err(|error| Failure::failed(format!("cannot write {}: {error}", directory.join(name).display())))
}
