//! Checks what each crate depends on: other crates of ours by a list, and packages of others by what the crate must not
//! know. `ARCHITECTURE.md` has the reasons.

#![expect(clippy::unwrap_used, reason = "test helpers may panic like tests")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use toml::Table;

const HTTP_PACKAGES: [&str; 7] =
    ["axum", "http-body-util", "hyper", "hyper-util", "reqwest", "tower", "tower-http"];
const HTTP_SERVERS: [&str; 3] = ["axum", "tower", "tower-http"];
const SQL: [&str; 3] = ["rusqlite", "sqlx", "tokio-postgres"];
const ASYNC_PACKAGES: [&str; 4] = ["async-trait", "futures-util", "tokio", "tokio-util"];

struct Rule {
    name: &'static str,
    /// The crates of ours that it depends on. Adding one is a change of the architecture.
    ours: &'static [&'static str],
    /// Packages of others that it must not depend on. Its tests may.
    forbidden: &'static [&'static [&'static str]],
}

const RULES: [Rule; 23] = [
    rule("agent", &["clock", "proto"], &[&["axum"]]),
    rule("channel", &["clock"], &[&HTTP_PACKAGES, &SQL]),
    rule(
        "cli",
        &[
            "channel", "client", "clock", "egress", "files", "gate", "gateway", "ledger", "policy", "proto",
            "sandbox", "sandboxd", "store",
        ],
        &[&SQL],
    ),
    rule("client", &["proto"], &[&SQL]),
    rule("clock", &[], &[]),
    rule("databases", &["proto", "schemas"], &[&["axum"]]),
    rule("egress", &["clock"], &[&["axum"]]),
    rule("files", &[], &[]),
    rule(
        "gate",
        &["clock", "files", "ledger", "policy", "proto", "shares", "store"],
        &[&HTTP_SERVERS, &["hyper"]],
    ),
    rule(
        "gateway",
        &[
            "agent",
            "channel",
            "clock",
            "databases",
            "egress",
            "files",
            "gate",
            "ledger",
            "mcp",
            "model",
            "opencode",
            "policy",
            "proto",
            "providers",
            "sandbox",
            "sandboxd",
            "schemas",
            "shares",
            "store",
        ],
        &[&SQL],
    ),
    rule("ledger", &[], &[&ASYNC_PACKAGES, &HTTP_PACKAGES, &SQL, &["chrono"]]),
    rule("mcp", &["ledger", "policy", "schemas"], &[&["axum"]]),
    rule("model", &[], &[&ASYNC_PACKAGES, &HTTP_PACKAGES]),
    rule("opencode", &["agent", "clock", "proto"], &[&["axum"]]),
    rule("policy", &["schemas"], &[&ASYNC_PACKAGES, &HTTP_PACKAGES, &SQL, &["chrono"]]),
    rule("proto", &[], &[&ASYNC_PACKAGES, &HTTP_PACKAGES, &SQL]),
    rule("providers", &["ledger", "policy"], &[&["axum", "tokio"]]),
    rule("sandbox", &["clock"], &[&["axum"]]),
    rule("sandboxd", &["channel", "clock", "proto"], &[&["axum"]]),
    rule("schemas", &[], &[&ASYNC_PACKAGES, &HTTP_PACKAGES, &SQL, &["chrono"]]),
    rule("shares", &["clock", "proto"], &[&HTTP_PACKAGES, &SQL]),
    rule("store", &["clock", "ledger", "proto"], &[&["axum"]]),
    rule("testkit", &["agent", "clock", "model", "proto"], &[]),
];

const fn rule(
    name: &'static str,
    ours: &'static [&'static str],
    forbidden: &'static [&'static [&'static str]],
) -> Rule {
    Rule { name, ours, forbidden }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn crates() -> BTreeSet<String> {
    let directories = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap());
    let directories = directories.filter(|directory| directory.path().join("Cargo.toml").is_file());
    directories.map(|directory| directory.file_name().into_string().unwrap()).collect()
}

fn manifest(name: &str) -> Table {
    fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).unwrap().parse().unwrap()
}

