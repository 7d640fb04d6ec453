//! Every administrative command is in the ledger under the name of the host's user; so are restores and changes of the
//! signing key.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::Machine;

fn host_user() -> String {
    let name = Command::new("id").arg("-un").output().unwrap();
    format!("host:{}", String::from_utf8(name.stdout).unwrap().trim())
}

/// The newest event of all chains.
fn last_event(machine: &Machine) -> Value {
    machine.json(&["audit", "tail", "--limit", "1"])[0].clone()
}

/// A command that changes something, and its event in the ledger. `ORG`, `USER`, `KEY` and `GRANT` are replaced with
/// ids.
type Step = (&'static [&'static str], [&'static str; 3]);

const STEPS: &[Step] = &[
    (&["orgs", "create", "--name", "Second"], ["system", "organization", "create"]),
    (&["orgs", "limits", "ORG", "--sessions", "3"], ["policy_change", "limits", "set"]),
    (
        &["users", "create", "--email", "b@test.example", "--org", "ORG", "--role", "member"],
        ["system", "member", "add"],
    ),
    (&["users", "role", "USER", "admin", "--org", "ORG"], ["policy_change", "role", "change"]),
    (&["keys", "create", "--name", "ci", "--user", "USER", "--org", "ORG"], ["system", "api_key", "create"]),
    (&["keys", "revoke", "KEY", "--org", "ORG"], ["system", "api_key", "revoke"]),
    (&["secrets", "set", "TOKEN", "hush-hush", "--org", "ORG"], ["system", "secret", "set"]),
    (&["secrets", "import", "FILE", "--org", "ORG"], ["system", "secret", "set"]),
    (&["secrets", "rm", "TOKEN", "--org", "ORG"], ["system", "secret", "remove"]),
    (&["secrets", "rotate"], ["system", "vault_key", "rotate"]),
    (&["egress", "deny", "bad.example", "--org", "ORG"], ["policy_change", "egress", "set"]),
    (&["egress", "rm", "bad.example", "--org", "ORG"], ["policy_change", "egress", "set"]),
    (&["egress", "allow", "good.example", "--org", "ORG"], ["policy_change", "egress", "set"]),
    (&["egress", "mode", "open", "--org", "ORG"], ["policy_change", "egress", "set"]),
    (
        &["actions", "modes", "set", "linear:create_issue", "deny", "--org", "ORG"],
        ["policy_change", "linear:create_issue", "deny"],
    ),
    (&["policy", "lock", "--reason", "a drill"], ["policy_change", "safety_lock", "lock"]),
    (&["policy", "unlock", "--reason", "it is over"], ["policy_change", "safety_lock", "unlock"]),
    (
        &[
            "policy",
            "override",
            "grant",
            "--user",
            "USER",
            "--org",
            "ORG",
            "--ticket",
            "INC-1",
            "--reason",
            "fire",
            "--minutes",
            "5",
        ],
        ["override", "override_grant", "grant"],
    ),
    (&["policy", "grants", "revoke", "GRANT", "--reason", "out"], ["override", "override_grant", "revoke"]),
    (&["users", "rm", "USER", "--org", "ORG"], ["system", "member", "remove"]),
    (&["audit", "rotate-key"], ["system", "audit_signing_key", "change"]),
];

/// Commands that change nothing, or that other tests here cover.
const OTHERS: &[&str] = &[
    "audit export",
    "audit key",
    "audit prove",
    "audit show",
    "audit tail",
    "audit verify",
    "audit replace-lost-key",
    "db backup",
    "db migrate",
    "db restore",
    "db seed",
    "egress log",
    "egress show",
    "keys ls",
    "orgs ls",
    "policy check",
    "policy diff",
    "policy explain",
    "policy replay",
    "policy status",
    "secrets ls",
    "users ls",
];

#[test]
fn every_change_of_an_operator_is_recorded_under_the_hosts_user() {
    let machine = Machine::new();
    machine.serve().stop();
    let file = machine.file("values.env");
    std::fs::write(&file, "A=1\nB=2\n").unwrap();
    let (mut org, mut user, mut key, mut grant) =
        (machine.first_org(), String::new(), String::new(), String::new());
    for (command, [action, target, operation]) in STEPS {
        let value_of = |word: &&'static str| match *word {
            "ORG" => org.clone(),
            "USER" => user.clone(),
            "KEY" => key.clone(),
            "GRANT" => grant.clone(),
            "FILE" => file.display().to_string(),
            word => word.to_owned(),
        };
        let words: Vec<String> = command.iter().map(value_of).collect();
        let before = last_event(&machine)["position"].as_u64().unwrap();
        let answer = machine.json(&words.iter().map(String::as_str).collect::<Vec<_>>());
        let id = || answer["id"].as_str().unwrap().to_owned();
        match command[..2] {
            ["orgs", "create"] => org = id(),
            ["users", "create"] => user = id(),
            ["keys", "create"] => key = id(),
            ["policy", "override"] => grant = id(),
            _ => {}
        }
        let event = last_event(&machine);
        assert_eq!(event["position"].as_u64().unwrap(), before + 1, "{command:?} left no event");
        let event = &event["event"];
        let said = [&event["action_type"], &event["target"]["name"], &event["target"]["operation"]];
        assert_eq!(said, [action, target, operation], "{command:?}: {event}");
        assert_eq!(event["actor"], json!({"actor_id": host_user(), "actor_type": "human"}), "{command:?}");
        assert!(!event.to_string().contains("hush-hush"), "{event}");
    }
    assert_eq!(machine.run(&["audit", "verify"]).code, 0);
}

