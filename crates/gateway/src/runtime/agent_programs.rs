//! The programs of the host that an agent's sandbox gets: its own, and the browser that it steers, if there is one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use agent::Browser;
use sandboxd::server::DEFAULT_PATH;

use super::Sandboxes;
use crate::config::{self, Engine, find_program};

/// The names in `/opt` of the agent and of the packages of Playwright's MCP server.
const AGENT_DIR: &str = "agent";
const SERVER_DIR: &str = "playwright-mcp";
/// The server requires these packages by name. npm puts them beside the server, or into its own directory.
const REQUIRED_PACKAGES: [&str; 2] = ["playwright", "playwright-core"];

/// The programs for one sandbox.
pub(super) struct AgentPrograms {
    pub(super) agent: PathBuf,
    pub(super) browser: Option<BrowserPrograms>,
}

impl AgentPrograms {
    /// The directories to mount into the sandbox, by name.
    pub(super) fn mounts(&self) -> BTreeMap<&'static str, PathBuf> {
        let packages = self.browser.iter().flat_map(|browser| browser.packages.clone());
        packages.chain([(AGENT_DIR, self.agent.clone())]).collect()
    }

    /// The path of the agent's program inside.
    pub(super) fn agent(&self, sandboxes: &Sandboxes) -> String {
        sandboxes.place_of(AGENT_DIR, &self.agent)
    }

    /// The browser with its paths inside.
    pub(super) fn browser(&self, sandboxes: &Sandboxes) -> Option<Browser> {
        let BrowserPrograms { packages, program } = self.browser.as_ref()?;
        let server = sandboxes.place_of(SERVER_DIR, packages.get(SERVER_DIR)?);
        let packages = Path::new(&server).parent()?.to_string_lossy().into_owned();
        Some(Browser { server: format!("{server}/cli.js"), packages, program: program.clone() })
    }
}

/// Playwright's MCP server on this machine, and Chromium in the sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowserPrograms {
    packages: BTreeMap<&'static str, PathBuf>,
    /// The path of Chromium inside.
    program: String,
}

/// The reason why agents have no browser.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoBrowser {
    #[error("SANDBOX_BROWSER is 0")]
    SwitchedOff,
    #[error("attached agents bring their own")]
    Attached,
    #[error("playwright-mcp is not on the PATH")]
    NoServer,
    #[error("sandboxes have no program `{0}`")]
    NoProgram(&'static str),
}

impl BrowserPrograms {
    pub fn find(sandboxes: &config::Sandboxes, search_path: &[PathBuf]) -> Result<Self, NoBrowser> {
        if !sandboxes.browser {
            return Err(NoBrowser::SwitchedOff);
        }
        let inside = |name: &'static str| {
            let found = match sandboxes.engine {
                Engine::Attach(_) => return Err(NoBrowser::Attached),
                Engine::Process => find_program(search_path, name),
                Engine::Local => find_inside(sandboxes.rootfs.as_deref().unwrap_or(Path::new("/")), name),
            };
            Ok(found.ok_or(NoBrowser::NoProgram(name))?.to_string_lossy().into_owned())
        };
        let program = inside("chromium")?;
        inside("node")?;
        let server = find_program(search_path, SERVER_DIR).and_then(|program| program.canonicalize().ok());
        let server = server.as_deref().and_then(Path::parent).ok_or(NoBrowser::NoServer)?;
        let mut packages = BTreeMap::from([(SERVER_DIR, server.to_owned())]);
        // The server's package is in a directory of its own, `@playwright`, beside the others.
        let beside = server.ancestors().nth(2).unwrap_or(server);
        packages.extend(
            REQUIRED_PACKAGES
                .map(|name| (name, beside.join(name)))
                .into_iter()
                .filter(|(_, path)| path.is_dir()),
        );
        Ok(Self { packages, program })
    }

    /// The path of Chromium inside.
    pub fn program(&self) -> &str {
        &self.program
    }
}

/// The path inside of a program that a sandbox has from this root filesystem. It may be a link that leads nowhere outside.
fn find_inside(root: &Path, name: &str) -> Option<PathBuf> {
    let paths = DEFAULT_PATH.split(':').map(|directory| Path::new(directory).join(name));
    let exists = |path: &PathBuf| {
        let relative = path.strip_prefix("/").unwrap_or(path);
        root.join(relative).symlink_metadata().is_ok()
    };
    paths.into_iter().find(exists)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use super::*;
    use crate::config::Config;

    /// A root filesystem with these programs, and a directory into which npm installed the server.
    fn machine(
        programs: &[&str],
        installed: bool,
    ) -> (tempfile::TempDir, Result<BrowserPrograms, NoBrowser>) {
        let directory = tempfile::tempdir().unwrap();
        let at = |path: &str| directory.path().join(path);
        fs::create_dir_all(at("root/usr/bin")).unwrap();
        for program in programs {
            fs::write(at("root/usr/bin").join(program), "").unwrap();
        }
        for package in ["@playwright/mcp", "playwright", "playwright-core", "other", ".bin"] {
            fs::create_dir_all(at("node_modules").join(package)).unwrap();
        }
        if installed {
            let server = at("node_modules/@playwright/mcp/cli.js");
            fs::write(&server, "").unwrap();
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(&server, mode).unwrap();
            std::os::unix::fs::symlink(&server, at("node_modules/.bin/playwright-mcp")).unwrap();
        }
        let rootfs = ("SANDBOX_ROOTFS".to_owned(), at("root").to_string_lossy().into_owned());
        let config = Config::load(&BTreeMap::new(), &[rootfs]).unwrap();
        let found = BrowserPrograms::find(&config.sandboxes, &[at("node_modules/.bin")]);
        (directory, found)
    }

    #[test]
    fn a_browser_needs_its_server_node_and_chromium() {
        assert_eq!(machine(&["node", "chromium"], false).1, Err(NoBrowser::NoServer));
        assert_eq!(machine(&["node"], true).1, Err(NoBrowser::NoProgram("chromium")));
        assert_eq!(machine(&["chromium"], true).1, Err(NoBrowser::NoProgram("node")));
        let (_directory, found) = machine(&["node", "chromium"], true);
        let found = found.unwrap();
        assert_eq!(found.program(), "/usr/bin/chromium");
        let names: Vec<_> = found.packages.keys().copied().collect();
        assert_eq!(names, ["playwright", "playwright-core", "playwright-mcp"], "and no other package");
        assert!(found.packages["playwright-mcp"].ends_with("@playwright/mcp"));
    }
}
