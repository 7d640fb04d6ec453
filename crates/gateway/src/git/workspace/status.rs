//! Parsers of git's machine-readable output: `status --porcelain=v2 --branch -z`, and a log with separators.

use proto::socket::{GitChange, GitCommit, GitState};

/// Parses a status. Unknown entries are ignored.
pub(super) fn parse_status(output: &[u8]) -> GitState {
    let mut state = GitState { ahead: None, behind: None, ..GitState::default() };
    let mut entries =
        output.split(|byte| *byte == 0).map(|entry| String::from_utf8_lossy(entry).into_owned());
    while let Some(entry) = entries.next() {
        match entry.split_once(' ') {
            Some(("#", rest)) => parse_header(&mut state, rest),
            Some(("1", rest)) => add_change(&mut state, rest, 7, None),
            // The old name of a rename is a separate entry.
            Some(("2", rest)) => add_change(&mut state, rest, 8, entries.next()),
            Some(("u", rest)) => state.conflicted_files.extend(field(rest, 9)),
            Some(("?", path)) => state.untracked_files.push(path.to_owned()),
            _ => {}
        }
    }
    state
}

fn parse_header(state: &mut GitState, text: &str) {
    match text.split_once(' ') {
        Some(("branch.head", "(detached)")) => {
            "HEAD (detached)".clone_into(&mut state.branch);
            state.detached = true;
        }
        Some(("branch.head", name)) => name.clone_into(&mut state.branch),
        Some(("branch.ab", counts)) => {
            let mut counts = counts.split(' ').map(|count| count.get(1..)?.parse::<u64>().ok());
            state.ahead = counts.next().flatten();
            state.behind = counts.next().flatten();
        }
        _ => {}
    }
}

/// Adds an entry with two states, some fields, and the path at the end.
fn add_change(state: &mut GitState, rest: &str, path_field: usize, old: Option<String>) {
    let mut letters = rest.chars();
    let (Some(index), Some(worktree), Some(path)) = (letters.next(), letters.next(), field(rest, path_field))
    else {
        return;
    };
    let path = old.map_or_else(|| path.clone(), |old| format!("{old} -> {path}"));
    let change = |index: char, worktree: char| GitChange {
        path: path.clone(),
        index_status: index.to_string(),
        worktree_status: worktree.to_string(),
    };
    if index != '.' {
        state.staged_changes.push(change(index, '.'));
    }
    if worktree != '.' {
        state.unstaged_changes.push(change('.', worktree));
    }
}

/// Everything from the field with this index on: only the last one may contain spaces.
fn field(text: &str, index: usize) -> Option<String> {
    text.splitn(index + 1, ' ').nth(index).map(str::to_owned)
}

/// Parses a log whose fields end with 0x1f and whose records end with 0x1e.
pub(super) fn parse_log(output: &[u8]) -> Vec<GitCommit> {
    let text = String::from_utf8_lossy(output);
    let records = text.split('\u{1e}').map(str::trim_start).filter(|record| !record.is_empty());
    records
        .filter_map(|record| {
            let mut fields = record.split('\u{1f}').map(str::to_owned);
            Some(GitCommit {
                sha: fields.next()?,
                message: fields.next()?,
                author: fields.next()?,
                date: fields.next()?,
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_entry_is_parsed() {
        let text = "# branch.oid abc\0# branch.head feature/x\0# branch.upstream origin/x\0# branch.ab +2 -1\0\
            1 M. N... 100644 100644 100644 aa bb staged file.txt\0\
            1 .M N... 100644 100644 100644 aa bb worktree\0\
            1 MM N... 100644 100644 100644 aa bb both\0\
            2 R. N... 100644 100644 100644 aa bb R100 new name\0old name\0\
            u UU N... 100644 100644 100644 100644 aa bb cc conflict\0\
            ? new file\0! ignored\0";
        let state = parse_status(text.as_bytes());
        assert_eq!((state.branch.as_str(), state.ahead, state.behind), ("feature/x", Some(2), Some(1)));
        let paths =
            |changes: &[GitChange]| changes.iter().map(|change| change.path.clone()).collect::<Vec<_>>();
        assert_eq!(paths(&state.staged_changes), ["staged file.txt", "both", "old name -> new name"]);
        assert_eq!(paths(&state.unstaged_changes), ["worktree", "both"]);
        assert_eq!(state.staged_changes[0].worktree_status, ".");
        assert_eq!(state.unstaged_changes[0].index_status, ".");
        assert_eq!(
            (state.conflicted_files, state.untracked_files),
            (vec!["conflict".to_owned()], vec!["new file".to_owned()])
        );
    }

    #[test]
    fn garbage_is_ignored_without_a_panic() {
        for garbage in [
            "",
            "1",
            "1 ",
            "2 R.",
            "u",
            "# branch.ab",
            "# branch.ab x y",
            "\0\0",
            "1 M. a b",
            "# branch.ab + -",
        ] {
            let state = parse_status(garbage.as_bytes());
            assert!(state.staged_changes.is_empty(), "{garbage:?}");
        }
        assert!(parse_log(b"\x1e\x1f\x1e").is_empty());
    }

    #[test]
    fn a_detached_head_and_a_log_are_parsed() {
        assert_eq!(parse_status(b"# branch.head (detached)\0").branch, "HEAD (detached)");
        let log =
            "a\u{1f}first: x\u{1f}Ada\u{1f}2026-01-01T00:00:00+00:00\u{1e}\nb\u{1f}s\u{1f}B\u{1f}d\u{1e}\n";
        let commits = parse_log(log.as_bytes());
        assert_eq!(
            (commits.len(), commits[1].sha.as_str(), commits[0].message.as_str()),
            (2, "b", "first: x")
        );
    }
}
