//! What git is told inside a sandbox, whoever runs it: to ask us for the session's repositories, because we have their
//! credentials and nobody inside does, and whose commits it makes.

use std::fmt::Write as _;

use secrecy::{ExposeSecret as _, SecretString};
use store::{Member, PlacedRepo};
use url::Url;

use super::forge::place;

/// What names of repositories are made of in a URL.
const LETTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+%";
/// Whose commits are nobody's.
const NOBODY: [&str; 2] = ["proliferate agent", "noreply@proliferate.invalid"];

/// Leads git to us for these repositories, with the sandbox's token.
pub(super) fn routes(gateway_url: &str, token: &SecretString, repos: &[PlacedRepo]) -> String {
    let gateway = format!("{gateway_url}/git/");
    let mut text = format!(
        "[http \"{gateway}\"]\n\textraHeader = Authorization: Bearer {}\n\tfollowRedirects = false\n",
        token.expose_secret()
    );
    let urls: Vec<Url> = repos.iter().filter_map(|placed| place(&placed.repo)).collect();
    for url in &urls {
        for end in ["", ".git"] {
            rewrite(&mut text, &format!("{}{end}", route(gateway_url, url)), &format!("{url}{end}"));
        }
    }
    // Git compares beginnings, the longest wins, and of two that are alike the first: so whatever only begins like a
    // repository of the session, and is none itself, is rewritten to what it is.
    for url in &urls {
        for end in ["", ".git"] {
            for letter in LETTERS.chars() {
                let other = format!("{url}{end}{letter}");
                rewrite(&mut text, &other, &other);
            }
        }
    }
    text
}

/// Where the gateway serves a repository to programs inside.
pub(super) fn route(gateway_url: &str, url: &Url) -> String {
    let rest = url.as_str().split_once("://").map_or("", |(_, rest)| rest);
    format!("{gateway_url}/git/{}/{rest}", url.scheme())
}

/// A URL of ours has no quote, backslash or newline: the parser encodes them.
fn rewrite(text: &mut String, to: &str, from: &str) {
    let _ = write!(text, "[url \"{to}\"]\n\tinsteadOf = \"{from}\"\n");
}

/// Whose commits git makes, where neither the repository nor the user's own settings say so. It takes the place of the
/// machine's settings, and so brings them along.
pub(super) fn identity(creator: Option<&Member>) -> String {
    let who: [&str; 2] = match creator {
        // Git refuses a name in which there is nothing to read.
        Some(member) if member.name.contains(char::is_alphanumeric) => [&member.name, &member.email],
        Some(member) => [&member.email, &member.email],
        None => NOBODY,
    };
    let [name, email] = who.map(quoted);
    format!("[include]\n\tpath = /etc/gitconfig\n[user]\n\tname = {name}\n\temail = {email}\n")
}

/// One value of a setting, whatever is in it.
fn quoted(text: &str) -> String {
    let plain: String = text.chars().filter(|c| !c.is_control()).collect();
    format!("\"{}\"", plain.replace('\\', r"\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use proto::Role;

    use super::super::forge::repo_at;
    use super::*;

    fn placed(url: &str) -> PlacedRepo {
        PlacedRepo { repo: repo_at(url), workspace_path: ".".to_owned() }
    }

    fn git(folder: &Path, arguments: &[&str]) -> String {
        let mut command = Command::new("git");
        let file = folder.join("git.config").display().to_string();
        let system = folder.join("git.identity").display().to_string();
        command.current_dir(folder).args(arguments).envs([
            ("GIT_CONFIG_COUNT", "1"),
            ("GIT_CONFIG_KEY_0", "include.path"),
            ("GIT_CONFIG_VALUE_0", &file),
            ("GIT_CONFIG_SYSTEM", &system),
            ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ]);
        let ran = command.output().unwrap();
        assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8(ran.stdout).unwrap().trim().to_owned()
    }

    #[test]
    fn git_asks_us_for_a_sessions_repositories_and_for_none_that_is_only_called_alike() {
        let folder = tempfile::tempdir().unwrap();
        let urls = ["https://h/o/app.git", "https://h/o/appx", "https://h/o/app-ui", "file:///srv/a"];
        let text = routes("http://g", &"t".to_owned().into(), &urls.map(placed));
        std::fs::write(folder.path().join("git.config"), text).unwrap();
        let led = |url: &str| git(folder.path(), &["ls-remote", "--get-url", url]);
        for (url, to) in [
            ("https://h/o/app", "http://g/git/https/h/o/app"),
            ("https://h/o/app/", "http://g/git/https/h/o/app/"),
            ("https://h/o/app.git", "http://g/git/https/h/o/app.git"),
            ("https://h/o/appx", "http://g/git/https/h/o/appx"),
            ("https://h/o/app-ui.git", "http://g/git/https/h/o/app-ui.git"),
            ("file:///srv/a", "http://g/git/file//srv/a"),
        ] {
            assert_eq!(led(url), to);
        }
        for other in
            ["app-utils", "app-u", "app2", "apple.git", "app.github.io", "app.gi", "App", "appxy", "ap"]
        {
            let url = format!("https://h/o/{other}");
            assert_eq!(led(&url), url);
        }
    }

    #[test]
    fn a_commit_is_its_creators_whatever_they_are_called_and_the_repository_has_the_last_word() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        git(folder, &["init", "-q"]);
        let author = |creator: Option<Member>| {
            std::fs::write(folder.join("git.identity"), identity(creator.as_ref())).unwrap();
            git(folder, &["commit", "-q", "--allow-empty", "-m", "m"]);
            git(folder, &["log", "-1", "--format=%an|%ae|%cn|%ce"])
        };
        let member = |name: &str| Member {
            user_id: uuid::Uuid::nil().into(),
            org_id: uuid::Uuid::nil().into(),
            email: "ada@example.com".to_owned(),
            name: name.to_owned(),
            role: Role::Member,
            created_at: chrono::DateTime::UNIX_EPOCH,
        };
        for (name, shown) in [
            ("Ada Lovelace", "Ada Lovelace"),
            (r#"A"d\a ; # $(x)"#, r#"A"d\a ; # $(x)"#),
            ("Ada\n[core]\n\teditor = x", "Ada[core]editor = x"),
            ("...", "ada@example.com"),
            ("Ädä", "Ädä"),
        ] {
            assert_eq!(
                author(Some(member(name))),
                format!("{shown}|ada@example.com|{shown}|ada@example.com")
            );
        }
        let [name, email] = NOBODY;
        assert_eq!(author(None), format!("{name}|{email}|{name}|{email}"));
        git(folder, &["config", "user.name", "Bob"]);
        assert!(author(None).starts_with("Bob|"));
    }
}
