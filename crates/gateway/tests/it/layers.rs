//! Checks that dependencies inside the gateway point one way: a module depends only on modules of lower layers.

mod root_paths;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use root_paths::{exports, names_below_root};

/// The layers from top to bottom. Modules of one layer do not depend on each other.
const LAYERS: [&[&str]; 14] = [
    &["boot"],
    &["edge", "app"],
    &["notifications", "changes"],
    &["automations"],
    &["actions"],
    &["sessions", "sweep"],
    &["hub"],
    &["sources"],
    &["git", "connectors", "databases"],
    &["runtime"],
    &["admission"],
    &["identity", "server", "llm", "vault", "outbound", "access", "shares", "telemetry"],
    &["keyring", "data_dir", "lifecycle"],
    &["config"],
];

/// Dependencies that still point upward or sideways. The list may only shrink: an entry that is no longer needed fails
/// too.
const EXCEPTIONS: [(&str, &str); 2] = [
    // Handlers receive the complete `AppState`, and sockets depend on the credentials that `edge` looks up.
    ("edge", "app"),
    ("app", "edge"),
];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

fn rust_files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The top-level module that a name below the crate's root belongs to: itself, or the module that `lib.rs` exports it
/// from.
fn module_of(name: &str, exports: &BTreeMap<String, String>) -> Option<String> {
    let module = exports.get(name).map_or(name, String::as_str);
    layer(module).map(|_| module.to_owned())
}

/// All pairs of modules in which the first depends on the second.
fn edges() -> BTreeSet<(String, String)> {
    let exports = exports(&std::fs::read_to_string(sources().join("lib.rs")).unwrap());
    let mut files = Vec::new();
    rust_files(&sources(), &mut files);
    let mut edges = BTreeSet::new();
    for file in files {
        let path = file.strip_prefix(sources()).unwrap().with_extension("");
        let module = path.iter().next().unwrap().to_str().unwrap().to_owned();
        if module == "lib" {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains("#[path"), "{}: a module must be where its name says", file.display());
        for name in names_below_root(&text, path.iter().count()) {
            let target = module_of(&name, &exports);
            let target = target.unwrap_or_else(|| panic!("{}: crate::{name} is in no layer", file.display()));
            edges.insert((module.clone(), target));
        }
    }
    edges.into_iter().filter(|(from, to)| from != to).collect()
}

/// The files of a module that use a crate.
fn files_that_use(module: &str, name: &str) -> Vec<PathBuf> {
    files_with(module, &format!("{name}::"))
}

/// The files of a module whose text contains `text`.
fn files_with(module: &str, text: &str) -> Vec<PathBuf> {
    let mut files = vec![sources().join(module).with_extension("rs")];
    if sources().join(module).is_dir() {
        rust_files(&sources().join(module), &mut files);
    }
    files.retain(|file| std::fs::read_to_string(file).unwrap().contains(text));
    files
}

fn layer(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&module))
}

#[test]
fn every_module_has_a_layer() {
    for entry in std::fs::read_dir(sources()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let Some(module) = name.strip_suffix(".rs").filter(|module| *module != "lib") else { continue };
        assert!(
            layer(module).is_some(),
            "{module} is in no layer: add it to this test and to ARCHITECTURE.md"
        );
    }
}

#[test]
fn dependencies_point_down() {
    let upward: BTreeSet<(String, String)> =
        edges().into_iter().filter(|(from, to)| layer(from) >= layer(to)).collect();
    let known: BTreeSet<(String, String)> =
        EXCEPTIONS.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect();
    let new: Vec<_> = upward.difference(&known).collect();
    assert!(new.is_empty(), "these modules depend on one of their own layer or above it: {new:?}");
    let gone: Vec<_> = known.difference(&upward).collect();
    assert!(gone.is_empty(), "these exceptions are not needed any more: {gone:?}");
}

/// Everything but `edge` and `boot` receives what it needs, so that the signature of a function says what it can reach.
#[test]
fn only_edge_and_boot_depend_on_the_state_of_all_parts() {
    let layers = LAYERS.iter().copied().flatten().filter(|module| !["boot", "edge", "app"].contains(module));
    for module in layers {
        assert_eq!(files_with(module, "AppState"), Vec::<PathBuf>::new(), "{module}");
    }
    assert_eq!(files_with("boot", "AppState").len(), 1, "the check finds a type that is used");
}

