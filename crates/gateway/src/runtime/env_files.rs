//! The specification of environment files: which files a project reads, and the names of the variables in each. People
//! and setup agents edit it, so everything is checked where it is entered.

use std::ffi::OsStr;
use std::path::{Component, Path, PathBuf};

use sandboxd::protocol::EnvFile;
use serde_json::Value;

use crate::vault::is_name;

const MAX_FILES: usize = 10;
const MAX_KEYS: usize = 50;
const MAX_PATH: usize = 500;

/// Parses a list as it is stored. `None` for a list that no check accepted.
pub(crate) fn parse(stored: Option<Value>) -> Option<Vec<EnvFile>> {
    let files: Vec<EnvFile> = match stored {
        None | Some(Value::Null) => return Some(Vec::new()),
        Some(stored) => serde_json::from_value(stored).ok()?,
    };
    files.iter().all(|file| place(file).is_some()).then_some(files)
}

/// The path of a file in the workspace.
pub(crate) fn place(file: &EnvFile) -> Option<PathBuf> {
    let directory = workspace_directory(&file.workspace_path)?;
    Some(directory.join(workspace_file(&file.path)?))
}

/// A path of a file inside the workspace in its plain form. `None` for a path that leaves the workspace, is empty, or
/// is not one line.
pub(crate) fn workspace_file(path: &str) -> Option<PathBuf> {
    workspace_directory(path).filter(|plain| !plain.as_os_str().is_empty())
}

/// The same for a directory, which may be the workspace itself.
fn workspace_directory(path: &str) -> Option<PathBuf> {
    if path.chars().count() > MAX_PATH || path.chars().any(char::is_control) || path.contains('\\') {
        return None;
    }
    let parts = Path::new(path).components().filter(|part| *part != Component::CurDir);
    parts.map(|part| matches!(part, Component::Normal(_)).then_some(part)).collect()
}

/// The directories of repositories with these places in the workspace.
pub(crate) fn repo_directories<'a>(places: impl IntoIterator<Item = &'a str>) -> Vec<PathBuf> {
    places.into_iter().filter_map(workspace_directory).collect()
}

/// Checks that a file with secrets may be at this path of a workspace, which has repositories in these directories. Each
/// sandbox writes it anew, keeps it out of commits, and no snapshot has it: so it must not be one of Git's files or of
/// ours, or a directory.
pub(crate) fn check_place(path: &Path, repos: &[PathBuf]) -> Result<(), String> {
    let shown = path.display();
    let is_reserved =
        |part: &OsStr| [".git", ".proliferate"].iter().any(|own| part.eq_ignore_ascii_case(own));
    if path.iter().any(is_reserved) {
        return Err(format!(
            "{shown} is in a directory .git or .proliferate, which belong to Git and the gateway"
        ));
    }
    if path.to_string_lossy().contains(['*', '?', '[']) {
        return Err(format!("{shown} contains *, ? or [, and Git would take it for other files too"));
    }
    if repos.iter().any(|repo| repo.starts_with(path)) {
        return Err(format!("{shown} is the directory of a repository, or one above it: name a file"));
    }
    Ok(())
}

/// Checks a list that somebody wants to store in this field, for workspaces with repositories in these directories. Every
/// violation names its field and limit.
pub(crate) fn check(field: &str, files: &[EnvFile], repos: &[PathBuf]) -> Result<(), String> {
    if files.len() > MAX_FILES {
        return Err(format!("{field} has at most {MAX_FILES} entries"));
    }
    let problems: Vec<String> = files
        .iter()
        .enumerate()
        .flat_map(|(index, file)| problems(&format!("{field}[{index}]"), file, repos))
        .collect();
    let mut places: Vec<_> = files.iter().filter_map(place).collect();
    places.sort();
    if places.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(format!("{field} names the same file twice"));
    }
    // Sorted by their components, a directory comes right before what is in it.
    if let Some(pair) = places.windows(2).find(|pair| pair[1].starts_with(&pair[0])) {
        let (file, inner) = (pair[0].display(), pair[1].display());
        return Err(format!("{field} names {file} as a file, and {inner} in it"));
    }
    if problems.is_empty() { Ok(()) } else { Err(problems.join("; ")) }
}

