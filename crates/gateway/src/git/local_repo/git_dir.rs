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
/// How many files one request looks at, all alternates included: a fraction of a second. Git itself packs more than 6,700
/// loose objects, so only unpacked refs, submodules and LFS lead to more than some thousand.
const MAX_ENTRIES: usize = 200_000;

/// How many more files a request may look at.
struct Budget(usize);

impl Budget {
    fn spend(&mut self, path: &Path) -> io::Result<()> {
        self.0 = self.0.checked_sub(1).ok_or_else(|| {
            let reason = format!("{} is beyond the {MAX_ENTRIES} files that are checked", path.display());
            io::Error::new(io::ErrorKind::FileTooLarge, reason)
        })?;
        Ok(())
    }
}

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

    /// The git directory of a directory, or the directory itself if it is bare. The error is `NotFound` if there is no
    /// repository, and `FileTooLarge` if there is too much to check.
    pub(super) fn git_dir(&self, directory: &Path) -> io::Result<PathBuf> {
        let dir = self.named_git_dir(directory)?;
        refuse_alternatives(&dir)?;
        let common = match pointer(&dir.join("commondir"))? {
            Some(text) => self.confine(&dir.join(text))?,
            None => dir.clone(),
        };
        let objects = common.join("objects");
        // Otherwise every directory would be taken for a bare repository, and all that is below it would be checked.
        if !dir.join("HEAD").is_file() || !objects.is_dir() {
            let reason = format!("{} is no repository: HEAD or objects is missing", dir.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, reason));
        }
        let mut budget = Budget(MAX_ENTRIES);
        self.confine_links(&dir, &mut budget)?;
        if common != dir {
            self.confine_links(&common, &mut budget)?;
        }
        self.confine_alternates(&self.confine(&objects)?, MAX_ALTERNATES_DEPTH, &mut budget)?;
        Ok(dir)
    }

    fn named_git_dir(&self, directory: &Path) -> io::Result<PathBuf> {
        let dot_git = directory.join(".git");
        match pointer(&dot_git)? {
            Some(text) => {
                let target = text.strip_prefix("gitdir: ").ok_or_else(|| unreadable(&dot_git))?;
                self.confine(&directory.join(target))
            }
            None if dot_git.is_dir() => self.confine(&dot_git),
            None => Ok(directory.to_owned()),
        }
    }

    /// Checks every symbolic link below a directory, except those in `hooks`, which no fetch runs. What git removes
    /// meanwhile, when it packs objects or commits, is skipped.
    fn confine_links(&self, directory: &Path, budget: &mut Budget) -> io::Result<()> {
        let hooks = directory.join("hooks");
        let mut directories = vec![directory.to_owned()];
        while let Some(next) = directories.pop() {
            let Some(entries) = existing(next.read_dir())? else { continue };
            for entry in entries {
                let Some(entry) = existing(entry)? else { continue };
                let path = entry.path();
                budget.spend(&path)?;
                let Some(kind) = existing(entry.file_type())? else { continue };
                if path == hooks {
                    continue;
                }
                if kind.is_symlink() {
                    let target = self.confine(&path)?;
                    // What it leads to is below a root, but may contain further links.
                    let is_checked = target.starts_with(directory) && !target.starts_with(&hooks);
                    if target.is_dir() && !is_checked {
                        let reason = format!("{} is a link to a directory elsewhere", path.display());
                        return Err(io::Error::other(reason));
                    }
                } else if kind.is_dir() {
                    directories.push(path);
                }
            }
        }
        Ok(())
    }

    fn confine_alternates(&self, objects: &Path, depth: usize, budget: &mut Budget) -> io::Result<()> {
        let file = objects.join("info/alternates");
        let Some(text) = pointer(&file)? else { return Ok(()) };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            // Git unquotes such a line.
            if line.starts_with('"') || depth == 0 {
                return Err(unreadable(&file));
            }
            let other = self.confine(&objects.join(line))?;
            // A line costs something even if the directory is empty: each of thousands may name thousands.
            budget.spend(&other)?;
            self.confine_links(&other, budget)?;
            self.confine_alternates(&other, depth - 1, budget)?;
        }
        Ok(())
    }
}

/// Refuses a git directory `X` if there is another that git could take instead: it looks at `X/.git`, `X`, `X.git/.git`
/// and `X.git`, and takes the first that it finds valid, by rules which are not repeated here.
fn refuse_alternatives(dir: &Path) -> io::Result<()> {
    let mut beside = dir.as_os_str().to_owned();
    beside.push(".git");
    for other in [dir.join(".git"), beside.into()] {
        if existing(other.symlink_metadata())?.is_some() {
            let reason = format!("git could take {} instead of {}", other.display(), dir.display());
            return Err(io::Error::other(reason));
        }
    }
    Ok(())
}

