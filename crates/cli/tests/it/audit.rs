//! The ledger from the perspective of its operator and its auditor: verified live and offline, exported, and tampered
//! with.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use ledger::{Chain, Entry, Event, Head, Text};
use serde_json::{Value, json};

use crate::deadline::{Lines, wait_for};
use crate::harness::{Ended, Machine, Server};

/// Makes a call that is denied because the tool does not exist, which adds two events.
fn denied_call(server: &Server, token: &str, run: &str) {
    let body = json!({"tool_name": "nowhere.look", "operation": "nowhere.look", "lane_id": "actions.read",
        "actor": {"actor_type": "system", "actor_id": "worker"}, "run_id": run});
    let (status, answer) = server.post("/v1/tool-calls", token, &body);
    assert_eq!((status, answer["error"]["error_code"].as_str()), (403, Some("POLICY_DENIED")), "{answer}");
}

/// A machine with some events, a checkpoint in the middle, and one at the end.
fn machine_with_events() -> Machine {
    let machine = Machine::new();
    let server = machine.serve();
    let token = machine.service();
    let (status, _) = server.post("/v1/runs", &token, &json!({"run_kind": "tool_gateway"}));
    assert_eq!(status, 201);
    denied_call(&server, &token, "run-0001");
    assert_eq!(machine.run(&["audit", "export", "--out", &path(&machine.file("early"))]).code, 0);
    for run in ["run-0002", "run-0003", "run-0004"] {
        denied_call(&server, &token, run);
    }
    assert_eq!(server.stop(), 0);
    machine
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

fn export(machine: &Machine, name: &str) -> PathBuf {
    let directory = machine.file(name);
    let made = machine.json(&["audit", "export", "--out", &path(&directory)]);
    assert_eq!(made["signed"], true);
    directory
}

fn lines(directory: &Path) -> Vec<String> {
    std::fs::read_to_string(directory.join("ledger.jsonl")).unwrap().lines().map(str::to_owned).collect()
}

/// Verifies on a machine that has only the exported files.
fn verify_offline(directory: &Path, checkpoint: &Path, key: &Path) -> Ended {
    let (directory, checkpoint, key) = (path(directory), path(checkpoint), path(key));
    Machine::new().run(&[
        "audit",
        "verify",
        "--json",
        "--export",
        &directory,
        "--checkpoint",
        &checkpoint,
        "--key",
        &key,
    ])
}

fn value(ended: &Ended) -> Value {
    serde_json::from_str(&ended.out).unwrap_or_else(|error| panic!("{error} in {} {}", ended.out, ended.err))
}

fn json_of(out: &str) -> Value {
    serde_json::from_str(out).unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

#[test]
fn a_ledger_verifies_live_and_as_an_export_and_says_what_is_unproven() {
    let machine = machine_with_events();
    let live = machine.json(&["audit", "verify"]);
    assert_eq!((&live["ok"], &live["unproven"]), (&json!(true), &json!([])), "{live}");
    let records = live["records"].as_u64().unwrap();
    assert!(records >= 11, "{live}");

    let directory = export(&machine, "export");
    assert_eq!(lines(&directory).len() as u64, records);
    let verified =
        verify_offline(&directory, &directory.join("checkpoints.txt"), &directory.join("audit.pub"));
    assert_eq!((verified.code, &value(&verified)["unproven"]), (0, &json!([])), "{}", verified.err);
    assert_eq!(value(&verified)["root"], live["root"]);

    let auditor = Machine::new();
    let beside = auditor.run(&["audit", "verify", "--export", &path(&directory)]);
    assert_eq!(beside.code, 0);
    assert!(beside.out.contains("who signed the checkpoints is unproven"), "{}", beside.out);
    assert!(beside.out.contains("came with the export"), "{}", beside.out);
    std::fs::remove_file(directory.join("checkpoints.txt")).unwrap();
    let alone = auditor.run(&["audit", "verify", "--export", &path(&directory)]);
    assert_eq!(alone.code, 0);
    assert!(alone.out.contains("no checkpoint was given"), "{}", alone.out);
    assert_eq!(auditor.run(&["audit", "verify", "--export", &path(&auditor.file("none"))]).code, 3);
    let again = machine.run(&["audit", "export", "--out", &path(&directory)]);
    assert_eq!(again.code, 2);
    assert!(again.err.contains("name a new directory"), "{}", again.err);
}

/// Rewrites the complete ledger with one record changed and all hashes recomputed.
fn rewritten(lines: &[String], changed: usize) -> Vec<String> {
    let mut heads = std::collections::HashMap::<String, Head>::new();
    let mut write = |(position, line): (usize, &String)| {
        let old = Entry::from_line(line.as_bytes()).unwrap();
        let mut event: Event = serde_json::from_str(&old.record).unwrap();
        if position == changed {
            event.outcome_reason = Some(Text::cut("nothing to see here"));
        }
        let chain = Chain::new(old.chain.as_str()).unwrap();
        let head = heads.get(chain.as_str()).copied();
        let new = Entry::append(&chain, head, position as u64, &event).unwrap();
        heads.insert(chain.as_str().to_owned(), new.head());
        new.to_line()
    };
    lines.iter().enumerate().map(&mut write).collect()
}

#[test]
fn every_change_of_an_export_is_found_and_the_first_bad_record_is_named() {
    let machine = machine_with_events();
    let directory = export(&machine, "export");
    let (held, key) = (machine.file("held.txt"), machine.file("key.pub"));
    std::fs::copy(directory.join("checkpoints.txt"), &held).unwrap();
    std::fs::copy(directory.join("audit.pub"), &key).unwrap();
    let good = lines(&directory);
    let early = lines(&machine.file("early")).len();
    let attempt = |what: &str, changed: Vec<String>, first: usize| {
        std::fs::write(directory.join("ledger.jsonl"), changed.join("\n") + "\n").unwrap();
        let found = verify_offline(&directory, &held, &key);
        assert_eq!(found.code, 1, "{what}: {} {}", found.out, found.err);
        assert_eq!(value(&found)["firstBadRecord"], json!(first), "{what}: {}", found.out);
        assert!(found.err.contains("does not verify"), "{what}: {}", found.err);
    };
    let with = |change: &dyn Fn(&mut Vec<String>)| {
        let mut lines = good.clone();
        change(&mut lines);
        lines
    };
    attempt("flip", with(&|lines| lines[4] = lines[4].replace("\"deny\"", "\"allow\"")), 4);
    attempt("one letter", with(&|lines| lines[5] = lines[5].replacen("worker", "worked", 1)), 5);
    attempt("drop", with(&|lines| drop(lines.remove(4))), 4);
    attempt("swap", with(&|lines| lines.swap(5, 6)), 5);
    attempt("insert", with(&|lines| lines.insert(6, lines[5].clone())), 6);
    attempt("garbage", with(&|lines| lines[2] = "{}".to_owned()), 2);
    attempt("truncate", with(&|lines| lines.truncate(7)), 7);
    attempt("nothing left", vec![], 0);
    // All hashes are valid, so only the checkpoints reveal the change: the first bad record follows the last
    // checkpoint that still matches.
    attempt("rewrite of an early record", rewritten(&good, 3), 2);
    attempt("rewrite of a late record", rewritten(&good, early + 1), early);
    attempt("rewrite and truncate", with(&|lines| *lines = rewritten(lines, 3)[..6].to_vec()), 2);

    // An error message that quotes a record must escape the control characters in it.
    let hostile = with(&|lines| lines[3] = lines[3].replacen("\"evt_", "\"evt_\u{202e}", 1));
    std::fs::write(directory.join("ledger.jsonl"), hostile.join("\n")).unwrap();
    let found = Machine::new().run(&["audit", "verify", "--export", &path(&directory)]);
    assert!(found.code == 1 && found.out.contains("record 3 (evt_"), "{}", found.out);
    assert!(!found.out.contains('\u{202e}') && !found.err.contains('\u{202e}'), "{}", found.err);

    std::fs::write(directory.join("ledger.jsonl"), good.join("\n") + "\n").unwrap();
    assert_eq!(verify_offline(&directory, &held, &key).code, 0);
    let other = machine_with_events();
    let foreign = export(&other, "export").join("audit.pub");
    let found = verify_offline(&directory, &held, &foreign);
    assert_eq!(found.code, 1);
    assert!(found.err.contains("not signed by the key"), "{}", found.err);
}

/// Runs statements that only the owner of the database can, such as dropping the triggers that protect the ledger.
pub(crate) fn behind_our_back(machine: &Machine, statements: &[&str]) {
    let file = machine.data_dir().join("proliferate.db").display().to_string();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let pool = sqlx::SqlitePool::connect(&format!("sqlite:{file}")).await.unwrap();
        for statement in statements {
            sqlx::query(sqlx::AssertSqlSafe(*statement)).execute(&pool).await.unwrap();
        }
        pool.close().await;
    });
}

