//! The git directory of a directory, and whether all that git reads through it is below the operator's roots. A repository can
//! name other directories: in a `.git` file, in `commondir`, in its alternates, and by symbolic links.
//!
//! The check is made for every request. It protects from a repository that leads elsewhere, not from a user of this machine
//! who changes it between the check and git's reading.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// The longest file that names other directories.
const MAX_POINTER: u64 = 64 * 1024;
/// Git ignores alternates of alternates beyond this depth.
const MAX_ALTERNATES_DEPTH: usize = 5;

/// The roots, without symbolic links.
pub(super) struct Roots(Vec<PathBuf>);

impl Roots {
    pub(super) fn new(roots: &[PathBuf]) -> Self {
        Self(roots.iter().filter_map(|root| root.canonicalize().ok()).collect())
    }

    /// The path without symbolic links, if it exists below a root.
    pub(super) fn resolve(&self, path: &Path) -> Option<PathBuf> {
        let path = path.canonicalize().ok()?;
        self.0.iter().any(|root| path.starts_with(root)).then_some(path)
    }

    fn confine(&self, path: &Path) -> io::Result<PathBuf> {
        self.resolve(path).ok_or_else(|| {
            io::Error::other(format!(
                "{} leads out of WORKSPACE_LOCAL_ROOTS, or to something that does not exist",
                path.display()
            ))
        })
    }

    /// The git directory of a directory, or the directory itself if it is bare.
    pub(super) fn git_dir(&self, directory: &Path) -> io::Result<PathBuf> {
        let dot_git = directory.join(".git");
        let dir = match pointer(&dot_git)? {
            Some(text) => {
                let target = text.strip_prefix("gitdir: ").ok_or_else(|| unreadable(&dot_git))?;
                self.confine(&directory.join(target))?
            }
            None if dot_git.is_dir() => self.confine(&dot_git)?,
            None => directory.to_owned(),
        };
        // Git would prefer what is in there.
        if dir.join(".git").symlink_metadata().is_ok() {
            return Err(io::Error::other(format!("{} contains another .git", dir.display())));
        }
        let common = match pointer(&dir.join("commondir"))? {
            Some(text) => self.confine(&dir.join(text))?,
            None => dir.clone(),
        };
        self.confine_links(&dir)?;
        if !common.starts_with(&dir) {
            self.confine_links(&common)?;
        }
        let objects = common.join("objects");
        if objects.exists() {
            self.confine_alternates(&self.confine(&objects)?, MAX_ALTERNATES_DEPTH)?;
        }
        Ok(dir)
    }

    /// Checks every symbolic link below a directory, except those to hooks, which no fetch runs.
    fn confine_links(&self, directory: &Path) -> io::Result<()> {
        let mut directories = vec![directory.to_owned()];
        while let Some(next) = directories.pop() {
            for entry in next.read_dir()? {
                let entry = entry?;
                let kind = entry.file_type()?;
                if kind.is_symlink() && (next != directory || entry.file_name() != "hooks") {
                    let target = self.confine(&entry.path())?;
                    // What it leads to is below a root, but may contain further links.
                    if target.is_dir() && !target.starts_with(directory) {
                        return Err(io::Error::other(format!(
                            "{} is a link to a directory elsewhere",
                            entry.path().display()
                        )));
                    }
                } else if kind.is_dir() && (next != directory || entry.file_name() != "hooks") {
                    directories.push(entry.path());
                }
            }
        }
        Ok(())
    }

    fn confine_alternates(&self, objects: &Path, depth: usize) -> io::Result<()> {
        let file = objects.join("info/alternates");
        let Some(text) = pointer(&file)? else { return Ok(()) };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            // Git unquotes such a line.
            if line.starts_with('"') || depth == 0 {
                return Err(unreadable(&file));
            }
            let other = self.confine(&objects.join(line))?;
            self.confine_links(&other)?;
            self.confine_alternates(&other, depth - 1)?;
        }
        Ok(())
    }
}

