//! Checks house rules that neither rustfmt nor clippy enforces. Lists all violations at once.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::Span;
use syn::visit::{self, Visit};

const MAX_FILE_LINES: usize = 600;
const MAX_FUNCTION_LINES: usize = 80;
const MAX_FIELDS: usize = 12;
const SOURCE_EXTENSIONS: [&str; 4] = ["rs", "ts", "tsx", "js"];
/// Files that are not in git or not written by us. In a linked worktree `.git` is a file.
const SKIPPED_DIRECTORIES: [&str; 5] = ["target", ".git", ".tools", "node_modules", "dist"];

/// The types in this directory are messages of the wire, so their fields are not ours to group.
const WIRE_CRATE: &str = "crates/proto/";
/// Types that have more fields than [`MAX_FIELDS`], and why. An entry that is not needed fails too.
const MANY_FIELDS: [(&str, &str, &str); 23] = [
    ("crates/cli/src/args/policy.rs", "ExplainArgs", "arguments of a command"),
    ("crates/egress/src/limits.rs", "Limits", "settings of the egress proxy"),
    (
        "crates/gateway/src/app.rs",
        "App",
        "the parts of a running gateway; what handlers use most stays one name away",
    ),
    ("crates/gateway/src/config.rs", "Config", "settings"),
    ("crates/gateway/src/llm/chat.rs", "Fields", "a request of the Chat Completions API, field by field"),
    ("crates/gateway/src/llm/messages.rs", "Fields", "a request of the Messages API, field by field"),
    ("crates/gateway/src/sessions/draft.rs", "SessionDraft", "a request to create a session, field by field"),
    ("crates/ledger/src/event.rs", "Event", "an event of the audit contract, field by field"),
    ("crates/opencode/src/event.rs", "Properties", "the fields of all events of OpenCode"),
    ("crates/policy/src/lanes.rs", "Lane", "an entry of lanes.yaml, field by field"),
    ("crates/policy/src/request.rs", "Request", "a question to policy, field by field as replay stores it"),
    ("crates/store/src/audit.rs", "ArtifactRow", "a row of artifacts"),
    ("crates/store/src/automation_run.rs", "AutomationRun", "a row of automation_runs"),
    (
        "crates/store/src/automation_trigger.rs",
        "NewTriggerEvent",
        "a row of trigger_events, and the run that it starts",
    ),
    ("crates/store/src/configuration.rs", "Configuration", "a row of configurations"),
    ("crates/store/src/egress.rs", "NewEgressRecord", "a row of egress_records"),
    (
        "crates/store/src/gate/plan.rs",
        "Plan",
        "one list for each kind of row that a transaction of the gate writes",
    ),
    ("crates/store/src/invocation.rs", "Invocation", "a row of invocations, with its run"),
    ("crates/store/src/repo.rs", "Repo", "a row of repos"),
    ("crates/store/src/run.rs", "NewRun", "a row of runs, when it begins"),
    ("crates/store/src/run.rs", "Run", "a row of runs"),
    ("crates/store/src/session.rs", "NewSession", "a row of sessions, when it is created"),
    ("crates/store/src/session_record.rs", "SessionRecord", "a row of sessions"),
];

/// Line number and problem; line 0 means the whole file.
type Violation = (usize, String);

#[test]
fn the_repository_is_tidy() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let mut report = String::new();
    let mut checked = 0;
    for path in files(&root) {
        // Binary files are not checked; files that disappear in the meantime are ignored.
        let Ok(text) = fs::read_to_string(&path) else { continue };
        checked += 1;
        let shown = path.strip_prefix(&root).unwrap();
        for (line, problem) in check(shown, &text) {
            writeln!(report, "{}:{line}: {problem}", shown.display()).unwrap();
        }
    }
    for problem in unneeded_reasons(&root) {
        writeln!(report, "crates/testkit/tests/tidy.rs: {problem}").unwrap();
    }
    assert!(checked > 20, "only {checked} files were found: the walk is broken");
    assert!(report.is_empty(), "the repository is not tidy:\n{report}");
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        let Ok(kind) = entry.file_type() else { continue };
        if SKIPPED_DIRECTORIES.iter().any(|skipped| name == *skipped) {
            continue;
        }
        if kind.is_dir() {
            found.extend(files(&path));
        } else if kind.is_file() {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn check(path: &Path, text: &str) -> Vec<Violation> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let mut found = [machine_paths(text), trailing_spaces(text)].concat();
    if SOURCE_EXTENSIONS.contains(&extension) {
        found.extend(file_length(text));
    }
    if extension == "rs" {
        found.extend(file_name(path));
        found.extend(opening(text));
        found.extend(unfinished(text));
        found.extend(function_lengths(text));
        found.extend(field_counts(path, text));
    }
    found
}