/// The packages that the product's code of a crate depends on, on any platform. A dependency may have another name than
/// its package.
fn dependencies(manifest: &Table) -> BTreeSet<String> {
    let targets = manifest.get("target").and_then(toml::Value::as_table).into_iter().flatten();
    let targets = targets.filter_map(|(_, target)| target.as_table());
    let tables = targets.chain([manifest]).flat_map(|tables| {
        ["dependencies", "build-dependencies"].map(|kind| tables.get(kind).and_then(toml::Value::as_table))
    });
    let package = |(name, value): (&String, &toml::Value)| {
        value.get("package").and_then(toml::Value::as_str).unwrap_or(name).to_owned()
    };
    tables.flatten().flatten().map(package).collect()
}

/// What a crate's dependencies have that its rule does not allow, and what the rule allows without need.
fn violations(rule: &Rule, found: &BTreeSet<String>, workspace: &BTreeSet<String>) -> Vec<String> {
    let ours: BTreeSet<&str> = found.intersection(workspace).map(String::as_str).collect();
    let allowed: BTreeSet<&str> = rule.ours.iter().copied().collect();
    let forbidden = rule.forbidden.iter().copied().flatten().filter(|package| found.contains(**package));
    let new = ours.difference(&allowed).map(|name| format!("{} depends on {name}", rule.name));
    let unneeded = allowed.difference(&ours).map(|name| format!("{} no longer needs {name}", rule.name));
    let forbidden = forbidden.map(|package| format!("{} must not depend on {package}", rule.name));
    new.chain(unneeded).chain(forbidden).collect()
}

#[test]
fn crates_depend_only_on_what_their_rule_allows() {
    let workspace = crates();
    let found: Vec<String> = RULES
        .iter()
        .flat_map(|rule| violations(rule, &dependencies(&manifest(rule.name)), &workspace))
        .collect();
    assert!(
        found.is_empty(),
        "correct the dependency, or this list and ARCHITECTURE.md:\n{}",
        found.join("\n")
    );
}

#[test]
fn every_crate_has_a_rule_and_a_row_in_the_architecture() {
    let ruled: BTreeSet<String> = RULES.iter().map(|rule| rule.name.to_owned()).collect();
    assert_eq!(ruled, crates());
    let page = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    for name in ruled {
        assert!(
            page.contains(&format!("| [`{name}`](crates/{name})")),
            "{name} has no row in ARCHITECTURE.md"
        );
    }
}

/// No test but those of the binary starts a gateway: what others need of it would otherwise have no boundary.
#[test]
fn only_the_binary_and_its_tests_depend_on_the_gateway() {
    let uses = |name: &String| manifest(name).values().any(|table| table.get("gateway").is_some());
    let dependents: Vec<String> = crates().into_iter().filter(uses).collect();
    assert_eq!(dependents, ["cli"]);
}

#[test]
fn a_forbidden_dependency_is_found_however_it_is_written() {
    let workspace = BTreeSet::from(["clock", "hub", "gate"].map(str::to_owned));
    let of = |text: &str| {
        let rule = rule("gate", &["clock"], &[&HTTP_SERVERS]);
        violations(&rule, &dependencies(&text.parse::<Table>().unwrap()), &workspace)
    };
    let fine =
        "[dependencies]\nclock.workspace = true\nserde = \"1\"\n[dev-dependencies]\naxum.workspace = true\n";
    assert_eq!(of(fine), Vec::<String>::new());
    for text in [
        "[dependencies]\nclock.workspace = true\naxum.workspace = true",
        "[dependencies]\nclock.workspace = true\nserver = { package = \"axum\", version = \"1\" }",
        "[dependencies]\nclock.workspace = true\n[target.'cfg(unix)'.dependencies]\naxum = \"1\"",
        "[dependencies]\nclock.workspace = true\n[build-dependencies]\naxum = \"1\"",
    ] {
        assert_eq!(of(text), ["gate must not depend on axum"], "{text}");
    }
    assert_eq!(of("[dependencies]\nclock.workspace = true\nhub.workspace = true"), ["gate depends on hub"]);
    assert_eq!(of("[dependencies]\nserde = \"1\""), ["gate no longer needs clock"]);
}