#[test]
fn a_database_that_was_changed_behind_our_back_does_not_verify() {
    let cases = [
        ("UPDATE ledger_events SET record = replace(record, 'deny', 'allow') WHERE position = 4", 4, "hash"),
        (
            "UPDATE ledger_events SET hash = replace(hash, substr(hash, 1, 1), 'X') WHERE position = 5",
            5,
            "not a record",
        ),
        ("DELETE FROM ledger_events WHERE position = 4", 4, "missing"),
        ("DELETE FROM ledger_events WHERE position >= 8", 8, "ends there"),
    ];
    for (statement, first, words) in cases {
        let machine = machine_with_events();
        behind_our_back(
            &machine,
            &["DROP TRIGGER ledger_events_no_update", "DROP TRIGGER ledger_events_no_delete", statement],
        );
        let found = machine.run(&["audit", "verify", "--json"]);
        assert_eq!(found.code, 1, "{statement}: {}", found.out);
        assert_eq!(value(&found)["firstBadRecord"], json!(first), "{statement}: {}", found.out);
        assert!(found.err.contains(words), "{statement}: {}", found.err);
    }
    // Without any checkpoint, the size of the ledger stored in the database still reveals the loss.
    let machine = machine_with_events();
    std::fs::remove_file(machine.data_dir().join("checkpoints/checkpoints.txt")).unwrap();
    behind_our_back(
        &machine,
        &["DROP TRIGGER ledger_events_no_delete", "DELETE FROM ledger_events WHERE position >= 8"],
    );
    let found = machine.run(&["audit", "verify", "--json"]);
    assert_eq!((found.code, &value(&found)["firstBadRecord"]), (1, &json!(8)), "{}", found.out);
}