fn file_length(text: &str) -> Option<Violation> {
    let lines = text.lines().count();
    (lines > MAX_FILE_LINES)
        .then(|| (0, format!("{lines} lines exceed the limit of {MAX_FILE_LINES}: split the file by topic")))
}

fn file_name(path: &Path) -> Option<Violation> {
    let old = path.file_name().is_some_and(|name| name == "mod.rs");
    old.then(|| (0, "use `directory.rs` next to the directory instead of `directory/mod.rs`".to_owned()))
}

fn opening(text: &str) -> Option<Violation> {
    (!text.starts_with("//!"))
        .then(|| (1, "start the file with a `//!` line that says why it exists".to_owned()))
}

fn trailing_spaces(text: &str) -> Vec<Violation> {
    lines_with(text, |line| line.ends_with([' ', '\t', '\r']), "trailing white space")
}

/// The strings are assembled here, so that this file does not contain what it searches for.
fn machine_paths(text: &str) -> Vec<Violation> {
    let needles = [["/work", "/main"].concat(), ["/work", "/shared"].concat(), ["/root", "/"].concat()];
    // Only at the start of a path: `/proc/1` also has a directory with that name, and it exists on every
    // machine.
    let begins = |line: &str, at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '*');
    let found =
        |line: &str| needles.iter().any(|needle| line.match_indices(needle).any(|(at, _)| begins(line, at)));
    lines_with(text, found, "a path that exists only on one machine")
}

fn unfinished(text: &str) -> Vec<Violation> {
    let needles = [["todo", "!("].concat(), ["unimplemented", "!("].concat(), ["#[", "ignore"].concat()];
    // An ignored test that another test runs in its own process is allowed.
    let run_by_another = ["#[", "ignore = \"run by "].concat();
    lines_with(
        text,
        |line| needles.iter().any(|needle| line.contains(needle)) && !line.contains(&run_by_another),
        "unfinished code or an ignored test",
    )
}

fn lines_with(text: &str, wrong: impl Fn(&str) -> bool, problem: &str) -> Vec<Violation> {
    let numbered = (1..).zip(text.split('\n'));
    numbered.filter(|(_, line)| wrong(line)).map(|(number, _)| (number, problem.to_owned())).collect()
}

fn function_lengths(text: &str) -> Vec<Violation> {
    let mut functions = Functions::default();
    match syn::parse_file(text) {
        Ok(file) => functions.visit_file(&file),
        Err(error) => {
            functions.0.push((error.span().start().line, format!("the file does not parse: {error}")));
        }
    }
    functions.0
}

#[derive(Default)]
struct Functions(Vec<Violation>);

impl Functions {
    /// Counts from `fn` to the closing brace; documentation and attributes do not count.
    fn measure(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let start = signature.fn_token.span.start().line;
        let end = Span::end(&body.brace_token.span.close()).line;
        let lines = end + 1 - start;
        if lines > MAX_FUNCTION_LINES {
            let name = &signature.ident;
            self.0.push((
                start,
                format!("`{name}` has {lines} lines, more than the limit of {MAX_FUNCTION_LINES}"),
            ));
        }
    }
}

