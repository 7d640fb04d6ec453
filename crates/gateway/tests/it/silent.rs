//! A sandbox whose supervisor starts but never responds: the start fails in bounded time and leaves nothing behind.

use std::collections::BTreeMap;

use clock::{Clock, Rng};
use egress::{Mode, Rules};
use gateway::runtime::{CountingRecorder, Insecure, SandboxRequest, Sandboxes, proxy_of};
use sandbox::{SandboxError, SandboxId};

use crate::harness::Setup;

/// The unresponsive supervisor of the next test. The sandbox starts this test binary with the argument `sandboxd`,
/// which selects this test.
#[test]
fn sandboxd() {
    let directory = std::env::current_dir().unwrap();
    while directory.ends_with("silent/workspace") {
        std::thread::park();
    }
}

/// The paused clock of tokio advances as soon as all tasks are idle.
#[tokio::test(start_paused = true)]
async fn a_sandbox_that_never_becomes_ready_is_reported_and_ended() {
    let setup = Setup::sqlite().set("SANDBOX_PROVIDER", "process");
    let sandboxes = Sandboxes::open(&setup.config(), Insecure::Allowed, &Rng::system()).unwrap();
    let request = SandboxRequest {
        id: SandboxId::new("silent").unwrap(),
        env: BTreeMap::new(),
        snapshot: None,
        proxy: proxy_of(Rules::new(Mode::Offline), CountingRecorder, &Clock::system()),
        gateway: None,
        programs: BTreeMap::new(),
    };
    let error = sandboxes.start(request).await.err().unwrap();
    assert!(matches!(error, SandboxError::Timeout("its supervisor")), "{error}");
    assert!(sandboxes.provider.list().await.unwrap().is_empty());
    assert!(!setup.data_dir().join("sandboxes/silent").exists());
}
