//! Measures how fast an export is verified: `cargo run --release -p ledger --example verify_speed`. Given a
//! directory, it writes the export there instead, so that `proliferate audit verify --export DIRECTORY` can be
//! timed.
#![expect(clippy::print_stdout, reason = "printing the result is the purpose of this program")]

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use clock::Clock;
use ledger::{
    ActionType, Actor, ActorType, Authz, Chain, Checkpoint, Decision, Entry, Event, Outcome, PolicyVersions,
    SigningKey, Target, TargetType, Text, Timestamp, Tree, Verifier, sha256,
};

const RECORDS: u64 = 1_000_000;
const CHAINS: u64 = 50;
const BATCH: u64 = 10_000;

/// Generates the export in batches, so that only verification is timed and memory use stays small.
fn main() -> Result<(), Box<dyn Error>> {
    let key = SigningKey::from_seed("speed/ledger", &[1; 32])?;
    if let Some(directory) = std::env::args_os().nth(1) {
        let directory = Path::new(&directory);
        fs::create_dir_all(directory)?;
        let mut out = BufWriter::new(File::create(directory.join("ledger.jsonl"))?);
        let (tree, _, _) = export(|line| Ok(writeln!(out, "{line}")?))?;
        out.flush()?;
        fs::write(directory.join("checkpoints.txt"), Checkpoint::sign(&key, &tree).to_string())?;
        return Ok(fs::write(directory.join("audit.pub"), key.public().to_string())?);
    }
    let (tree, bytes, _) = export(|_| Ok(()))?;
    let mut verifier = Verifier::new(vec![Checkpoint::sign(&key, &tree)], Some(key.public().clone()));
    let (_, _, seconds) = export(|line| Ok(verifier.push(line.as_bytes())?))?;
    let clock = Clock::system();
    let report = verifier.finish()?;
    let seconds = seconds + clock.elapsed().as_secs_f64();
    println!("{} records, {} bytes each: {seconds:.2} s on one core", report.records, bytes / RECORDS);
    Ok(())
}

/// Returns the tree of the export, its size in bytes, and the seconds that `take` spent on its lines.
fn export(
    mut take: impl FnMut(&str) -> Result<(), Box<dyn Error>>,
) -> Result<(Tree, u64, f64), Box<dyn Error>> {
    let chains: Vec<_> =
        (0..CHAINS).map(|number| Chain::new(format!("org-{number}"))).collect::<Result<_, _>>()?;
    let mut heads = vec![None; chains.len()];
    let (mut tree, mut bytes, mut seconds) = (Tree::default(), 0, 0.0);
    for batch in 0..RECORDS / BATCH {
        let mut lines = Vec::new();
        for position in batch * BATCH..(batch + 1) * BATCH {
            let at = usize::try_from(position * 7 % CHAINS)?;
            let entry = Entry::append(&chains[at], heads[at], position, &event(position)?)?;
            heads[at] = Some(entry.head());
            tree.push(&entry.hash);
            lines.push(entry.to_line());
        }
        bytes += lines.iter().map(|line| line.len() as u64).sum::<u64>();
        let clock = Clock::system();
        lines.iter().try_for_each(|line| take(line))?;
        seconds += clock.elapsed().as_secs_f64();
    }
    Ok((tree, bytes, seconds))
}

/// An event of the size that a typical tool call leaves.
fn event(number: u64) -> Result<Event, Box<dyn Error>> {
    let actor = Actor {
        actor_id: Text::new("0198a7c2-3f60-7d11-9a55-6f1f3c9e2b10")?,
        actor_type: ActorType::Agent,
        agent_name: Some(Text::cut("opencode")),
        user_display: None,
    };
    let versions = PolicyVersions { lanes: Text::new("1".repeat(40))?, roles: Text::new("2".repeat(40))? };
    let id = Text::new(format!("0198a7c2-3f60-7d11-9a55-{number:012}"))?;
    let at = Timestamp::try_from("2026-11-15T08:30:00.123Z".to_owned())?;
    let mut event = Event::new(id, at, ActionType::ToolCall, Outcome::Success, actor, versions);
    event.authz = Some(Authz {
        decision: Decision::Allow,
        policy_ref: Some(Text::cut("lanes.yaml")),
        rule_id: Some(Text::cut("lane:platform.coding")),
    });
    event.case_id = Some(Text::new("0198a7c2-3f60-7d11-9a55-6f1f3c9e2b11")?);
    event.run_id = Some(Text::new(format!("run-0198a7c2-3f60-{number:012}"))?);
    event.parent_run_id = Some(Text::new("run-0198a7c2-3f60-7d11-9a55")?);
    event.lane_id = Some(Text::cut("platform.coding"));
    event.role_id = Some(Text::cut("CODING_AGENT"));
    event.request_hash_sha256 = Some(sha256(&number.to_be_bytes()));
    event.response_hash_sha256 = Some(sha256(&number.to_le_bytes()));
    event.target = Some(Target {
        artifact_ref: None,
        name: Text::cut("save_snapshot"),
        operation: Some(Text::cut("save_snapshot.run")),
        target_type: TargetType::Tool,
    });
    Ok(event)
}