impl Visit<'_> for Functions {
    fn visit_item_fn(&mut self, function: &syn::ItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &syn::ImplItemFn) {
        self.measure(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.measure(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

/// Types with too many fields and no stated reason. A file that does not parse is reported by [`function_lengths`].
fn field_counts(path: &Path, text: &str) -> Vec<Violation> {
    if path.starts_with(WIRE_CRATE) {
        return Vec::new();
    }
    let stated =
        |name: &str| MANY_FIELDS.iter().any(|(file, known, _)| path == Path::new(file) && *known == name);
    let unstated = wide_types(text).into_iter().filter(|wide| !stated(&wide.name));
    let problem = |WideType { line, name, fields }| {
        let problem = format!(
            "`{name}` has {fields} fields, more than the limit of {MAX_FIELDS}: group them, or state a reason"
        );
        (line, problem)
    };
    unstated.map(problem).collect()
}

/// Reasons for types that are gone, or have few fields now.
fn unneeded_reasons(root: &Path) -> Vec<String> {
    let needed = |path: &str, name: &str| {
        let text = fs::read_to_string(root.join(path)).unwrap_or_default();
        wide_types(&text).iter().any(|wide| wide.name == name)
    };
    let unneeded = MANY_FIELDS.iter().filter(|(path, name, _)| !needed(path, name));
    unneeded.map(|(path, name, _)| format!("`{name}` in {path} needs no reason any more")).collect()
}

/// A type with more fields than [`MAX_FIELDS`].
struct WideType {
    line: usize,
    name: String,
    fields: usize,
}

fn wide_types(text: &str) -> Vec<WideType> {
    let mut structs = Structs::default();
    if let Ok(file) = syn::parse_file(text) {
        structs.visit_file(&file);
    }
    structs.0
}

#[derive(Default)]
struct Structs(Vec<WideType>);

impl Visit<'_> for Structs {
    fn visit_item_struct(&mut self, item: &syn::ItemStruct) {
        let fields = item.fields.len();
        if fields > MAX_FIELDS {
            let line = item.struct_token.span.start().line;
            self.0.push(WideType { line, name: item.ident.to_string(), fields });
        }
        visit::visit_item_struct(self, item);
    }
}

/// Each rule against a violation, and against the closest thing that is not one.
mod rules {
    use super::*;

    fn lines_of(violations: &[Violation]) -> Vec<usize> {
        violations.iter().map(|(line, _)| *line).collect()
    }

    #[test]
    fn long_files_are_found() {
        assert!(file_length(&"x\n".repeat(MAX_FILE_LINES)).is_none());
        assert!(file_length(&"x\n".repeat(MAX_FILE_LINES + 1)).is_some());
    }

    #[test]
    fn old_style_module_files_are_found() {
        assert!(file_name(Path::new("a/mod.rs")).is_some());
        assert!(file_name(Path::new("a/model.rs")).is_none());
    }

    #[test]
    fn files_without_opening_comment_are_found() {
        assert!(opening("use std::fs;\n//! late").is_some());
        assert!(opening("").is_some());
        assert!(opening("//! Why.").is_none());
    }

    #[test]
    fn trailing_white_space_is_found() {
        assert_eq!(lines_of(&trailing_spaces("a\nb \nc\t\r\n\n d")), [2, 3]);
    }

    #[test]
    fn machine_paths_are_found() {
        let planted =
            ["ok\ncd /wo", "rk/main/x\n/ro", "ot/.cargo\n/wo", "rk/shared\n/work/other\n/rooted"].concat();
        assert_eq!(lines_of(&machine_paths(&planted)), [2, 3, 4]);
    }

    #[test]
    fn unfinished_code_is_found() {
        let planted =
            ["tod", "o!()\nunimpl", "emented!(\"x\")\n#[igno", "re = \"slow\"]\ntodo list"].concat();
        assert_eq!(lines_of(&unfinished(&planted)), [1, 2, 3]);
    }

    #[test]
    fn long_functions_are_found_wherever_they_are() {
        let of = |lines: usize| format!("fn f() {{\n{}}}\n", "x();\n".repeat(lines - 2));
        let (fits, long) = (of(MAX_FUNCTION_LINES), of(MAX_FUNCTION_LINES + 1));
        assert!(function_lengths(&fits).is_empty());
        assert_eq!(lines_of(&function_lengths(&long)), [1]);
        assert_eq!(lines_of(&function_lengths(&format!("struct S;\nimpl S {{\n/// Doc.\n{long}}}"))), [4]);
        assert_eq!(lines_of(&function_lengths(&format!("trait T {{ fn g(); \n{long}}}"))), [2]);
        assert_eq!(lines_of(&function_lengths(&format!("fn outer() {{\n{long}}}"))), [1, 2]);
        assert_eq!(lines_of(&function_lengths("fn broken( {")), [1]);
    }

    #[test]
    fn types_with_many_fields_are_found() {
        let of = |name: &str, fields: usize| {
            let fields: Vec<_> = (0..fields).map(|number| format!("    f{number}: u8,")).collect();
            format!("//! Why.\nstruct {name} {{\n{}\n}}\n", fields.join("\n"))
        };
        let many = of("S", MAX_FIELDS + 1);
        let gate = Path::new("crates/gate/src/s.rs");
        assert!(field_counts(gate, &of("S", MAX_FIELDS)).is_empty());
        assert_eq!(lines_of(&field_counts(gate, &many)), [2]);
        assert_eq!(check(gate, &many).len(), 1);
        assert_eq!(check(Path::new("crates/proto/src/s.rs"), &many).len(), 0);
        assert_eq!(check(Path::new("crates/store/src/s.rs"), &many).len(), 1);
        let config = of("Config", MAX_FIELDS + 1);
        assert!(field_counts(Path::new("crates/gateway/src/config.rs"), &config).is_empty());
        assert_eq!(lines_of(&field_counts(gate, &config)), [2], "a reason belongs to one type of one file");
    }

    #[test]
    fn reasons_that_are_not_needed_are_found() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(unneeded_reasons(root.path()).len(), MANY_FIELDS.len());
    }

    #[test]
    fn each_rule_applies_to_the_right_files() {
        let wrong = ["fn f() { tod", "o!() } \n"].concat();
        assert_eq!(check(Path::new("src/mod.rs"), &wrong).len(), 4);
        assert_eq!(check(Path::new("notes.md"), &wrong).len(), 1);
        let long = "x\n".repeat(MAX_FILE_LINES + 1);
        assert_eq!(check(Path::new("a.ts"), &long).len(), 1);
        assert_eq!(check(Path::new("a.md"), &long).len(), 0);
    }
}
