//! `audit verify`: says that nothing was changed, or names the first record that is not as it was.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;

use gateway::gate::{audit_public_key, read_checkpoints};
use indicatif::ProgressBar;
use ledger::{Fault, MAX_LINE, PublicKey, Report, Verifier};
use serde_json::json;
use store::Store;

use super::{CHECKPOINTS, LEDGER, PAGE, read_checkpoint_file, read_key};
use crate::args::VerifyArgs;
use crate::clean::clean;
use crate::context::Context;
use crate::failure::Failure;

/// Few and large reads: a ledger has gigabytes.
const BUFFER: usize = 1 << 20;
/// So often somebody who watches is told how far it is.
const TOLD: u64 = 20_000;
const SAME_PLACE: &str = "the checkpoints came with the export: whoever changed one could change both, so keep some \
    elsewhere and name them with --checkpoint";

/// What is wrong: the record, where it is about one, and the words.
struct Bad {
    record: Option<u64>,
    problem: String,
}

/// What was verified, and what the reader should know beside.
struct Good {
    report: Report,
    remark: Option<&'static str>,
}

impl From<Fault> for Bad {
    fn from(fault: Fault) -> Self {
        Self { record: fault.first_bad_record(), problem: clean(&fault.to_string()) }
    }
}

pub(super) async fn run(context: &Context, args: &VerifyArgs) -> Result<(), Failure> {
    let key = args.key.as_deref().map(read_key).transpose()?;
    let spinner = context.out.spinner("verifying the ledger");
    let verified = match &args.export {
        Some(folder) => exported(folder, args.checkpoint.as_deref(), key, &spinner),
        None => live(context, args.checkpoint.as_deref(), key, &spinner).await,
    };
    spinner.finish_and_clear();
    match verified? {
        Ok(good) => {
            tell(context, &good);
            Ok(())
        }
        Err(Bad { record, problem }) => {
            let value = json!({ "ok": false, "firstBadRecord": record, "problem": problem });
            context.out.result(&value, &problem);
            Err(Failure::failed(format!("the ledger does not verify: {problem}")))
        }
    }
}

fn tell(context: &Context, Good { report, remark }: &Good) {
    let unproven: Vec<String> = report
        .unproven
        .iter()
        .map(ToString::to_string)
        .chain(remark.iter().map(|remark| (*remark).to_owned()))
        .collect();
    let value = json!({ "ok": true, "records": report.records, "chains": report.chains,
        "root": report.root.to_string(), "checkpoints": report.checkpoints, "unproven": unproven });
    let mut lines = vec![format!(
        "{} records in {} chains verified, {} checkpoints agree",
        report.records, report.chains, report.checkpoints
    )];
    lines.extend(unproven.iter().map(|unproven| format!("unproven: {unproven}")));
    context.out.result(&value, &lines.join("\n"));
}

/// An export, without any database. In constant memory, and no line is allocated for itself.
fn exported(
    folder: &Path,
    checkpoint: Option<&Path>,
    key: Option<PublicKey>,
    spinner: &ProgressBar,
) -> Result<Result<Good, Bad>, Failure> {
    let beside = folder.join(CHECKPOINTS);
    let (checkpoints, remark) = match checkpoint {
        Some(file) => (read_checkpoint_file(file)?, None),
        None if beside.exists() => (read_checkpoint_file(&beside)?, Some(SAME_PLACE)),
        None => (Vec::new(), None),
    };
    let path = folder.join(LEDGER);
    let failed = |error| Failure::missing(format!("cannot read {}: {error}", path.display()));
    let mut lines = BufReader::with_capacity(BUFFER, File::open(&path).map_err(failed)?);
    let mut verifier = Verifier::new(checkpoints, key);
    let mut line = Vec::new();
    for count in 0_u64.. {
        line.clear();
        // One byte more than the longest line and its end: a line without an end does not fill the memory.
        let bounded = &mut lines.by_ref().take(MAX_LINE as u64 + 2);
        if bounded.read_until(b'\n', &mut line).map_err(failed)? == 0 {
            break;
        }
        if let Err(fault) = verifier.push(line.strip_suffix(b"\n").unwrap_or(&line)) {
            return Ok(Err(fault.into()));
        }
        if count.is_multiple_of(TOLD) {
            spinner.set_message(format!("verifying the ledger: {count} records"));
        }
    }
    Ok(verifier.finish().map(|report| Good { report, remark }).map_err(Bad::from))
}

/// The database as it is, page by page, also beside a running gateway.
async fn live(
    context: &Context,
    checkpoint: Option<&Path>,
    key: Option<PublicKey>,
    spinner: &ProgressBar,
) -> Result<Result<Good, Bad>, Failure> {
    let store = context.store().await?;
    // Before the records: what comes meanwhile is no loss.
    let checkpoints = match checkpoint {
        Some(file) => read_checkpoint_file(file)?,
        None => read_checkpoints(&context.config)?,
    };
    let counted = store.ledger_size().await?;
    let key = key.map_or_else(|| audit_public_key(&context.config), |key| Ok(Some(key)))?;
    let mut verifier = Verifier::new(checkpoints, key);
    let (mut count, mut limit) = (0, PAGE);
    loop {
        match page(&store, &mut verifier, &mut count, limit).await? {
            // Which row it is, is found by reading them one by one.
            Page::Unreadable if limit > 1 => limit = 1,
            Page::Pushed => spinner.set_message(format!("verifying the ledger: {count} records")),
            Page::Bad(bad) => return Ok(Err(bad)),
            Page::Unreadable => {
                let problem = format!("record {count} is not a record of a ledger");
                return Ok(Err(Bad { record: Some(count), problem }));
            }
            Page::End => break,
        }
    }
    Ok(match verifier.finish() {
        Ok(report) if report.records < counted => Err(Bad {
            record: Some(report.records),
            problem: format!(
                "record {} is missing, and all after it: the database itself counts {counted} records",
                report.records
            ),
        }),
        finished => finished.map(|report| Good { report, remark: None }).map_err(Bad::from),
    })
}

enum Page {
    Pushed,
    Bad(Bad),
    /// A row is not even of the form that rows have.
    Unreadable,
    End,
}

async fn page(store: &Store, verifier: &mut Verifier, count: &mut u64, limit: i64) -> Result<Page, Failure> {
    let entries = match store.ledger_entries(*count, limit).await {
        Err(error) if error.is_damaged() => return Ok(Page::Unreadable),
        entries => entries?,
    };
    if entries.is_empty() {
        return Ok(Page::End);
    }
    for entry in entries {
        if let Err(fault) = verifier.push(entry.to_line().as_bytes()) {
            return Ok(Page::Bad(fault.into()));
        }
        *count += 1;
    }
    Ok(Page::Pushed)
}
