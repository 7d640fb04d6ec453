//! Git's configuration inside a sandbox: it fetches the session's repositories from the gateway, which has their
//! credentials, and commits as the session's creator.

use std::fmt::Write as _;

use secrecy::{ExposeSecret as _, SecretString};
use store::{Member, PlacedRepo};
use url::Url;

use super::forge::canonical_url;

/// The characters of a repository's name in a URL.
const NAME_CHARACTERS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+%";
/// Name and email of commits in a session without a creator.
const DEFAULT_AUTHOR: [&str; 2] = ["proliferate agent", "noreply@proliferate.invalid"];

/// Makes git fetch these repositories from the gateway, with the sandbox's token.
pub(super) fn gateway_routes(gateway_url: &str, token: &SecretString, repos: &[PlacedRepo]) -> String {
    let gateway = format!("{gateway_url}/git/");
    let mut text = format!(
        "[http \"{gateway}\"]\n\textraHeader = Authorization: Bearer {}\n\tfollowRedirects = false\n",
        token.expose_secret()
    );
    let urls: Vec<Url> = repos.iter().filter_map(|placed| canonical_url(&placed.repo)).collect();
    for url in &urls {
        for end in ["", ".git"] {
            rewrite(&mut text, &format!("{}{end}", route(gateway_url, url)), &format!("{url}{end}"));
        }
    }
    // `insteadOf` matches prefixes: the longest wins, and the first of equal length. A URL that merely begins like a
    // repository of the session must stay as it is, so every possible next character is rewritten to itself.
    for url in &urls {
        for end in ["", ".git"] {
            for character in NAME_CHARACTERS.chars() {
                let longer = format!("{url}{end}{character}");
                rewrite(&mut text, &longer, &longer);
            }
        }
    }
    text
}

/// The gateway's URL of a repository, for programs inside.
pub(super) fn route(gateway_url: &str, url: &Url) -> String {
    let rest = url.as_str().split_once("://").map_or("", |(_, rest)| rest);
    format!("{gateway_url}/git/{}/{rest}", url.scheme())
}

/// The URLs need no quoting: the URL parser has encoded quotes, backslashes and newlines.
fn rewrite(text: &mut String, to: &str, from: &str) {
    let _ = write!(text, "[url \"{to}\"]\n\tinsteadOf = \"{from}\"\n");
}

/// The author of commits, unless the repository or the user's own configuration sets one. It replaces the machine's
/// configuration, and therefore includes it.
pub(super) fn author(creator: Option<&Member>) -> String {
    let author: [&str; 2] = match creator {
        // Git rejects a name without any letter or digit.
        Some(member) if member.name.contains(char::is_alphanumeric) => [&member.name, &member.email],
        Some(member) => [&member.email, &member.email],
        None => DEFAULT_AUTHOR,
    };
    let [name, email] = author.map(quote);
    format!("[include]\n\tpath = /etc/gitconfig\n[user]\n\tname = {name}\n\temail = {email}\n")
}

/// A configuration value in quotes, whatever it contains.
fn quote(text: &str) -> String {
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

    fn git(directory: &Path, arguments: &[&str]) -> String {
        let mut command = Command::new("git");
        let file = directory.join("git.config").display().to_string();
        let system = directory.join("git.identity").display().to_string();
        command.current_dir(directory).args(arguments).envs([
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
    fn git_fetches_a_sessions_repositories_from_the_gateway_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let urls = ["https://h/o/app.git", "https://h/o/appx", "https://h/o/app-ui", "file:///srv/a"];
        let text = gateway_routes("http://g", &"t".to_owned().into(), &urls.map(placed));
        std::fs::write(directory.path().join("git.config"), text).unwrap();
        let fetched_from = |url: &str| git(directory.path(), &["ls-remote", "--get-url", url]);
        for (url, to) in [
            ("https://h/o/app", "http://g/git/https/h/o/app"),
            ("https://h/o/app/", "http://g/git/https/h/o/app/"),
            ("https://h/o/app.git", "http://g/git/https/h/o/app.git"),
            ("https://h/o/appx", "http://g/git/https/h/o/appx"),
            ("https://h/o/app-ui.git", "http://g/git/https/h/o/app-ui.git"),
            ("file:///srv/a", "http://g/git/file//srv/a"),
        ] {
            assert_eq!(fetched_from(url), to);
        }
        for other in
            ["app-utils", "app-u", "app2", "apple.git", "app.github.io", "app.gi", "App", "appxy", "ap"]
        {
            let url = format!("https://h/o/{other}");
            assert_eq!(fetched_from(&url), url);
        }
    }

    #[test]
    fn commits_have_the_creators_name_unless_the_repository_sets_another() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        git(directory, &["init", "-q"]);
        let commit_author = |creator: Option<Member>| {
            std::fs::write(directory.join("git.identity"), author(creator.as_ref())).unwrap();
            git(directory, &["commit", "-q", "--allow-empty", "-m", "m"]);
            git(directory, &["log", "-1", "--format=%an|%ae|%cn|%ce"])
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
                commit_author(Some(member(name))),
                format!("{shown}|ada@example.com|{shown}|ada@example.com")
            );
        }
        let [name, email] = DEFAULT_AUTHOR;
        assert_eq!(commit_author(None), format!("{name}|{email}|{name}|{email}"));
        git(directory, &["config", "user.name", "Bob"]);
        assert!(commit_author(None).starts_with("Bob|"));
    }
}