/// `None` if there is no such file, or no longer.
fn existing<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// The content of a file that names other paths, without the line break at its end; `None` if there is no such file.
fn pointer(path: &Path) -> io::Result<Option<String>> {
    // Opening a named pipe would wait.
    if !existing(path.metadata())?.is_some_and(|about| about.is_file()) {
        return Ok(None);
    }
    let Some(file) = existing(File::open(path))? else { return Ok(None) };
    let mut text = String::new();
    file.take(MAX_POINTER + 1).read_to_string(&mut text)?;
    // To git, a carriage return is part of an alternate's name, and not of a `.git` file's.
    if text.len() as u64 > MAX_POINTER || text.contains('\r') {
        return Err(unreadable(path));
    }
    Ok(Some(text.trim_end_matches('\n').to_owned()))
}

fn unreadable(path: &Path) -> io::Error {
    io::Error::other(format!("{} cannot be checked: it is not as git writes it", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::sync::atomic::{AtomicBool, Ordering};

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
        std::fs::write(linked.join("HEAD"), "ref: refs/heads/tree\n").unwrap();
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
        let other_name = "../../../app/.git/objects/info\r";
        for line in [&outside, "../../../../secret/.git/objects", &format!("\"{outside}\""), other_name] {
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

    #[test]
    fn a_git_directory_is_refused_beside_another_that_git_could_take() {
        let (_dir, root, secret) = machine();
        let bare = root.join("bare");
        std::fs::create_dir(&bare).unwrap();
        std::fs::write(root.join("app/.git/HEAD"), "garbage").unwrap();
        assert!(git_dir(&root, "app").is_ok(), "git refuses it");
        for target in [secret.clone(), secret.join(".git"), PathBuf::from("nowhere")] {
            for (directory, beside) in [("bare", "bare.git"), ("app", "app/.git.git")] {
                symlink(&target, root.join(beside)).unwrap();
                assert!(git_dir(&root, directory).is_err(), "{beside} to {}", target.display());
                std::fs::remove_file(root.join(beside)).unwrap();
            }
        }
        std::fs::create_dir(bare.join("objects")).unwrap();
        std::fs::write(bare.join("HEAD"), "garbage").unwrap();
        assert!(git_dir(&root, "bare").is_ok());
        symlink(secret.join(".git"), root.join("bare.git")).unwrap();
        assert!(git_dir(&root, "bare").is_err());
    }

    #[test]
    fn hooks_are_not_checked_and_lead_nowhere() {
        let (_dir, root, secret) = machine();
        let git = root.join("app/.git");
        std::fs::create_dir_all(git.join("hooks/objects")).unwrap();
        symlink(&secret, git.join("hooks/objects/ab")).unwrap();
        assert!(git_dir(&root, "app").is_ok());
        symlink("../hooks/objects", git.join("objects/ab")).unwrap();
        assert!(git_dir(&root, "app").is_err(), "a link to hooks");
        std::fs::remove_file(git.join("objects/ab")).unwrap();
        std::fs::write(git.join("commondir"), "hooks\n").unwrap();
        assert!(git_dir(&root, "app").is_err(), "hooks as the common directory");
    }

    #[test]
    fn only_a_repository_is_checked_and_not_without_limit() {
        let (_dir, root, _) = machine();
        for missing in ["HEAD", "objects"] {
            let plain = root.join("plain");
            std::fs::create_dir(&plain).unwrap();
            if missing == "HEAD" {
                std::fs::create_dir(plain.join("objects")).unwrap();
            } else {
                std::fs::write(plain.join("HEAD"), "ref: refs/heads/main\n").unwrap();
            }
            symlink("/", plain.join("link")).unwrap();
            let error = git_dir(&root, "plain").unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{missing}: {error}");
            std::fs::remove_dir_all(&plain).unwrap();
        }
        let roots = Roots::new(std::slice::from_ref(&root));
        let check = |files| roots.confine_links(&root.join("app/.git"), &mut Budget(files));
        // HEAD, objects, objects/info, refs and refs/heads.
        assert!(check(5).is_ok());
        assert_eq!(check(4).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        let other = root.join("other/.git/objects");
        std::fs::write(other.join("info/alternates"), "../../../app/.git/objects/info\n").unwrap();
        let check = |files| roots.confine_alternates(&other, MAX_ALTERNATES_DEPTH, &mut Budget(files));
        assert!(check(1).is_ok());
        assert_eq!(check(0).unwrap_err().kind(), io::ErrorKind::FileTooLarge, "an empty alternate");
    }

    #[test]
    fn what_git_removes_during_the_check_is_skipped() {
        let (_dir, root, _) = machine();
        let done = AtomicBool::new(false);
        let failed = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for name in ["aa", "bb", "cc", "dd"] {
                        let loose = root.join("app/.git/objects").join(name);
                        std::fs::create_dir(&loose).unwrap();
                        std::fs::remove_dir(&loose).unwrap();
                    }
                }
            });
            let failed = (0..1000).find_map(|_| git_dir(&root, "app").err());
            done.store(true, Ordering::Relaxed);
            failed
        });
        assert!(failed.is_none(), "{failed:?}");
    }
}