/// Live sessions know nothing of HTTP, so that other callers than requests and sockets can use them.
#[test]
fn hub_does_not_use_axum() {
    assert_eq!(files_that_use("hub", "axum"), Vec::<PathBuf>::new());
    assert!(!files_that_use("edge", "axum").is_empty(), "the check finds a crate that is used");
}

/// The files that may decrypt a platform secret for something that is no call, and what that is.
const OPENS_WITHOUT_PERMIT: [(&str, &str); 5] = [
    ("connectors.rs", "lists the tools of a connector"),
    ("databases.rs", "checks that a database can be reached"),
    ("edge/hooks.rs", "verifies the signature of a webhook"),
    ("edge/notifications.rs", "makes a secret if the organization has none"),
    ("notifications/webhook.rs", "sends a notification"),
];

/// Whatever acts with a secret on behalf of a caller needs the permit of its call.
#[test]
fn only_listed_files_open_a_secret_without_a_permit() {
    let mut files = Vec::new();
    rust_files(&sources(), &mut files);
    files.retain(|file| std::fs::read_to_string(file).unwrap().contains(".open_without_permit("));
    let files: BTreeSet<&str> =
        files.iter().map(|file| file.strip_prefix(sources()).unwrap().to_str().unwrap()).collect();
    let listed = OPENS_WITHOUT_PERMIT.iter().map(|(file, _)| *file).chain(["vault.rs"]).collect();
    assert_eq!(files, listed);
}

/// A second type of agent needs no change in the gateway: `boot` chooses the type, and nothing else knows OpenCode.
#[test]
fn only_boot_uses_opencode() {
    let modules = LAYERS.iter().copied().flatten().filter(|module| **module != "boot");
    for module in modules {
        assert_eq!(files_that_use(module, "opencode"), Vec::<PathBuf>::new(), "{module}");
    }
    assert_eq!(files_that_use("boot", "opencode").len(), 1, "the check finds a crate that is used");
}

#[test]
fn an_upward_dependency_is_found_however_it_is_written() {
    let in_a_file_of_a_module = [
        "use crate::hub::Hub;",
        "fn f() { crate::hub::Hub::new() }",
        "use crate::{git::{A, B}, hub::Hub};",
        "use crate\n::hub::Hub;",
        "use super::super::hub::Hub;",
        "use super::super::{git::{A, B}, hub};",
        "use super::{A, super::hub::Hub};",
        "use self::super::super::hub::Hub;",
        "mod tests { use super::super::super::hub; }",
        "fn f() { json!({ \"a\": [super::super::hub::A] }) }",
    ];
    for text in in_a_file_of_a_module {
        assert!(names_below_root(text, 2).contains("hub"), "{text}");
    }
    assert!(names_below_root("use super::hub::Hub;", 1).contains("hub"), "a top-level module");
    for text in [
        "/// See [`crate::hub`].\nstruct A;",
        "use super::hub;",
        "mod tests { use super::super::hub; }",
        "pub(crate) struct A;",
    ] {
        assert_eq!(names_below_root(text, 2), BTreeSet::new(), "{text}");
    }
}

#[test]
fn an_exported_name_belongs_to_the_module_that_it_comes_from() {
    let exports =
        exports("pub mod hub;\npub use app::App;\npub use sources::{document as tools, known_tool};");
    let module = |name| module_of(name, &exports);
    assert_eq!(module("App").unwrap(), "app");
    assert_eq!(module("tools").unwrap(), "sources");
    assert_eq!(module("known_tool").unwrap(), "sources");
    assert_eq!(module("hub").unwrap(), "hub");
    for unknown in ["Hub", "document", "*", "self"] {
        assert_eq!(module(unknown), None, "{unknown}");
    }
    for (text, unknown) in
        [("use crate::*;", "*"), ("use crate::{self};", "self"), ("use crate as c;", "crate")]
    {
        assert_eq!(names_below_root(text, 1), BTreeSet::from([unknown.to_owned()]), "{text}");
    }
}
