//! A provider in a temporary directory, and a program inside that runs scripts.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sandbox::local::{LocalConfig, LocalProvider};
use sandbox::{Provider, SandboxError, SandboxId, Spec};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The port on which the program inside accepts scripts.
pub(crate) const PORT: u16 = 4000;

/// PID 1 of the tests: it runs each connection's input as a shell script and sends back the output.
const SERVER: &str = r"
    use IO::Socket::INET;
    my $key = do { local $/; <STDIN> };
    my $s = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => 4000, Listen => 64, ReuseAddr => 1) or die;
    $SIG{CHLD} = 'IGNORE';
    while (1) {
        my $c = $s->accept or next;
        if (!fork) {
            $SIG{CHLD} = 'DEFAULT';
            my $script = do { local $/; <$c> };
            if ($script eq 'KEY') { print $c $key; exit }
            open STDIN, '<', '/dev/null'; open STDOUT, '>&', $c; open STDERR, '>&', $c;
            close $s; close $c;
            exec '/bin/sh', '-c', $script;
        }
        close $c;
    }
";

/// A script that returns once something listens on port 5000 inside without ever accepting.
pub(crate) const LISTEN: &str = "mkfifo /tmp/up; perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new(LocalAddr => \
    q(127.0.0.1:5000), Listen => 1) or die; open F, q(>), q(/tmp/up); close F; sleep 60' >/dev/null 2>&1 & cat /tmp/up";

pub(crate) struct TestBed {
    pub(crate) provider: LocalProvider,
    pub(crate) directory: tempfile::TempDir,
}

pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_sandbox-helper");

/// Every directory gets its own user ids, like separate gateways on one host.
pub(crate) fn config(root: &Path) -> LocalConfig {
    // Outside of the default range, because real gateways may run on this host.
    static NEXT: AtomicU32 = AtomicU32::new(400_000);
    let first = NEXT.fetch_add(8, Ordering::SeqCst);
    LocalConfig { uids: first..=first + 7, ..LocalConfig::new(root.join("data"), HELPER.into()) }
}

impl TestBed {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut LocalConfig)) -> Self {
        Self::again(tempfile::tempdir().unwrap(), change)
    }

    /// Places the directory on another disk.
    pub(crate) fn below(parent: &Path, change: impl FnOnce(&mut LocalConfig)) -> Self {
        Self::again(tempfile::tempdir_in(parent).unwrap(), change)
    }

    /// Reuses the directory of a previous instance.
    pub(crate) fn again(directory: tempfile::TempDir, change: impl FnOnce(&mut LocalConfig)) -> Self {
        let mut config = config(directory.path());
        change(&mut config);
        Self { provider: LocalProvider::open(config).unwrap(), directory }
    }

    pub(crate) async fn start(&self, name: &str) -> SandboxId {
        self.start_with(name, |_| {}).await
    }

    pub(crate) async fn start_with(&self, name: &str, change: impl FnOnce(&mut Spec)) -> SandboxId {
        let mut spec = spec(name);
        change(&mut spec);
        self.provider.ensure(&spec).await.unwrap();
        spec.id
    }

    /// Runs a script inside and returns its output.
    pub(crate) async fn run(&self, id: &SandboxId, script: &str) -> String {
        run(&self.provider, id, script).await.unwrap()
    }
}

/// Also kills the sandboxes of a test that fails.
impl Drop for TestBed {
    fn drop(&mut self) {
        let provider = self.provider.clone();
        let end = async move {
            for listed in provider.list().await.unwrap_or_default() {
                let _ = provider.terminate(&listed.id).await;
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let done = std::thread::spawn(move || runtime.map(|runtime| runtime.block_on(end)));
        let _ = done.join();
    }
}

/// Whether this host lets us create control groups with this controller; tried independently of the provider.
pub(crate) fn host_allows_cgroups(controller: &str) -> bool {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let group = |names: &str| {
        let line = own.lines().find_map(|line| {
            let (listed, path) = line.split_once(':')?.1.split_once(':')?;
            listed.split(',').any(|name| name == names).then_some(path)
        });
        // With version 2, the provider may have moved this process into a child group.
        line.map(|path| path.trim_end_matches("proliferate-gateway").trim_matches('/').to_owned())
    };
    let made = |directory: PathBuf| {
        let probe = directory.join(format!("test-probe-{}", std::process::id()));
        std::fs::create_dir(&probe).is_ok() && std::fs::remove_dir(&probe).is_ok()
    };
    let root = Path::new("/sys/fs/cgroup");
    if let Some(path) = group(controller) {
        return made(root.join(controller).join(path));
    }
    let Some(directory) = group("").map(|path| root.join(path)) else { return false };
    let listed = std::fs::read_to_string(directory.join("cgroup.controllers")).unwrap_or_default();
    (controller == "freezer" || listed.split_whitespace().any(|name| name == controller)) && made(directory)
}

pub(crate) fn id(name: &str) -> SandboxId {
    SandboxId::new(name).unwrap()
}

pub(crate) fn spec(name: &str) -> Spec {
    Spec::new(id(name), vec!["/usr/bin/perl".into(), "-e".into(), SERVER.into()])
}

pub(crate) async fn run(
    provider: &dyn Provider,
    id: &SandboxId,
    script: &str,
) -> Result<String, SandboxError> {
    let mut tries = 0;
    let mut stream = loop {
        match provider.dial(id, PORT).await {
            Err(SandboxError::Refused { .. }) if tries < 500 => tries += 1,
            other => break other?,
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    stream.write_all(script.as_bytes()).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut text = Vec::new();
    let read = tokio::time::timeout(Duration::from_mins(1), stream.read_to_end(&mut text)).await;
    let _ = read.expect("the script must end within a minute");
    Ok(String::from_utf8_lossy(&text).into_owned())
}