fn problems(entry: &str, file: &EnvFile, repos: &[PathBuf]) -> Vec<String> {
    let at = |field: &str, rule: &str| format!("{entry}.{field} must be {rule}");
    let mut found = Vec::new();
    if let Some(Err(reason)) = place(file).map(|path| check_place(&path, repos)) {
        found.push(format!("{entry}.path: {reason}"));
    }
    if workspace_directory(&file.workspace_path).is_none() {
        found.push(at("workspacePath", "a path inside the workspace, of at most 500 characters"));
    }
    if names_directory(&file.path) || workspace_file(&file.path).is_none() {
        found.push(at("path", "a file inside the workspace, of 1 to 500 characters"));
    }
    if file.keys.is_empty() || file.keys.len() > MAX_KEYS {
        found.push(at("keys", "a list of 1 to 50 variables"));
    }
    let odd = file.keys.iter().take(MAX_KEYS).position(|key| !is_name(&key.key));
    if let Some(number) = odd {
        let field = format!("keys[{number}].key");
        found.push(at(
            &field,
            "letters, digits and _, not begin with a digit, and have at most 200 characters",
        ));
    }
    found
}

/// Whether a path can only be a directory's.
fn names_directory(path: &str) -> bool {
    matches!(path.rsplit('/').next(), Some("" | "."))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn files(workspace_path: &str, path: &str, key: &str) -> Vec<EnvFile> {
        let file = json!({"workspacePath": workspace_path, "path": path, "keys": [{"key": key}]});
        serde_json::from_value(json!([file])).unwrap()
    }

    #[test]
    fn each_violation_names_its_field() {
        assert_eq!(check("envFiles", &files(".", "app/.env", "A"), &[]), Ok(()));
        for (workspace_path, path, key, field) in [
            ("..", ".env", "A", "envFiles[0].workspacePath"),
            ("/etc", ".env", "A", "envFiles[0].workspacePath"),
            ("app", "../../x", "A", "envFiles[0].path"),
            ("app", "/etc/passwd", "A", "envFiles[0].path"),
            ("app", ".", "A", "envFiles[0].path"),
            ("app", "./", "A", "envFiles[0].path"),
            ("app", "", "A", "envFiles[0].path"),
            ("app", "config/", "A", "envFiles[0].path"),
            ("app", "config/.", "A", "envFiles[0].path"),
            ("app", "a\nb", "A", "envFiles[0].path"),
            (".", ".env", "2A", "envFiles[0].keys[0].key"),
            (".", ".env", "A B", "envFiles[0].keys[0].key"),
        ] {
            let said = check("envFiles", &files(workspace_path, path, key), &[]).unwrap_err();
            assert!(said.starts_with(field), "{said}");
        }
        let twice = [files(".", "app/.env", "A"), files("app", "./.env", "B")].concat();
        assert!(check("envFiles", &twice, &[]).unwrap_err().contains("twice"));
        let nested = [files(".", "app", "A"), files(".", "app.env", "C"), files("app", ".env", "B")].concat();
        assert_eq!(
            check("files", &nested, &[]).unwrap_err(),
            "files names app as a file, and app/.env in it"
        );
        let many = vec![files(".", ".env", "A").remove(0); 11];
        assert!(check("envFiles", &many, &[]).unwrap_err().contains("at most 10"));
    }

    #[test]
    fn a_file_with_secrets_is_no_directory_of_a_repository_and_none_of_gits_or_ours() {
        let repos = ["app", "services/api"].map(PathBuf::from);
        let check = |path: &str| check("envFiles", &files(".", path, "A"), &repos);
        for fine in [".env", "app/.env", "services/.env", "application", "app/.github/x", "app/.gitignore"] {
            assert_eq!(check(fine), Ok(()), "{fine}");
        }
        for (wrong, part) in [
            ("app", "app is the directory of a repository"),
            ("./services", "services is the directory of a repository, or one above it"),
            ("services/api", "the directory of a repository"),
            ("app/.git", "in a directory .git"),
            ("app/.git/hooks/pre-commit", "in a directory .git"),
            (".GIT/config", "in a directory .git"),
            (".proliferate/actions-guide.md", "or .proliferate"),
            ("*", "contains *"),
            ("app/[ab].env", "contains *"),
        ] {
            let said = check(wrong).unwrap_err();
            assert!(said.starts_with("envFiles[0].path: ") && said.contains(part), "{wrong}: {said}");
        }
    }

    #[test]
    fn a_stored_list_that_no_check_accepted_is_not_used() {
        assert_eq!(parse(None).map(|files| files.len()), Some(0));
        let stored = |path: &str| Some(json!([{"path": path, "keys": []}]));
        assert!(parse(stored("app/.env")).is_some());
        assert!(parse(stored("../.env")).is_none());
        assert!(parse(Some(json!({"path": "x"}))).is_none());
    }

    #[test]
    fn a_path_is_found_by_its_names() {
        let found = |text: &str| workspace_file(text).map(|path| path.display().to_string());
        assert_eq!(found("./app/./.env").as_deref(), Some("app/.env"));
        assert_eq!(found("app//.env").as_deref(), Some("app/.env"));
        for wrong in ["", ".", "../x", "app/../../x", "/etc/x"] {
            assert_eq!(found(wrong), None, "{wrong}");
        }
    }
}
