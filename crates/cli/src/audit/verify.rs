//! `audit verify`: confirms that no record was changed, or names the first record that fails verification.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use gate::{Verification, VerifyError, audit_public_key, read_checkpoints, signs_now, verify_database};
use indicatif::ProgressBar;
use ledger::{Fault, MAX_LINE, PublicKey, Report, UnprovenClaim, Verifier};
use serde_json::json;

use super::{CHECKPOINTS_FILE, LEDGER_FILE, read_checkpoint_file, read_key};
use crate::args::VerifyArgs;
use crate::clean::clean;
use crate::context::Context;
use crate::failure::Failure;

/// The read buffer size. Ledgers reach gigabytes, so we read in large chunks.
const READ_BUFFER_BYTES: usize = 1 << 20;
/// The number of records between two progress updates.
const RECORDS_PER_PROGRESS_UPDATE: u64 = 20_000;
const SAME_PLACE: &str = "the checkpoints came with the export: whoever changed one could change both, so keep some \
    elsewhere and name them with --checkpoint";

/// A failed verification: the offending record, if the problem concerns one, and a description.
struct VerificationFailure {
    record: Option<u64>,
    problem: String,
}

/// A successful verification, and an optional remark for the reader.
struct VerificationSuccess {
    report: Report,
    /// The number of runs and artifacts that match the ledger, if a database was verified.
    live_rows: Option<(u64, u64)>,
    remark: Option<&'static str>,
}

impl From<Fault> for VerificationFailure {
    fn from(fault: Fault) -> Self {
        Self { record: fault.first_bad_record(), problem: clean(&fault.to_string()) }
    }
}

pub(super) async fn run(context: &Context, args: &VerifyArgs) -> Result<(), Failure> {
    let key = args.key.as_deref().map(read_key).transpose()?;
    let spinner = context.out.spinner("verifying the ledger");
    let verified = match &args.export {
        Some(directory) => verify_export(directory, args.checkpoint.as_deref(), key, &spinner),
        None => live(context, args.checkpoint.as_deref(), key, &spinner).await,
    };
    spinner.finish_and_clear();
    match verified? {
        Ok(good) => {
            report(context, &good);
            Ok(())
        }
        Err(VerificationFailure { record, problem }) => {
            let value = json!({ "ok": false, "firstBadRecord": record, "problem": problem });
            context.out.result(&value, &problem);
            Err(Failure::failed(format!("the ledger does not verify: {problem}")))
        }
    }
}

fn report(context: &Context, VerificationSuccess { report, live_rows, remark }: &VerificationSuccess) {
    let unproven: Vec<String> = report
        .unproven
        .iter()
        .map(ToString::to_string)
        .chain(remark.iter().map(|remark| (*remark).to_owned()))
        .collect();
    let mut value = json!({ "ok": true, "records": report.records, "chains": report.chains,
        "root": report.root.to_string(), "checkpoints": report.checkpoints, "unproven": unproven });
    value["rolledBack"] =
        report.rolled_back.iter().map(|restore| json!(clean(&restore.to_string()))).collect();
    let mut lines = vec![format!(
        "{} records in {} chains verified, {} checkpoints agree",
        report.records, report.chains, report.checkpoints
    )];
    if let Some((runs, artifacts)) = live_rows {
        value["runs"] = json!(runs);
        value["artifacts"] = json!(artifacts);
        lines.push(format!("{runs} runs and {artifacts} artifacts agree with them"));
    }
    lines.extend(report.rolled_back.iter().map(|restore| clean(&restore.to_string())));
    lines.extend(unproven.iter().map(|unproven| format!("unproven: {unproven}")));
    context.out.result(&value, &lines.join("\n"));
}

/// Verifies an export without a database, in constant memory: all lines share one buffer.
fn verify_export(
    directory: &Path,
    checkpoint: Option<&Path>,
    key: Option<PublicKey>,
    spinner: &ProgressBar,
) -> Result<Result<VerificationSuccess, VerificationFailure>, Failure> {
    let stored_here = directory.join(CHECKPOINTS_FILE);
    let (checkpoints, remark) = match checkpoint {
        Some(file) => (read_checkpoint_file(file)?, None),
        None if stored_here.exists() => (read_checkpoint_file(&stored_here)?, Some(SAME_PLACE)),
        None => (Vec::new(), None),
    };
    let path = directory.join(LEDGER_FILE);
    let failed = |error| Failure::missing(format!("cannot read {}: {error}", path.display()));
    let mut lines = BufReader::with_capacity(READ_BUFFER_BYTES, File::open(&path).map_err(failed)?);
    let mut verifier = Verifier::new(checkpoints, key);
    let mut line = Vec::new();
    for count in 0_u64.. {
        line.clear();
        // Read at most one byte more than the longest line and its line break, so that a file without line breaks
        // cannot exhaust memory.
        let bounded = &mut lines.by_ref().take(MAX_LINE as u64 + 2);
        if bounded.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            break;
        }
        if let Err(fault) = verifier.push(line.strip_suffix(b"\n").unwrap_or(&line)) {
            return Ok(Err(fault.into()));
        }
        if count.is_multiple_of(RECORDS_PER_PROGRESS_UPDATE) {
            spinner.set_message(format!("verifying the ledger: {count} records"));
        }
    }
    Ok(verifier
        .finish()
        .map(|report| VerificationSuccess { report, live_rows: None, remark })
        .map_err(VerificationFailure::from))
}

/// Verifies the database, even while a gateway is running: the ledger, and the runs and artifacts that the API serves
/// next to it.
async fn live(
    context: &Context,
    checkpoint: Option<&Path>,
    key: Option<PublicKey>,
    spinner: &ProgressBar,
) -> Result<Result<VerificationSuccess, VerificationFailure>, Failure> {
    let store = context.store().await?;
    // Read the checkpoints before the records: records appended in between then do not look missing.
    let checkpoints = match checkpoint {
        Some(file) => read_checkpoint_file(file)?,
        None => read_checkpoints(&context.config.gate_settings())?,
    };
    let own = if key.is_none() { audit_public_key(&context.config.gate_settings())? } else { None };
    let key = key.or_else(|| own.clone());
    let progress = |count: u64| spinner.set_message(format!("verifying the ledger: {count} records"));
    match verify_database(&store, checkpoints, key, &progress).await {
        // Anybody who can write to the database can record that our key was lost. That claim is believable only if our
        // key is the one that signs now.
        Ok(Verification { report, .. })
            if has_lost_key(&report) && !signs_now(&store, own.as_ref()).await? =>
        {
            Ok(Err(Fault::Key.into()))
        }
        Ok(Verification { report, runs, artifacts }) => {
            Ok(Ok(VerificationSuccess { report, live_rows: Some((runs, artifacts)), remark: None }))
        }
        Err(VerifyError::Ledger(fault)) => Ok(Err(fault.into())),
        Err(VerifyError::Row(difference)) => Ok(Err(VerificationFailure {
            record: difference.record,
            problem: clean(&difference.to_string()),
        })),
        Err(VerifyError::Store(error)) => Err(error.into()),
    }
}

fn has_lost_key(report: &Report) -> bool {
    report.unproven.iter().any(|unproven| matches!(unproven, UnprovenClaim::LostKey { .. }))
}
