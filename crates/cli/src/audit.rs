//! `audit`: commands that read and verify the ledger, for operators and for auditors who have only an export.

mod events;
mod export;
mod proof;
mod verify;

use std::path::Path;

use gate::audit_public_key;
use ledger::{Checkpoint, CheckpointError, PublicKey};
use serde_json::json;

use crate::args::AuditCommand;
use crate::context::Context;
use crate::failure::Failure;

/// The file names inside an export directory.
const LEDGER_FILE: &str = "ledger.jsonl";
const CHECKPOINTS_FILE: &str = "checkpoints.txt";
const KEY_FILE: &str = "audit.pub";
/// The number of ledger rows read per query.
const EVENTS_PER_QUERY: i64 = 5_000;

pub(crate) async fn run(context: &Context, command: AuditCommand) -> Result<(), Failure> {
    match command {
        AuditCommand::Verify(args) => verify::run(context, &args).await,
        AuditCommand::Export { out } => export::run(context, &out).await,
        AuditCommand::Tail { follow, limit, org } => {
            events::tail(context, follow, limit, org.as_deref()).await
        }
        AuditCommand::Show { id } => events::show(context, &id).await,
        AuditCommand::Prove(args) => proof::run(context, args).await,
        AuditCommand::Key => {
            let key = our_key(context)?.to_string();
            context.out.result(&json!({ "key": key }), &key);
            Ok(())
        }
        AuditCommand::RotateKey => rotate(context).await,
        AuditCommand::ReplaceLostKey { reason } => replace_lost(context, &reason).await,
    }
}

async fn rotate(context: &Context) -> Result<(), Failure> {
    let store = context.store().await?;
    let (old, new) = context.governance(&store).rotate_key().await?;
    let sentence = format!(
        "checkpoints are signed by a new key from here on; give it to your auditors:\n{new}\nthe old one was\n{old}\n\
         Gateways on this machine use it at once; where others have a file of their own, copy {} there, or they \
         sign nothing.",
        context.config.audit_key_file().display()
    );
    context.out.result(&json!({ "key": new.to_string(), "old": old.to_string() }), &sentence);
    Ok(())
}

async fn replace_lost(context: &Context, reason: &str) -> Result<(), Failure> {
    let store = context.store().await?;
    let key = context.governance(&store).replace_lost_key(reason).await?;
    let sentence = format!(
        "checkpoints are signed by a new key from here on; give it to your auditors, who keep the lost one for what is \
         before:\n{key}"
    );
    context.out.result(&json!({ "key": key.to_string() }), &sentence);
    Ok(())
}

fn our_key(context: &Context) -> Result<PublicKey, Failure> {
    audit_public_key(&context.config.gate_settings())?.ok_or_else(|| {
        let file = context.config.audit_key_file();
        Failure::missing(format!(
            "there is no key at {}: a gateway makes one when it starts first, and AUDIT_SIGNING_KEY names another file",
            file.display()
        ))
    })
}

fn read_key(file: &Path) -> Result<PublicKey, Failure> {
    let text = read_text(file)?;
    text.parse().map_err(|error| Failure::failed(format!("{}: {error}", file.display())))
}

fn read_checkpoint_file(file: &Path) -> Result<Vec<Checkpoint>, Failure> {
    Checkpoint::parse_all(&read_text(file)?)
        .map_err(|error: CheckpointError| Failure::failed(format!("{}: {error}", file.display())))
}

fn read_text(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file)
        .map_err(|error| Failure::missing(format!("cannot read {}: {error}", file.display())))
}