/// A modification of a proof.
type Change<'a> = &'a dyn Fn(&mut Value);

#[test]
fn a_proof_is_checked_offline_and_a_changed_one_is_refused() {
    let machine = machine_with_events();
    let key = export(&machine, "export").join("audit.pub");
    let events = machine.json(&["audit", "show", "run-0002"]);
    let event = events[0]["event"]["event_id"].as_str().unwrap();
    let auditor = Machine::new();
    let check = |name: &str, text: &str| {
        let file = auditor.file(name);
        std::fs::write(&file, text).unwrap();
        auditor.run(&["audit", "prove", "--check", &path(&file), "--key", &path(&key)])
    };
    let inclusion = machine.run(&["audit", "prove", event]);
    assert_eq!(inclusion.code, 0, "{}", inclusion.err);
    let checked = check("inclusion", &inclusion.out);
    assert_eq!(checked.code, 0, "{}", checked.err);
    assert!(checked.out.contains(&format!("record {}", events[0]["position"])), "{}", checked.out);
    let other = machine.run(&["audit", "prove", text(&events[1]["event"]["event_id"])]);
    let changes: [(&str, Change<'_>); 5] = [
        ("another record", &|proof| proof["record"] = json_of(&other.out)["record"].clone()),
        ("a changed record", &|proof| {
            proof["record"] = json!(text(&proof["record"]).replace("deny", "allow"));
        }),
        ("another way", &|proof| proof["path"].as_array_mut().unwrap().reverse()),
        ("a shorter way", &|proof| drop(proof["path"].as_array_mut().unwrap().pop())),
        ("a changed checkpoint", &|proof| {
            proof["checkpoint"] = json!(text(&proof["checkpoint"]).replacen("e\n", "e\n1", 1));
        }),
    ];
    for (what, change) in changes {
        let mut wrong = json_of(&inclusion.out);
        change(&mut wrong);
        assert_ne!(wrong, json_of(&inclusion.out), "{what}");
        assert_eq!(check("wrong", &wrong.to_string()).code, 1, "{what}");
    }

    let early = lines(&machine.file("early")).len().to_string();
    let consistency = machine.run(&["audit", "prove", "--from", &early]);
    assert_eq!(consistency.code, 0, "{}", consistency.err);
    assert_eq!(check("consistency", &consistency.out).code, 0);
    let mut wrong = json_of(&consistency.out);
    wrong["path"].as_array_mut().unwrap().reverse();
    assert_ne!(wrong, json_of(&consistency.out));
    assert_eq!(check("wrong", &wrong.to_string()).code, 1);
    let unsigned = auditor.run(&["audit", "prove", "--check", &path(&auditor.file("consistency"))]);
    assert!(unsigned.code == 0 && unsigned.out.contains("unproven"), "{}", unsigned.out);
    let nowhere = machine.run(&["audit", "prove", "--from", "1"]);
    assert!(nowhere.code == 1 && nowhere.err.contains("no checkpoint of 1"), "{}", nowhere.err);
    assert_eq!(machine.run(&["audit", "prove", "evt_none"]).code, 1);
    assert_eq!(machine.run(&["audit", "prove"]).code, 2);
}

#[test]
fn a_running_gateway_signs_with_a_new_key_from_its_change_on() {
    let machine = Machine::new();
    let server = machine.serve();
    let token = machine.service();
    denied_call(&server, &token, "run-0001");
    let before = export(&machine, "before");
    let rotated = machine.json(&["audit", "rotate-key"]);
    assert_eq!(machine.json(&["audit", "key"])["key"], rotated["key"]);
    assert_ne!(rotated["key"], rotated["old"]);
    denied_call(&server, &token, "run-0002");
    assert_eq!(server.stop(), 0);
    let live = machine.json(&["audit", "verify"]);
    assert_eq!(live["unproven"], json!([]), "the gateway signed the end with the new key: {live}");
    let after = export(&machine, "after");
    for key in [before.join("audit.pub"), after.join("audit.pub")] {
        let verified = verify_offline(&after, &after.join("checkpoints.txt"), &key);
        assert_eq!(verified.code, 0, "{}", verified.err);
    }
    assert_eq!(std::fs::read_dir(machine.data_dir()).unwrap().flatten().filter(is_key).count(), 1);
}

fn is_key(entry: &std::fs::DirEntry) -> bool {
    entry.file_name().to_string_lossy().starts_with("audit.key")
}

#[test]
fn a_key_change_that_broke_off_is_finished_and_nothing_is_signed_meanwhile() {
    let machine = machine_with_events();
    let (file, next) = (machine.data_dir().join("audit.key"), machine.data_dir().join("audit.key.next"));
    let old = std::fs::read(&file).unwrap();
    let rotated = machine.json(&["audit", "rotate-key"]);
    // Restore the state between the rotation event and the replacement of the key file.
    std::fs::rename(&file, &next).unwrap();
    std::fs::copy(&next, &file).unwrap();
    std::fs::write(&file, &old).unwrap();
    let checkpoints =
        || std::fs::read_to_string(machine.data_dir().join("checkpoints/checkpoints.txt")).unwrap();
    let signed = checkpoints();
    assert_eq!(machine.serve().stop(), 0);
    assert_eq!(checkpoints(), signed, "the retired key signed");
    let refused = machine.run(&["audit", "export", "--out", &path(&machine.file("refused"))]);
    assert!(refused.code == 1 && refused.err.contains("rotate-key"), "{}", refused.err);

    assert_eq!(machine.json(&["audit", "rotate-key"])["key"], rotated["key"]);
    let directory = export(&machine, "export");
    let changes = lines(&directory).iter().filter(|line| line.contains("audit_signing_key")).count();
    assert_eq!(changes, 1);
    assert_eq!(machine.json(&["audit", "verify"])["unproven"], json!([]));
    // A key file that is neither the old nor the new key is refused.
    std::fs::write(&file, &old).unwrap();
    let refused = machine.run(&["audit", "rotate-key"]);
    assert!(refused.code == 1 && refused.err.contains("is not the key"), "{}", refused.err);
}

#[test]
fn new_events_are_shown_as_they_are_written() {
    let machine = Machine::new();
    let server = machine.serve();
    let token = machine.service();
    denied_call(&server, &token, "run-0001");
    let org = machine.first_org();
    let all = machine.json(&["audit", "tail"]);
    let own = machine.json(&["audit", "tail", "--org", &org]);
    assert!(all.as_array().unwrap().iter().any(|event| event["chain"] == "system"), "{all}");
    assert!(own.as_array().unwrap().iter().all(|event| event["chain"] == org.as_str()), "{own}");
    assert_eq!(
        machine.json(&["audit", "tail", "--limit", "1"])[0]["position"],
        all[all.as_array().unwrap().len() - 1]["position"]
    );
    let shown = machine.run(&["audit", "show", "run-0001"]);
    assert!(shown.out.contains("authz_decision") && shown.out.contains("tool_call"), "{}", shown.out);
    let nothing = machine.run(&["audit", "show", "run-9999"]);
    assert!(nothing.code == 1 && nothing.err.contains("run-9999"), "{}", nothing.err);

    let mut follow = machine.command(&["audit", "tail", "--follow", "--limit", "0", "--org", &org]);
    let mut child = follow.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = Lines::of(child.stdout.take().unwrap());
    // The follower may poll for the first time before or after this call, so add events until it prints one.
    let mut number = 0;
    let line = wait_for("an event that the follower prints", || {
        number += 1;
        denied_call(&server, &token, &format!("run-follow-{number}"));
        lines.try_next()
    });
    assert!(line.contains("nowhere.look"), "{line}");
    child.kill().unwrap();
    child.wait().unwrap();
}
