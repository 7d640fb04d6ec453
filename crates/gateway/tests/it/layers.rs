//! Checks that dependencies inside the gateway point one way: a module names only modules of lower layers.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The layers from top to bottom. Modules of one layer do not name each other.
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

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// The top-level modules that a source text names: `crate::name`, `crate::{name, …}`, and `app` for re-exports in
/// `lib.rs`.
fn named(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for after in text.split("crate::").skip(1) {
        let mut depth = 0;
        let mut starts = vec![0];
        if after.starts_with('{') {
            starts.clear();
            for (at, char) in after.char_indices() {
                match char {
                    '{' if depth == 0 => starts.push(at + 1),
                    ',' if depth == 1 => starts.push(at + 1),
                    _ => {}
                }
                depth += i32::from(char == '{') - i32::from(char == '}');
                if depth == 0 {
                    break;
                }
            }
        }
        for start in starts {
            let name: String = after[start..]
                .trim_start()
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            let is_type = name.starts_with(char::is_uppercase);
            names.insert(if is_type { "app".to_owned() } else { name });
        }
    }
    names
}

/// All pairs of modules in which the first names the second.
fn edges() -> BTreeSet<(String, String)> {
    let mut files = Vec::new();
    rust_files(&sources(), &mut files);
    let mut edges = BTreeSet::new();
    for file in files {
        let place = file.strip_prefix(sources()).unwrap();
        let module = place.components().next().unwrap().as_os_str().to_str().unwrap();
        let module = module.trim_end_matches(".rs").to_owned();
        if module == "lib" {
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap();
        edges.extend(named(&text).into_iter().map(|name| (module.clone(), name)));
    }
    edges.into_iter().filter(|(from, to)| from != to && layer(to).is_some()).collect()
}

/// The files of a module that name a crate.
fn files_that_name(module: &str, name: &str) -> Vec<PathBuf> {
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
    assert!(new.is_empty(), "these modules name one of their own layer or above it: {new:?}");
    let gone: Vec<_> = known.difference(&upward).collect();
    assert!(gone.is_empty(), "these exceptions are not needed any more: {gone:?}");
}

/// Everything but `edge` and `boot` receives what it needs, so that the signature of a function says what it can reach.
#[test]
fn only_edge_and_boot_name_the_state_of_all_parts() {
    let layers = LAYERS.iter().copied().flatten().filter(|module| !["boot", "edge", "app"].contains(module));
    for module in layers {
        assert_eq!(files_with(module, "AppState"), Vec::<PathBuf>::new(), "{module}");
    }
    assert_eq!(files_with("boot", "AppState").len(), 1, "the check finds a name that is used");
}

/// Live sessions know nothing of HTTP, so that other callers than requests and sockets can use them.
#[test]
fn hub_does_not_name_axum() {
    assert_eq!(files_that_name("hub", "axum"), Vec::<PathBuf>::new());
    assert!(!files_that_name("edge", "axum").is_empty(), "the check finds a crate that is named");
}

/// A second type of agent needs no change in the gateway: `boot` chooses the type, and nothing else knows OpenCode.
#[test]
fn only_boot_names_opencode() {
    let modules = LAYERS.iter().copied().flatten().filter(|module| **module != "boot");
    for module in modules {
        assert_eq!(files_that_name(module, "opencode"), Vec::<PathBuf>::new(), "{module}");
    }
    assert_eq!(files_that_name("boot", "opencode").len(), 1, "the check finds a crate that is named");
}

#[test]
fn an_upward_dependency_is_found_however_it_is_written() {
    for text in ["use crate::hub::Hub;", "crate::hub::Hub::new()", "use crate::{git::{A, B}, hub::Hub};"] {
        assert!(named(text).contains("hub"), "{text}");
    }
    assert!(named("use crate::AppState;").contains("app"));
    assert!(!named("use crate::config;").contains("hub"));
}