#[test]
fn no_command_that_changes_something_is_forgotten() {
    let machine = Machine::new();
    let mut all = BTreeSet::new();
    for group in ["actions", "audit", "db", "egress", "keys", "orgs", "policy", "secrets", "users"] {
        let help = machine.run(&[group, "--help"]).out;
        let commands = help.split_once("Commands:").unwrap().1.split_once("\n\n").unwrap().0.to_owned();
        let names = commands.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
        all.extend(names.filter(|name| !["", "help"].contains(name)).map(|name| format!("{group} {name}")));
    }
    let known = STEPS.iter().map(|(command, _)| command[..2].join(" "));
    let known: BTreeSet<_> = known.chain(OTHERS.iter().map(|name| (*name).to_owned())).collect();
    assert_eq!(all, known);
}

#[test]
fn policy_status_shows_lock_and_grants_and_a_revoked_grant_is_invalid() {
    let machine = Machine::new();
    machine.serve().stop();
    let org = machine.first_org();
    let user = machine.json(&["users", "ls"])[0]["id"].as_str().unwrap().to_owned();
    machine.json(&["policy", "lock", "--reason", "a drill"]);
    let grant = ["policy", "override", "grant", "--user", &user, "--org", &org, "--ticket", "INC-1"];
    let granted = machine.json(&[&grant[..], &["--reason", "fire", "--minutes", "5"]].concat());
    let status = machine.json(&["policy", "status"]);
    assert_eq!(
        (&status["lock"]["locked"], &status["lock"]["changedBy"]),
        (&json!(true), &json!(host_user()))
    );
    assert_eq!(status["grants"][0]["id"], granted["id"], "{status}");
    assert_eq!(status["pins"]["lanes"].as_str().unwrap().len(), 40, "{status}");
    let shown = machine.run(&["policy", "status"]).out;
    assert!(shown.contains("ENGAGED") && shown.contains("INC-1") && shown.contains("lanes@"), "{shown}");
    let email = machine.json(&["users", "ls"])[0]["email"].as_str().unwrap().to_owned();
    assert!(shown.contains(&email), "people know addresses, not ids: {shown}");
    assert!(machine.run(&["policy", "grants", "ls"]).out.contains(&email));
    let unknown = machine.run(&["policy", "grants", "revoke", "INC-2", "--reason", "it is over"]);
    assert!(unknown.code == 1 && unknown.err.contains("policy grants ls"), "{}", unknown.err);
    let id = granted["id"].as_str().unwrap();
    let revoked = machine.run(&["policy", "grants", "revoke", &id[..8], "--reason", "it is over"]);
    assert!(revoked.code == 0 && revoked.out.contains(&email), "{}{}", revoked.out, revoked.err);
    for name in ["INC-1", &email] {
        machine.json(&[&grant[..], &["--reason", "fire", "--minutes", "5"]].concat());
        machine.json(&["policy", "grants", "revoke", name, "--reason", "it is over"]);
    }
    assert_eq!(machine.json(&["policy", "grants", "ls"]), json!([]));
    let all = machine.json(&["policy", "grants", "ls", "--all"]);
    assert_eq!(all.as_array().unwrap().len(), 3, "{all}");
    assert_eq!((&all[0]["state"], &all[0]["revokedBy"]), (&json!("revoked"), &json!(host_user())), "{all}");
    let again = machine.run(&["policy", "grants", "revoke", id, "--reason", "it is over"]);
    assert!(again.code == 1 && again.err.contains("grants ls"), "{}", again.err);
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

/// Adds some events to the system chain, and a checkpoint that covers them.
fn grow(machine: &Machine) {
    machine.json(&["db", "migrate"]);
    machine.json(&["policy", "lock", "--reason", "a drill"]);
    machine.json(&["policy", "unlock", "--reason", "it is over"]);
    machine.serve().stop();
}

#[test]
fn after_a_restore_verify_says_what_happened_and_only_a_signed_restore_explains_it() {
    let machine = Machine::new();
    grow(&machine);
    let backup = path(&machine.file("backup.db"));
    assert_eq!(machine.run(&["db", "backup", &backup]).code, 0);
    grow(&machine);
    grow(&machine);
    let kept = machine.file("kept.txt");
    std::fs::copy(machine.data_dir().join("checkpoints/checkpoints.txt"), &kept).unwrap();
    let before = machine.json(&["audit", "verify"])["records"].as_u64().unwrap();

    let restored = machine.json(&["db", "restore", &backup, "--yes"]);
    let records = restored["records"].as_u64().unwrap();
    assert!(records < before, "{restored}");
    for step in ["at once", "as it grows", "beyond where it was"] {
        let verified = machine.run(&["audit", "verify"]);
        assert_eq!(verified.code, 0, "{step}: {}", verified.err);
        let by = format!("by {} (record {records})", host_user());
        assert!(
            verified.out.contains("rolled back by a restore at") && verified.out.contains(&by),
            "{}",
            verified.out
        );
        // Verification also succeeds against checkpoints that an auditor kept from before.
        let verified = machine.run(&["audit", "verify", "--checkpoint", &path(&kept)]);
        assert!(
            verified.code == 0 && verified.out.contains(&by),
            "{step}: {} {}",
            verified.out,
            verified.err
        );
        grow(&machine);
    }
    let event = machine.json(&["audit", "tail", "--limit", "100"]);
    let event =
        event.as_array().unwrap().iter().find(|it| it["position"] == records).unwrap()["event"].clone();
    assert_eq!(event["actor"]["actor_id"], host_user(), "{event}");
    // Copying the same file over the database by hand leaves no restore event, so verification fails.
    std::fs::copy(&backup, machine.data_dir().join("proliferate.db")).unwrap();
    let found = machine.run(&["audit", "verify"]);
    assert_eq!(found.code, 1, "{}", found.out);
}

#[test]
fn a_lost_audit_key_is_not_replaced_silently() {
    let machine = Machine::new();
    grow(&machine);
    let key = machine.data_dir().join("audit.key");
    let old = machine.json(&["audit", "key"])["key"].as_str().unwrap().to_owned();
    let early = machine.run(&["audit", "replace-lost-key", "--reason", "why not"]);
    assert!(early.code == 1 && early.err.contains("rotate-key"), "{}", early.err);
    std::fs::remove_file(&key).unwrap();
    let refused = machine.run(&["serve", "--listen", "127.0.0.1:0"]);
    assert_ne!(refused.code, 0);
    assert!(refused.err.contains("replace-lost-key") && !key.exists(), "{}", refused.err);

    let new = machine.json(&["audit", "replace-lost-key", "--reason", "the disk died"])["key"].clone();
    assert_ne!(new, json!(old));
    let event = last_event(&machine)["event"].clone();
    assert_eq!((&event["target"]["operation"], &event["notes"]), (&json!("replace_lost"), &new), "{event}");
    grow(&machine);
    let verified = machine.run(&["audit", "verify"]);
    assert_eq!(verified.code, 0, "{}", verified.err);
    assert!(verified.out.contains("was lost and replaced at record"), "{}", verified.out);
    // Whoever holds the lost public key can still verify the records before the replacement.
    let file = machine.file("old.pub");
    std::fs::write(&file, &old).unwrap();
    let verified = machine.run(&["audit", "verify", "--key", &path(&file)]);
    assert!(
        verified.code == 0 && verified.out.contains("was lost and replaced"),
        "{} {}",
        verified.out,
        verified.err
    );
}
