//! Files that hang, as on a dead network mount, and a lock that cannot be read: the gateway refuses calls, `/ready`
//! reports the problem, and shutdown still completes.

use std::path::Path;
use std::process::Command;

use gate::Governance;
use serde_json::{Value, json};

use crate::harness::{Running, Setup, client, within};
use crate::world::{World, with, write_call};

/// Replaces the file with a FIFO, so that opening it blocks for ever.
fn hang(file: &Path) {
    let _ = std::fs::remove_file(file);
    assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
}

/// A serving gateway, and what is needed to call it.
struct Served {
    running: Running,
    token: String,
    store: store::Store,
    effects: testkit::EffectRecorder,
}

impl Served {
    async fn new() -> Self {
        let World { effects, gateway, token, .. } = World::on(Setup::sqlite()).await;
        let store = gateway.app.store.clone();
        Self { running: gateway.serve(), token, store, effects }
    }

    async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let call = client().post(self.running.url(path)).bearer_auth(&self.token).json(body);
        let answer = call.send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// The names of the checks that are not ready.
    async fn down(&self) -> Vec<String> {
        let body: Value =
            client().get(self.running.url("/ready")).send().await.unwrap().json().await.unwrap();
        let checks = body["checks"].as_array().unwrap().iter();
        checks
            .filter(|check| check["ok"] == false)
            .map(|check| check["name"].as_str().unwrap().to_owned())
            .collect()
    }

    async fn down_is(&self, parts: &[&str]) {
        within(async { while self.down().await != parts {} }).await;
    }

    /// Checks that the safety lock works whatever else hangs: after the first refused call, no call is executed.
    async fn the_lock_holds(&self) {
        assert_eq!(self.post("/v1/tool-calls", &write_call("run-unlocked")).await.0, 200);
        let config = self.running.setup.config();
        let (clock, rng) = (clock::Clock::system(), clock::Rng::system());
        let governance = Governance {
            settings: config.gate_settings(),
            store: &self.store,
            clock: &clock,
            rng: &rng,
            operator: "host:tester",
        };
        governance.lock(true, "a test").await.unwrap();
        let mut number = 0;
        within(async {
            loop {
                number += 1;
                let (status, body) =
                    self.post("/v1/tool-calls", &write_call(&format!("run-locked-{number}"))).await;
                if status == 403 {
                    assert_eq!(body["error"]["message"], "the global safety lock is engaged");
                    break;
                }
            }
        })
        .await;
        let executed = self.effects.all().len();
        assert_eq!(self.post("/v1/tool-calls", &write_call("run-after-lock")).await.0, 403);
        assert_eq!(self.effects.all().len(), executed);
    }
}

#[tokio::test]
async fn a_policy_directory_that_hangs_stops_neither_the_lock_nor_the_stop() {
    let served = Served::new().await;
    let tools = served.running.setup.directory().join("policy").join("tools.yaml");
    let before = std::fs::read_to_string(&tools).unwrap();
    hang(&tools);
    served.down_is(&["policy"]).await;
    served.the_lock_holds().await;
    // Release the hanging thread, so that the gateway reads the directory again.
    std::fs::write(tools.with_extension("next"), before).unwrap();
    let hanging = std::fs::OpenOptions::new().write(true).open(&tools).unwrap();
    std::fs::rename(tools.with_extension("next"), &tools).unwrap();
    drop(hanging);
    served.down_is(&[]).await;
    hang(&tools);
    served.down_is(&["policy"]).await;
    served.running.stop().await;
}

#[tokio::test]
async fn a_checkpoint_directory_that_hangs_stops_neither_the_lock_nor_the_stop() {
    let served = Served::new().await;
    hang(&served.running.setup.data_dir().join("checkpoints").join("checkpoints.txt"));
    // Write enough events for a checkpoint: each started run adds two.
    let run = json!({"run_kind": "orchestrator", "case_id": "case-1"});
    for _ in 0..500 {
        assert_eq!(served.post("/v1/runs", &run).await.0, 201);
    }
    served.down_is(&["checkpoints"]).await;
    served.the_lock_holds().await;
    served.running.stop().await;
}

#[tokio::test]
async fn a_start_with_files_that_hang_is_refused_and_says_which() {
    let setup = Setup::sqlite().with_tools("[]", "127.0.0.1:1");
    hang(&setup.directory().join("policy").join("tools.yaml"));
    let Err(error) = setup.try_start().await else { panic!("it started") };
    assert!(error.to_string().contains("PROLIFERATE_POLICY_DIR"), "{error}");
    let setup = Setup::sqlite();
    let directory = setup.data_dir().join("checkpoints");
    std::fs::create_dir_all(&directory).unwrap();
    hang(&directory.join("checkpoints.txt"));
    let Err(error) = setup.try_start().await else { panic!("it started") };
    assert!(error.to_string().contains("AUDIT_CHECKPOINT_DIR"), "{error}");
}

#[tokio::test]
async fn a_lock_that_cannot_be_read_refuses_every_call() {
    let world = World::on(Setup::postgres().await).await;
    assert_eq!(world.call(&write_call("run-before-1")).await.status, 200);
    world.gateway.sql("ALTER TABLE safety_lock RENAME TO safety_lock_away").await;
    let down = async || {
        let body = world.gateway.get("/ready").send().await.json();
        let checks = body["checks"].as_array().unwrap().clone();
        checks.iter().any(|check| check["name"] == "safety_lock" && check["ok"] == false)
    };
    within(async { while !down().await {} }).await;
    let refused = with(write_call("run-unread-1"), "correlation_id", json!("why-2"));
    let answer = world.call(&refused).await;
    assert_eq!((answer.status, world.effects()), (503, 1), "{}", answer.text());
    let body = answer.json();
    assert_eq!(body["error"]["error_code"], "DEPENDENCY_DOWN");
    assert_eq!(body["error"]["retryable"], true);
    assert!(body["error"]["message"].as_str().unwrap().contains("safety lock could not be read"), "{body}");
    world.gateway.sql("ALTER TABLE safety_lock_away RENAME TO safety_lock").await;
    within(async { while down().await {} }).await;
    let answer = world.call(&refused).await;
    assert_eq!((answer.status, world.effects()), (200, 2), "it was refused, not denied: {}", answer.text());
}