/// The content of a file that names other paths, without the line break at its end; `None` if there is no such file.
fn pointer(path: &Path) -> io::Result<Option<String>> {
    let file = match path.metadata() {
        Ok(about) if about.is_file() => File::open(path)?,
        Ok(_) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = String::new();
    file.take(MAX_POINTER + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_POINTER {
        return Err(unreadable(path));
    }
    Ok(Some(text.trim_end_matches(['\r', '\n']).to_owned()))
}

fn unreadable(path: &Path) -> io::Error {
    io::Error::other(format!("{} cannot be checked: it is not as git writes it", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// A directory with a root and a repository beside the root, whose git directory is `secret/.git`.
    fn machine() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        for place in ["root/app/.git", "root/other/.git", "secret/.git"] {
            std::fs::create_dir_all(base.join(place).join("objects/info")).unwrap();
            std::fs::create_dir_all(base.join(place).join("refs/heads")).unwrap();
            std::fs::write(base.join(place).join("HEAD"), "ref: refs/heads/main\n").unwrap();
        }
        (dir, base.join("root"), base.join("secret"))
    }

    fn git_dir(root: &Path, directory: &str) -> io::Result<PathBuf> {
        Roots::new(&[root.to_owned()]).git_dir(&root.join(directory))
    }

    #[test]
    fn a_git_file_may_name_only_a_directory_below_the_roots() {
        let (_dir, root, secret) = machine();
        assert_eq!(git_dir(&root, "app").unwrap(), root.join("app/.git"));
        assert_eq!(git_dir(&root, "app/.git").unwrap(), root.join("app/.git"), "a bare one");
        std::fs::create_dir(root.join("tree")).unwrap();
        let point = |to: &str| std::fs::write(root.join("tree/.git"), to).unwrap();
        point("gitdir: ../app/.git\n");
        assert_eq!(git_dir(&root, "tree").unwrap(), root.join("app/.git"));
        let absolute = format!("gitdir: {}\n", secret.join(".git").display());
        for outside in ["gitdir: ../../secret/.git\n", &absolute, "gitdir: nowhere", "../app/.git", ""] {
            point(outside);
            assert!(git_dir(&root, "tree").is_err(), "{outside:?}");
        }
        std::fs::remove_file(root.join("tree/.git")).unwrap();
        symlink(secret.join(".git"), root.join("tree/.git")).unwrap();
        assert!(git_dir(&root, "tree").is_err(), "a link");
        std::fs::write(root.join("app/.git/.git"), &absolute).unwrap();
        assert!(git_dir(&root, "app").is_err(), "git would prefer the inner one");
    }

    #[test]
    fn a_linked_worktree_may_share_only_a_repository_below_the_roots() {
        let (_dir, root, secret) = machine();
        let linked = root.join("app/.git/worktrees/tree");
        std::fs::create_dir_all(&linked).unwrap();
        std::fs::create_dir(root.join("tree")).unwrap();
        std::fs::write(root.join("tree/.git"), format!("gitdir: {}\n", linked.display())).unwrap();
        std::fs::write(linked.join("commondir"), "../..\n").unwrap();
        assert_eq!(git_dir(&root, "tree").unwrap(), linked);
        std::fs::write(linked.join("commondir"), secret.join(".git").display().to_string()).unwrap();
        assert!(git_dir(&root, "tree").is_err());
    }

    #[test]
    fn alternates_and_links_may_lead_only_below_the_roots() {
        let (_dir, root, secret) = machine();
        let alternates = |of: &str| root.join(of).join(".git/objects/info/alternates");
        std::fs::write(alternates("app"), "# borrowed\n../../../other/.git/objects\n").unwrap();
        assert!(git_dir(&root, "app").is_ok());
        let outside = secret.join(".git/objects").display().to_string();
        for line in [&outside, "../../../../secret/.git/objects", &format!("\"{outside}\"")] {
            std::fs::write(alternates("other"), format!("{line}\n")).unwrap();
            assert!(git_dir(&root, "app").is_err() && git_dir(&root, "other").is_err(), "{line}");
        }
        std::fs::remove_file(alternates("other")).unwrap();
        std::fs::write(alternates("other"), "../../../app/.git/objects\n").unwrap();
        assert!(git_dir(&root, "app").is_err(), "a circle ends");
        std::fs::remove_file(alternates("other")).unwrap();
        assert!(git_dir(&root, "app").is_ok());

        let inside = |link: &str, to: &Path| {
            let at = root.join("app/.git").join(link);
            symlink(to, &at).unwrap();
            let found = git_dir(&root, "app").is_ok();
            std::fs::remove_file(at).unwrap();
            found
        };
        assert!(inside("refs/heads/main", Path::new("../../HEAD")), "a link of the repository's own");
        assert!(inside("hooks", &secret), "no fetch runs a hook");
        for link in ["refs/heads/main", "packed-refs", "objects/ab", "objects/info/packs"] {
            assert!(!inside(link, &secret.join(".git/HEAD")), "{link}");
            assert!(!inside(link, &secret.join(".git/objects")), "{link}");
        }
        symlink(secret.join(".git/objects"), root.join("other/.git/objects/cd")).unwrap();
        assert!(git_dir(&root, "app").is_err(), "of the alternate");
    }
}
